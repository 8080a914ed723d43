//! A summary of exports that ended: thousands may end at once, and a member can forge that.

use std::collections::BTreeMap;

use crate::{evidence::Evidence, index::Withdrawal};

/// Exports that ended by the same evidence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) evidence: Evidence,
    pub(super) exports: usize,
    /// The first few: exporter and pool.
    pub(super) first: String,
}

/// Exports named of those that ended together.
const NAMED: usize = 5;

/// One for each evidence.
pub(super) fn summarise(withdrawals: &[Withdrawal]) -> Vec<Ended> {
    let mut all: BTreeMap<Evidence, Vec<&Withdrawal>> = BTreeMap::new();
    for withdrawal in withdrawals {
        all.entry(withdrawal.evidence).or_default().push(withdrawal);
    }
    let ended = |(evidence, mut ended): (_, Vec<&Withdrawal>)| {
        ended
            .sort_unstable_by(|a, b| (&a.exporter, a.key.text()).cmp(&(&b.exporter, b.key.text())));
        let first = ended.iter().take(NAMED);
        let first: Vec<String> = first
            .map(|one| format!("{} {}", one.exporter, one.key))
            .collect();
        Ended {
            evidence,
            exports: ended.len(),
            first: first.join(", "),
        }
    };
    all.into_iter().map(ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::*;

    fn mk(name: &str, evidence: Evidence) -> Withdrawal {
        Withdrawal {
            exporter: mk_name("a"),
            key: mk_key(name),
            evidence,
            drain: None,
            is_orphan: false,
        }
    }

    #[test]
    fn a_few_are_named_and_many_are_counted() {
        let few = [
            mk("z", Evidence::PoolDeleted),
            mk("y", Evidence::AnnotationGone),
            mk("x", Evidence::PoolDeleted),
        ];
        let ended = |evidence, exports, first: &str| Ended {
            evidence,
            exports,
            first: first.to_owned(),
        };
        let expected = [
            ended(Evidence::PoolDeleted, 2, "a ml/x, a ml/z"),
            ended(Evidence::AnnotationGone, 1, "a ml/y"),
        ];
        assert_eq!(summarise(&few), expected);
        let many: Vec<Withdrawal> = (0..10_000)
            .rev()
            .map(|n| mk(&format!("p{n:04}"), Evidence::MemberRemoved))
            .collect();
        let first = "a ml/p0000, a ml/p0001, a ml/p0002, a ml/p0003, a ml/p0004";
        let expected = [ended(Evidence::MemberRemoved, 10_000, first)];
        assert_eq!(summarise(&many), expected);
        assert_eq!(summarise(&[]), []);
    }
}
