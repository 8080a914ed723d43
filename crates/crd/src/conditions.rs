//! Conditions: the names that we write, and pure helpers to make, stamp and compare them.
//!
//! Time is a parameter. A writer makes its wanted conditions with [`make`], gives them the times of the live ones with
//! [`stamp`], and sends nothing where [`same`] holds for all.

use jiff::Timestamp;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// `Accepted`: the object, or entry, is valid and taken up.
pub const ACCEPTED: &str = "Accepted";
/// `Ready`: can serve now.
pub const READY: &str = "Ready";
/// `ResolvedRefs`: all references of the object lead somewhere.
pub const RESOLVED_REFS: &str = "ResolvedRefs";
/// `Reachable`: the controller has contact with the exporting cluster's API server.
pub const REACHABLE: &str = "Reachable";
/// `Consistent`: the entries of an import agree with the oldest pool.
pub const CONSISTENT: &str = "Consistent";
/// `Exported`, on a pool: where its export stands.
pub const EXPORTED: &str = "Exported";
/// `Programmed`: the data plane has it.
pub const PROGRAMMED: &str = "Programmed";
/// `HostnamesKnown`, on a parent of an entry: its host names are those under which it leads to the pool.
pub const HOSTNAMES_KNOWN: &str = "HostnamesKnown";
/// `LoopFree`, on a parent of an entry: nothing on it leads back to the import.
pub const LOOP_FREE: &str = "LoopFree";
/// `PartiallyInvalid`: some rules of a route are not served.
pub const PARTIALLY_INVALID: &str = "PartiallyInvalid";
/// `Conflicted`, on a listener.
pub const CONFLICTED: &str = "Conflicted";
/// `OverlappingTLSConfig`, on a listener: another one with TLS shares hosts and port with it.
pub const OVERLAPPING_TLS_CONFIG: &str = "OverlappingTLSConfig";

/// Three-valued condition status, as `metav1.Condition` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The condition holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    Unknown,
}

impl Status {
    /// `True`, `False` or `Unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Largest message we write, in bytes: a condition is read by people, and an import holds many.
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// A condition without a time yet: [`stamp`] gives it one. The message is cut at [`MAX_MESSAGE_BYTES`].
pub fn make(
    type_: &str,
    status: Status,
    reason: &str,
    message: impl Into<String>,
    observed_generation: Option<i64>,
) -> Condition {
    let mut message = message.into();
    message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
    Condition {
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        message,
        observed_generation,
        reason: reason.to_owned(),
        status: status.as_str().to_owned(),
        type_: type_.to_owned(),
    }
}

/// Gives each wanted condition its `lastTransitionTime`: that of the live one where the status is the same, else `now`.
pub fn stamp(mut wanted: Vec<Condition>, live: &[Condition], now: Timestamp) -> Vec<Condition> {
    for condition in &mut wanted {
        let kept = find(live, &condition.type_).filter(|old| old.status == condition.status);
        condition.last_transition_time =
            kept.map_or(Time(now), |old| old.last_transition_time.clone());
    }
    wanted
}

/// Replaces the condition of the same type in `conditions`, or adds it at the end; its time moves only with its status.
pub fn set(conditions: &mut Vec<Condition>, wanted: Condition, now: Timestamp) {
    let stamped = stamp(vec![wanted], conditions, now);
    for condition in stamped {
        match conditions
            .iter_mut()
            .find(|old| old.type_ == condition.type_)
        {
            Some(old) => *old = condition,
            None => conditions.push(condition),
        }
    }
}

/// Whether two lists say the same, whatever their times and order.
pub fn same(a: &[Condition], b: &[Condition]) -> bool {
    a.len() == b.len()
        && a.iter().all(|one| {
            find(b, &one.type_).is_some_and(|other| {
                one.status == other.status
                    && one.reason == other.reason
                    && one.message == other.message
                    && one.observed_generation == other.observed_generation
            })
        })
}

/// The condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition is there and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == Status::True.as_str())
}

/// Whether the condition is there and `False`.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == Status::False.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_time(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn mk(status: Status, reason: &str) -> Condition {
        make(READY, status, reason, "text", Some(1))
    }

    #[test]
    fn time_moves_only_with_the_status() {
        let mut live = Vec::new();
        set(&mut live, mk(Status::True, "Ready"), mk_time(10));
        set(&mut live, mk(Status::True, "StillReady"), mk_time(20));
        assert_eq!(live[0].last_transition_time, Time(mk_time(10)));
        assert_eq!(live[0].reason, "StillReady");
        set(&mut live, mk(Status::False, "Gone"), mk_time(30));
        assert_eq!(live[0].last_transition_time, Time(mk_time(30)));
        assert_eq!(live.len(), 1);
    }

    #[test]
    fn lists_that_differ_in_time_and_order_alone_are_the_same() {
        let one = stamp(
            vec![
                mk(Status::True, "Ready"),
                make(ACCEPTED, Status::True, "Accepted", "", None),
            ],
            &[],
            mk_time(1),
        );
        let mut other = stamp(one.clone(), &[], mk_time(2));
        other.reverse();
        assert!(same(&one, &other));
        other[0].message.push('!');
        assert!(!same(&one, &other));
        assert!(!same(&one, &one[..1]));
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let long = "ä".repeat(MAX_MESSAGE_BYTES);
        let condition = make(READY, Status::True, "Ready", long, None);
        assert_eq!(condition.message.len(), MAX_MESSAGE_BYTES);
        let odd = format!("x{}", "ä".repeat(MAX_MESSAGE_BYTES));
        let condition = make(READY, Status::True, "Ready", odd, None);
        assert_eq!(condition.message.len(), MAX_MESSAGE_BYTES - 1);
    }

    #[test]
    fn an_absent_condition_is_neither_true_nor_false() {
        assert!(!is_true(&[], READY));
        assert!(!is_false(&[], READY));
        let unknown = [mk(Status::Unknown, "Stale")];
        assert!(!is_true(&unknown, READY));
        assert!(!is_false(&unknown, READY));
    }
}
