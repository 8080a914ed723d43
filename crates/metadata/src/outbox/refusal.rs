//! What a client does about a batch that was refused.

use crate::{fault::Fault, wire::batch::Refused};

/// Why the service refused a batch, as far as the outbox minds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no live lease.
    LeaseLost,
    /// The instance reports with a higher epoch, which may be named.
    StaleEpoch {
        /// The highest one.
        current: Option<u64>,
    },
    /// The owner's batches are further.
    StaleSeq {
        /// The last that was applied, where it is named.
        last: Option<u64>,
        /// It is this very batch: its first reply was lost. Otherwise another program reports as this owner.
        applied: bool,
    },
    /// Something else, such as a limit: the same may be accepted later.
    Other,
}

// === impl Refusal ===

impl Refusal {
    /// From the reply: the `reason` of its error and its `data`.
    pub fn new(reason: &str, data: &Refused) -> Self {
        let Refused {
            applied,
            current,
            last,
        } = *data;
        match reason {
            "lease-lost" => Self::LeaseLost,
            "stale-epoch" => Self::StaleEpoch { current },
            "stale-seq" => Self::StaleSeq {
                last,
                applied: applied == Some(true),
            },
            _ => Self::Other,
        }
    }

    /// The next batch is not to wait: it is what the service asks for.
    pub(super) fn asks_for_full(self) -> bool {
        !matches!(self, Self::Other)
    }
}

impl From<&Fault> for Refusal {
    fn from(fault: &Fault) -> Self {
        let data = Refused::beside(fault).unwrap_or_default();
        Self::new(fault.reason(), &data)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fault::Bound;

    #[rstest]
    #[case(Fault::LeaseLost, Refusal::LeaseLost)]
    #[case(Fault::StaleEpoch { current: 7 }, Refusal::StaleEpoch { current: Some(7) })]
    #[case(
        Fault::StaleSeq { last: 3, applied: true },
        Refusal::StaleSeq { last: Some(3), applied: true }
    )]
    #[case(
        Fault::StaleSeq { last: 3, applied: false },
        Refusal::StaleSeq { last: Some(3), applied: false }
    )]
    #[case(Fault::Limit(Bound::Requests), Refusal::Other)]
    fn the_client_reads_what_the_service_says(#[case] fault: Fault, #[case] refusal: Refusal) {
        assert_eq!(Refusal::from(&fault), refusal);
    }
}
