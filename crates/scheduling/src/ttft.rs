//! How long a prefill takes: a law of the prompt's length and its cached part, fitted to what was seen.
#![deny(clippy::indexing_slicing)]

use std::time::Duration;

/// What a prediction is made of.
const FEATURES: usize = 6;

type Vector = [f64; FEATURES];

/// Milliseconds for i², c², i·c, i, c and 1, i and c in thousands of tokens: where fitting begins (llm-filter, 4.8).
const START: Vector = [4.45, -8.41, -3.19, 278.0, -50.2, 37.2];
/// How little the start is believed: a few dozen requests outweigh it.
const START_VARIANCE: f64 = 1000.0;
/// A request counts half once 138 others came after it.
const FORGETTING: f64 = 0.995;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_mins(1);
/// Of a prompt whose length is not known.
const UNKNOWN: Duration = Duration::from_millis(500);

/// The length of a prompt and of the part of it that is cached where it goes, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    /// All of it.
    pub tokens: f64,
    /// Of these, cached.
    pub cached: f64,
}

/// Fits the time to the first token of one model by recursive least squares.
///
/// A prediction is a few dozen multiplications, a lesson some hundred; nothing is allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictor {
    weights: Vector,
    /// Covariance of the weights, up to a factor; symmetric.
    covariance: [Vector; FEATURES],
}

// === impl Prompt ===

impl Prompt {
    fn features(self) -> Vector {
        let (i, c) = (self.tokens / 1000.0, self.cached / 1000.0);
        [i * i, c * c, i * c, i, c, 1.0]
    }
}

// === impl Predictor ===

impl Predictor {
    /// The time to the first token, 100 ms to a minute; 500 ms for a prompt of unknown length.
    pub fn predict(&self, prompt: Option<Prompt>) -> Duration {
        let Some(prompt) = prompt else {
            return UNKNOWN;
        };
        let millis = dot(&self.weights, &prompt.features());
        let least = SHORTEST.as_secs_f64() * 1e3;
        let most = LONGEST.as_secs_f64() * 1e3;
        if millis.is_nan() {
            return UNKNOWN;
        }
        Duration::from_secs_f64(millis.clamp(least, most) / 1e3)
    }

    /// A prompt took so long. What makes the fit useless, such as a length that is no number, begins it anew.
    pub fn learn(&mut self, prompt: Prompt, took: Duration) {
        let features = prompt.features();
        let spread = self.covariance.map(|row| dot(&row, &features));
        let divisor = FORGETTING + dot(&spread, &features);
        let error = took.as_secs_f64() * 1e3 - dot(&self.weights, &features);
        for (weight, spread) in self.weights.iter_mut().zip(spread) {
            *weight += spread * error / divisor;
        }
        for (row, left) in self.covariance.iter_mut().zip(spread) {
            for (cell, right) in row.iter_mut().zip(spread) {
                *cell = (*cell - left * right / divisor) / FORGETTING;
            }
        }
        let mut cells = self.weights.iter().chain(self.covariance.iter().flatten());
        if !cells.all(|cell| cell.is_finite()) {
            *self = Self::default();
        }
    }
}

impl Default for Predictor {
    fn default() -> Self {
        let mut covariance = [[0.0; FEATURES]; FEATURES];
        for (at, row) in covariance.iter_mut().enumerate() {
            if let Some(cell) = row.get_mut(at) {
                *cell = START_VARIANCE;
            }
        }
        Self {
            weights: START,
            covariance,
        }
    }
}

fn dot(left: &Vector, right: &Vector) -> f64 {
    left.iter()
        .zip(right)
        .map(|(left, right)| left * right)
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn mk_prompt(tokens: f64, cached: f64) -> Prompt {
        Prompt { tokens, cached }
    }

    fn millis(predictor: &Predictor, tokens: f64, cached: f64) -> f64 {
        predictor
            .predict(Some(mk_prompt(tokens, cached)))
            .as_secs_f64()
            * 1e3
    }

    /// From the start values: 4.45 i² - 8.41 c² - 3.19 i c + 278 i - 50.2 c + 37.2.
    #[rstest]
    #[case(1000.0, 0.0, 319.65)]
    #[case(4000.0, 2000.0, 1060.84)]
    #[case(8000.0, 8000.0, 1402.0)]
    #[case(0.0, 0.0, 100.0)]
    #[case(1e6, 0.0, 60_000.0)]
    #[case(1000.0, 1e6, 100.0)]
    fn a_new_model_has_the_start_values(
        #[case] tokens: f64,
        #[case] cached: f64,
        #[case] want: f64,
    ) {
        let got = millis(&Predictor::default(), tokens, cached);
        assert!((got - want).abs() < 0.01, "{got}");
    }

    #[test]
    fn a_prompt_of_unknown_length_takes_half_a_second() {
        assert_eq!(Predictor::default().predict(None), UNKNOWN);
        assert_eq!(
            Predictor::default().predict(Some(mk_prompt(f64::NAN, 0.0))),
            UNKNOWN
        );
    }

    /// A law of the same form, which then changes: the fit follows both.
    #[test]
    fn a_law_is_recovered_and_followed() {
        let mut predictor = Predictor::default();
        let laws: [fn(f64, f64) -> f64; 2] = [
            |i, c| 300.0 + 900.0 * i - 800.0 * c + 12.0 * i * i,
            |i, c| 150.0 + 400.0 * i - 350.0 * c + 2.0 * i * c,
        ];
        for (round, law) in laws.into_iter().enumerate() {
            for step in 0..3000_u32 {
                let tokens = f64::from(step * 37 % 16_000) + 100.0;
                let cached = tokens * f64::from(step * 13 % 10) / 10.0;
                let took = law(tokens / 1000.0, cached / 1000.0) / 1e3;
                predictor.learn(mk_prompt(tokens, cached), Duration::from_secs_f64(took));
            }
            for (tokens, cached) in [(500.0, 0.0), (6000.0, 3000.0), (15_000.0, 14_000.0)] {
                let want = law(tokens / 1000.0, cached / 1000.0);
                let got = millis(&predictor, tokens, cached);
                assert!(
                    (got / want - 1.0).abs() < 0.01,
                    "law {round}: {got} is not {want}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_number_begins_the_fit_anew() {
        let mut predictor = Predictor::default();
        predictor.learn(mk_prompt(2000.0, 0.0), Duration::from_secs(3));
        assert_ne!(predictor, Predictor::default());
        predictor.learn(mk_prompt(f64::MAX, 0.0), Duration::from_secs(3));
        assert_eq!(predictor, Predictor::default());
    }

    proptest! {
        #[test]
        fn predictions_stay_between_100_ms_and_a_minute(
            lessons in proptest::collection::vec((0.0..1e6, 0.0..1e6, 0_u64..1 << 40), 0..200),
            tokens in 0.0..1e7,
            cached in 0.0..1e7,
        ) {
            let mut predictor = Predictor::default();
            for (tokens, cached, took) in lessons {
                predictor.learn(mk_prompt(tokens, cached), Duration::from_micros(took));
            }
            let got = predictor.predict(Some(mk_prompt(tokens, cached)));
            prop_assert!((SHORTEST..=LONGEST).contains(&got), "{got:?}");
        }
    }
}
