//! The rule of `top-percent-picker`.

use rand::{Rng, RngExt};
use smallvec::SmallVec;

/// Scores closer than this are equal: rounding must not decide.
pub(crate) const TIE: f64 = 1e-9;

/// The index of one of the best `percent` of the scores, by chance: of so many of them, rounded down, but at least one,
/// and of all that are equal to the last of these. Without the equals an idle cluster would always give its first host.
/// 0 where there are no scores; one that is no number is the worst.
pub fn top_percent<R: Rng + ?Sized>(scores: &[f64], percent: u32, rng: &mut R) -> usize {
    let known = |score: &f64| {
        if score.is_nan() {
            f64::NEG_INFINITY
        } else {
            *score
        }
    };
    let mut sorted: SmallVec<[f64; 16]> = scores.iter().map(known).collect();
    if sorted.is_empty() {
        return 0;
    }
    let share = u128::from(percent) * sorted.len() as u128 / 100;
    let best = usize::try_from(share).unwrap_or(usize::MAX);
    let last = best.clamp(1, sorted.len()) - 1;
    let (_, last, _) = sorted.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
    let least = *last - TIE;
    let is_best = |score: &f64| known(score) >= least;
    let count = scores.iter().filter(|score| is_best(score)).count();
    let lucky = if count > 1 {
        rng.random_range(0..count)
    } else {
        0
    };
    let mut best = scores.iter().enumerate().filter(|(_, one)| is_best(one));
    best.nth(lucky).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;
    use crate::fixtures::mk_rng;

    /// How often each index was picked of 3000 times.
    fn shares(scores: &[f64], percent: u32) -> BTreeMap<usize, u32> {
        let (mut rng, mut shares) = (mk_rng(), BTreeMap::new());
        for _ in 0..3000 {
            let picked = top_percent(scores, percent, &mut rng);
            *shares.entry(picked).or_default() += 1;
        }
        shares
    }

    const TEN: [f64; 10] = [0.3, 0.9, 0.1, 0.8, 0.2, 0.7, 0.6, 0.0, 0.5, 0.4];

    #[rstest]
    #[case::ten(&TEN, 10, &[1])]
    #[case::thirty(&TEN, 30, &[1, 3, 5])]
    #[case::rounded_down(&TEN, 29, &[1, 3])]
    #[case::at_least_one(&TEN, 0, &[1])]
    #[case::no_more_than_there_are(&[0.1, 0.2], 900, &[0, 1])]
    #[case::ties_with_the_last(&[0.5, 0.9, 0.5, 0.5 - 1e-10, 0.4], 40, &[0, 1, 2, 3])]
    #[case::no_numbers(&[f64::NAN, 0.1, f64::NEG_INFINITY], 10, &[1])]
    #[case::only_no_numbers(&[f64::NAN, f64::NAN], 10, &[0, 1])]
    #[case::fifteen_idle_hosts(&[0.0; 15], 10, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])]
    fn the_best_share_evenly(#[case] scores: &[f64], #[case] percent: u32, #[case] want: &[usize]) {
        let shares = shares(scores, percent);
        assert_eq!(shares.keys().copied().collect::<Vec<_>>(), want);
        let even = 3000 / u32::try_from(want.len()).unwrap();
        // three standard deviations of the share of three
        let near = |share: &u32| share.abs_diff(even) <= 75.min(even);
        assert!(shares.values().all(near), "{shares:?}");
    }

    #[test]
    fn of_nothing_it_is_the_first() {
        assert_eq!(top_percent(&[], 10, &mut mk_rng()), 0);
    }
}
