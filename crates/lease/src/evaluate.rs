//! What one look at the lease means for one who looks. Pure.

use std::time::Duration;

use moment::Moment;

/// How long a record must have been seen unchanged before another may take it: the holder's [`crate::RENEW_DEADLINE`] of
/// 10 s and half as much again, for clocks that do not run alike.
pub const DURATION: Duration = Duration::from_secs(15);

/// A lease, as the API server has it. Its times are left out: they are of others' clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who has it; empty: it was released.
    pub holder: String,
    /// How often it went from one to another.
    pub transitions: i32,
    /// Its resource version: any renewal changes it.
    pub version: String,
}

/// What was last seen, and since when it has been so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// None: there is no lease.
    pub record: Option<Record>,
    /// On our own clock: when the answer arrived that first said so.
    pub since: Moment,
    /// Who had it when there last was one.
    pub last_holder: Option<String>,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody has it: take it.
    Acquire,
    /// We have it: keep it.
    Renew,
    /// Another has it, at least until then.
    Follow {
        /// When it may be taken, if it stays as it is.
        until: Moment,
    },
}

/// Decides for `me` at `now`.
///
/// A lease that was deleted is treated as held by its last holder, except by a process that never saw it: to that one it
/// is a first start, so whoever deletes a Lease by hand should not start a process in the same seconds.
pub fn evaluate(seen: &Seen, me: &str, now: Moment) -> Decision {
    let expires = seen.since + DURATION;
    let holder = match &seen.record {
        Some(record) if record.holder == me => return Decision::Renew,
        Some(record) => Some(record.holder.as_str()),
        None => seen.last_holder.as_deref().filter(|last| *last != me),
    };
    match holder {
        None | Some("") => Decision::Acquire,
        Some(_) if expires <= now => Decision::Acquire,
        Some(_) => Decision::Follow { until: expires },
    }
}

// === impl Seen ===

impl Seen {
    /// What is known after an answer that arrived at `now`.
    #[must_use]
    pub fn after(earlier: Option<Self>, record: Option<Record>, now: Moment) -> Self {
        let (before, since, last) = match earlier {
            Some(earlier) => (Some(earlier.record), earlier.since, earlier.last_holder),
            None => (None, now, None),
        };
        let holder = record.as_ref().map(|record| record.holder.clone());
        let unchanged = before.as_ref() == Some(&record);
        Self {
            record,
            since: if unchanged { since } else { now },
            last_holder: holder.or(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn at(second: u64) -> Moment {
        Moment::from_millis(second * 1_000)
    }

    fn mk_record(holder: &str, version: &str) -> Record {
        Record {
            holder: holder.to_owned(),
            transitions: 0,
            version: version.to_owned(),
        }
    }

    fn mk_seen(holder: Option<&str>, last: Option<&str>) -> Seen {
        Seen {
            record: holder.map(|holder| mk_record(holder, "1")),
            since: at(100),
            last_holder: last.map(ToOwned::to_owned),
        }
    }

    const FOLLOW: Decision = Decision::Follow { until: at(115) };

    #[rstest]
    #[case::ours(Some("me"), 100, Decision::Renew)]
    #[case::ours_however_old(Some("me"), 9_000, Decision::Renew)]
    #[case::released(Some(""), 100, Decision::Acquire)]
    #[case::held(Some("other"), 100, FOLLOW)]
    #[case::held_to_the_end(Some("other"), 114, FOLLOW)]
    #[case::run_out(Some("other"), 115, Decision::Acquire)]
    fn a_record_is_judged(#[case] holder: Option<&str>, #[case] now: u64, #[case] want: Decision) {
        assert_eq!(evaluate(&mk_seen(holder, holder), "me", at(now)), want);
    }

    #[rstest]
    #[case::first_start(None, 100, Decision::Acquire)]
    #[case::it_was_ours(Some("me"), 100, Decision::Acquire)]
    #[case::it_was_released(Some(""), 100, Decision::Acquire)]
    #[case::its_holder_may_still_write(Some("other"), 114, FOLLOW)]
    #[case::its_holder_has_given_up(Some("other"), 115, Decision::Acquire)]
    fn a_missing_lease_is_judged_by_who_had_it(
        #[case] last: Option<&str>,
        #[case] now: u64,
        #[case] want: Decision,
    ) {
        assert_eq!(evaluate(&mk_seen(None, last), "me", at(now)), want);
    }

    #[test]
    fn only_a_change_begins_the_time_anew() {
        let record = |version| Some(mk_record("other", version));
        let first = Seen::after(None, record("1"), at(5));
        assert_eq!(first.since, at(5));
        let same = Seen::after(Some(first), record("1"), at(9));
        assert_eq!(same.since, at(5));
        let renewed = Seen::after(Some(same), record("2"), at(11));
        assert_eq!(renewed.since, at(11));
        let deleted = Seen::after(Some(renewed), None, at(12));
        assert_eq!(deleted.since, at(12));
        assert_eq!(deleted.last_holder.as_deref(), Some("other"));
        let still = Seen::after(Some(deleted), None, at(20));
        assert_eq!(still.since, at(12));
        assert_eq!(still.last_holder.as_deref(), Some("other"));
    }
}
