//! The order of candidates by their costs.

use rand::{Rng, RngExt};
use smallvec::SmallVec;

/// Candidates by their places: the chosen one, then up to `most - 1` others by cost, the cheapest first.
///
/// With a temperature of 0 the chosen one has the least cost, and each of those with exactly that cost is as likely.
/// Above it costs are stretched to 0..1 and the chosen one is random, `exp(-cost / temperature)` against the others.
pub fn choose(
    costs: &[f64],
    temperature: f64,
    most: usize,
    rng: &mut impl Rng,
) -> SmallVec<[usize; 4]> {
    let mut order = SmallVec::new();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let chosen = if temperature > 0.0 {
        by_chance(costs, least, temperature, rng)
    } else {
        one_of(costs, least, rng)
    };
    let Some(chosen) = chosen else {
        return order;
    };
    order.push(chosen);
    if most > 1 {
        let mut others: SmallVec<[usize; 32]> =
            (0..costs.len()).filter(|at| *at != chosen).collect();
        others.sort_by(|one, other| costs[*one].total_cmp(&costs[*other]));
        order.extend(others.into_iter().take(most - 1));
    }
    order
}

/// One of those with the least cost.
fn one_of(costs: &[f64], least: f64, rng: &mut impl Rng) -> Option<usize> {
    let equal = || {
        let all = costs.iter().enumerate();
        all.filter(|(_, cost)| **cost <= least).map(|(at, _)| at)
    };
    let count = equal().count();
    match count {
        0 | 1 => equal().next(),
        _ => equal().nth(rng.random_range(0..count)),
    }
}

fn by_chance(costs: &[f64], least: f64, temperature: f64, rng: &mut impl Rng) -> Option<usize> {
    let largest = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = largest - least;
    let share = |cost: &f64| {
        if range > 0.0 {
            (-(cost - least) / range / temperature).exp()
        } else {
            1.0
        }
    };
    let sum: f64 = costs.iter().map(share).sum();
    let mut left = rng.random::<f64>() * sum;
    for (at, cost) in costs.iter().enumerate() {
        left -= share(cost);
        if left < 0.0 {
            return Some(at);
        }
    }
    // what rounding left over
    costs.len().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const DRAWS: u32 = 30_000;

    /// The sum over all places of (seen - expected)^2 / expected.
    fn chi_square(costs: &[f64], temperature: f64, shares: &[f64]) -> f64 {
        let mut rng = StdRng::seed_from_u64(7);
        let mut seen = vec![0.0; costs.len()];
        for _ in 0..DRAWS {
            seen[choose(costs, temperature, 1, &mut rng)[0]] += 1.0;
        }
        let sum: f64 = shares.iter().sum();
        let each = seen.iter().zip(shares).map(|(seen, share)| {
            let expected = f64::from(DRAWS) * share / sum;
            if expected > 0.0 {
                (seen - expected) * (seen - expected) / expected
            } else {
                seen * 1e9
            }
        });
        each.sum()
    }

    /// 16.3 is passed once in 1000 with three degrees of freedom; the seed is fixed.
    #[test]
    fn exact_ties_are_broken_evenly_and_a_temperature_spreads_by_cost() {
        let costs = [3.0, 1.0, 1.0, 1.0, 7.0, 1.0];
        assert!(chi_square(&costs, 0.0, &[0.0, 1.0, 1.0, 1.0, 0.0, 1.0]) < 16.3);
        let costs = [0.0, 5.0, 10.0, 2.5];
        let shares = [0.0, 0.5, 1.0, 0.25].map(|cost: f64| (-cost / 0.5).exp());
        assert!(chi_square(&costs, 0.5, &shares) < 16.3);
        assert!(chi_square(&[4.0; 4], 0.5, &[1.0; 4]) < 16.3);
    }

    #[test]
    fn fallbacks_come_by_cost() {
        let mut rng = StdRng::seed_from_u64(7);
        let costs = [3.0, -1.0, 9.0, 2.0];
        assert_eq!(choose(&costs, 0.0, 3, &mut rng)[..], [1, 3, 0]);
        assert_eq!(choose(&costs, 0.0, 9, &mut rng)[..], [1, 3, 0, 2]);
        assert_eq!(choose(&costs, 0.0, 0, &mut rng)[..], [1]);
        assert!(choose(&[], 0.0, 3, &mut rng).is_empty());
        assert!(choose(&[], 1.0, 3, &mut rng).is_empty());
    }
}
