//! How long prefills take, by model, as responses teach.

use std::time::Duration;

use parking_lot::Mutex;
use scheduling::ttft::{Predictor, Prompt};

use crate::metrics::Recent;

/// Models whose times are remembered; of more the least recently used are forgotten. A predictor takes 0.3 KB.
const MAX_MODELS: usize = 256;

/// A prefill that is not seen to end has this much longer than it is predicted to take.
const MARGIN: f64 = 1.2;

/// Predictors by model. Their lock is held for some hundred multiplications, once in a request.
#[derive(Debug)]
pub(super) struct Prefills(Mutex<Recent<Predictor>>);

// === impl Prefills ===

impl Prefills {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Recent::new(MAX_MODELS)))
    }

    /// After so long a prompt of this model counts as computed; of an unknown length: none.
    pub(super) fn limit(&self, model: &str, prompt: Option<Prompt>) -> Duration {
        let mut models = self.0.lock();
        let predicted = match models.get(model.as_bytes()) {
            Some(predictor) => predictor.predict(prompt),
            None => Predictor::default().predict(prompt),
        };
        predicted.mul_f64(MARGIN)
    }

    /// A prompt of this model took so long.
    pub(super) fn learn(&self, model: &str, prompt: Prompt, took: Duration) {
        let mut models = self.0.lock();
        if let Some(predictor) = models.get_mut(model.as_bytes()) {
            return predictor.learn(prompt, took);
        }
        let mut predictor = Predictor::default();
        predictor.learn(prompt, took);
        models.insert(model.as_bytes(), predictor, |_| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_learns_for_itself_and_memory_is_bounded() {
        let prefills = Prefills::new();
        let prompt = Prompt {
            tokens: 1000.0,
            cached: 0.0,
        };
        let limit = |model: &str| prefills.limit(model, Some(prompt)).as_millis();
        assert_eq!(prefills.limit("m", None).as_millis(), 600);
        assert_eq!(limit("m"), 383, "1.2 x 319.65 ms");
        for _ in 0..500 {
            prefills.learn("m", prompt, Duration::from_secs(2));
        }
        assert!((2390..=2410).contains(&limit("m")), "{}", limit("m"));
        assert_eq!(limit("other"), 383);
        for model in 0..MAX_MODELS {
            prefills.learn(&model.to_string(), prompt, Duration::from_secs(1));
        }
        assert_eq!(limit("m"), 383, "forgotten");
        assert_eq!(prefills.0.lock().values().count(), MAX_MODELS);
    }
}
