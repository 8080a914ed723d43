//! From targets to shares that move slowly and are whole numbers (pure).

use std::time::Duration;

use super::selection::WHOLE;

/// One step of `weight` towards `target` after the time `passed`: half of the way in each half-life, however many steps it
/// is made of.
pub(crate) fn smooth(weight: f64, target: f64, passed: Duration, half_life: Duration) -> f64 {
    if half_life.is_zero() {
        return target;
    }
    let left = (-(passed.as_secs_f64() / half_life.as_secs_f64())).exp2();
    weight + (target - weight) * (1.0 - left)
}

/// Shares in permille, in proportion to the weights: together [`WHOLE`], each at least `least`, or an equal part where
/// that is not possible. Empty for no weights.
pub(crate) fn apportion(weights: &[f64], least: u32) -> Vec<u32> {
    let Some(count) = u32::try_from(weights.len()).ok().filter(|count| *count > 0) else {
        return Vec::new();
    };
    let floor = f64::from(least.min(WHOLE / count).max(1));
    let shares = raised(weights, floor);
    let mut whole: Vec<u32> = shares.iter().map(|share| truncated(*share)).collect();
    // What truncation left goes to those that lost most by it.
    let missing = WHOLE.saturating_sub(whole.iter().sum());
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| shares[*b].fract().total_cmp(&shares[*a].fract()));
    for at in order.into_iter().cycle().take(missing as usize) {
        whole[at] += 1;
    }
    whole
}

/// Each share is at least `floor`; those above it give what the others need, in proportion.
fn raised(weights: &[f64], floor: f64) -> Vec<f64> {
    let whole = f64::from(WHOLE);
    let weight = |at: usize| weights[at].max(0.0);
    let mut at_floor = vec![false; weights.len()];
    loop {
        let above = || (0..weights.len()).filter(|at| !at_floor[*at]);
        let fixed = floor * at_floor.iter().filter(|at_floor| **at_floor).count() as f64;
        let sum: f64 = above().map(weight).sum();
        let share = |at: usize| {
            if sum > 0.0 {
                weight(at) / sum * (whole - fixed)
            } else {
                (whole - fixed) / above().count() as f64
            }
        };
        let low: Vec<usize> = above().filter(|at| share(*at) < floor).collect();
        if low.is_empty() {
            let shares = (0..weights.len()).map(|at| if at_floor[at] { floor } else { share(at) });
            return shares.collect();
        }
        for at in low {
            at_floor[at] = true;
        }
    }
}

fn truncated(share: f64) -> u32 {
    // A share that is a whole number may be a little less by the arithmetic before.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "shares are from 0 to 1000"
    )]
    let whole = (share + 1e-9) as u32;
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn half_of_the_way_is_made_in_each_half_life() {
        let half_life = Duration::from_secs(5);
        let at_once = smooth(0.0, 1.0, Duration::from_secs(10), half_life);
        assert!((at_once - 0.75).abs() < 1e-9, "{at_once}");
        let mut weight = 0.0;
        for _ in 0..100 {
            weight = smooth(weight, 1.0, Duration::from_millis(100), half_life);
        }
        assert!((weight - at_once).abs() < 1e-9, "{weight}");
        let unchanged = smooth(0.3, 0.8, Duration::ZERO, half_life);
        assert!((unchanged - 0.3).abs() < 1e-9, "{unchanged}");
    }

    #[rstest]
    #[case::none(&[], 20, &[])]
    #[case::one(&[0.0], 20, &[1000])]
    #[case::thirds(&[1.0, 1.0, 1.0], 20, &[334, 333, 333])]
    #[case::in_proportion(&[0.7, 0.3], 20, &[700, 300])]
    #[case::least_share(&[1.0, 0.0], 20, &[980, 20])]
    #[case::others_give_in_proportion(&[0.6, 0.3, 0.1], 200, &[533, 267, 200])]
    #[case::raising_one_lowers_the_next(&[0.8, 0.12, 0.05, 0.03], 110, &[670, 110, 110, 110])]
    #[case::all_at_zero(&[0.0, 0.0], 20, &[500, 500])]
    #[case::least_is_too_much(&[3.0, 1.0], 900, &[500, 500])]
    #[case::nobody_at_nothing(&[1.0, 0.0], 0, &[999, 1])]
    fn shares_are_whole_numbers(
        #[case] weights: &[f64],
        #[case] least: u32,
        #[case] expected: &[u32],
    ) {
        assert_eq!(apportion(weights, least), expected);
    }

    proptest! {
        #[test]
        fn shares_are_the_whole_and_nobody_is_below_the_least(
            weights in prop::collection::vec(0.0..1.0, 1..257),
            least in 0_u32..500,
        ) {
            let shares = apportion(&weights, least);
            prop_assert_eq!(shares.iter().sum::<u32>(), WHOLE);
            let count = u32::try_from(weights.len()).unwrap();
            let floor = least.min(WHOLE / count).max(1);
            prop_assert!(shares.iter().all(|share| *share >= floor), "{shares:?}");
        }
    }
}
