//! Exports that ended, in few words: thousands may end at once, and a member can make it look so.

use std::collections::BTreeMap;

use crate::index::{Evidence, Withdrawal};

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
    let mut all: BTreeMap<Evidence, (usize, Vec<String>)> = BTreeMap::new();
    for withdrawal in withdrawals {
        let (exports, first) = all.entry(withdrawal.evidence).or_default();
        *exports += 1;
        if *exports <= NAMED {
            first.push(format!("{} {}", withdrawal.exporter, withdrawal.key));
        }
    }
    let ended = |(evidence, (exports, first)): (_, (_, Vec<String>))| Ended {
        evidence,
        exports,
        first: first.join(", "),
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
            mk("x", Evidence::PoolDeleted),
            mk("y", Evidence::AnnotationGone),
            mk("z", Evidence::PoolDeleted),
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
            .map(|n| mk(&format!("p{n}"), Evidence::MemberRemoved))
            .collect();
        let first = "a ml/p0, a ml/p1, a ml/p2, a ml/p3, a ml/p4";
        let expected = [ended(Evidence::MemberRemoved, 10_000, first)];
        assert_eq!(summarise(&many), expected);
        assert_eq!(summarise(&[]), []);
    }
}
