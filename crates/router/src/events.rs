//! Where workers publish their KV events.

use std::{fmt, net::SocketAddr, str::FromStr, sync::Arc};

use scheduling::Labels;

/// The ports of an engine's first rank, rank 0 of all its nodes; a further rank has those above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPorts {
    /// Where events are published.
    pub events: u16,
    /// Where the last of them are published again.
    pub replay: Option<u16>,
    /// The rank that the first rank of a pod has.
    pub first_rank: FirstRank,
    /// Number of ranks of a pod.
    pub ranks: u8,
}

/// The number of a pod's first data parallel rank, counted over all nodes of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstRank {
    /// The same number in each pod.
    Fixed(u16),
    /// The value of this label of the pod.
    Label(Arc<str>),
    /// The number of ranks in all earlier pods, where this label of the pod has the number of the pod.
    Index(Arc<str>),
}

/// Why the ports of a worker's events are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPorts {
    /// The worker's pod does not have the label.
    #[error(
        "its pod has no label {0}, which --kv-event-first-rank names: its KV events are not followed; add it to the template of the pods"
    )]
    MissingLabel(Arc<str>),
    /// The value of the label is not a number.
    #[error(
        "the label {0} of its pod is not a number from 0 to 65535, as --kv-event-first-rank expects: its KV events are not followed"
    )]
    OddLabel(Arc<str>),
    /// The number of the port would be above 65535.
    #[error(
        "its first rank is {0}, and the port of its KV events above 65535: they are not followed; lower --kv-event-port and --kv-event-replay-port"
    )]
    AboveRange(u32),
}

// === impl EventPorts ===

impl EventPorts {
    /// The ports of one rank of the worker at this address, whose pod has these labels.
    ///
    /// # Errors
    /// [`NoPorts`] when the labels do not determine them.
    pub(crate) fn of(
        &self,
        worker: SocketAddr,
        rank: u8,
        labels: &Labels,
    ) -> Result<(SocketAddr, Option<SocketAddr>), NoPorts> {
        let first = self.first_rank.of(labels, self.ranks)?;
        let at = |port: u16| {
            let port = u32::from(port) + first + u32::from(rank);
            let port = u16::try_from(port).map_err(|_| NoPorts::AboveRange(first))?;
            Ok(SocketAddr::new(worker.ip(), port))
        };
        Ok((at(self.events)?, self.replay.map(at).transpose()?))
    }
}

// === impl FirstRank ===

impl FirstRank {
    fn of(&self, labels: &Labels, ranks: u8) -> Result<u32, NoPorts> {
        let (key, times) = match self {
            Self::Fixed(rank) => return Ok((*rank).into()),
            Self::Label(key) => (key, 1),
            Self::Index(key) => (key, u32::from(ranks)),
        };
        let value = labels
            .get(key)
            .ok_or_else(|| NoPorts::MissingLabel(Arc::clone(key)))?;
        let number: Result<u16, _> = value.parse();
        let number = number.map_err(|_| NoPorts::OddLabel(Arc::clone(key)))?;
        Ok(u32::from(number) * times)
    }
}

impl FromStr for FirstRank {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (how, key) = text.split_once(':').unwrap_or((text, ""));
        match how {
            "label" if !key.is_empty() => Ok(Self::Label(key.into())),
            "index" if !key.is_empty() => Ok(Self::Index(key.into())),
            _ => text.parse().map(Self::Fixed).map_err(|_| {
                format!(
                    "{text:?}: expected a number from 0 to 65535, label:KEY or index:KEY, such as index:apps.kubernetes.io/pod-index"
                )
            }),
        }
    }
}

impl fmt::Display for FirstRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(rank) => rank.fmt(f),
            Self::Label(key) => write!(f, "label:{key}"),
            Self::Index(key) => write!(f, "index:{key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The second of two ranks in the third pod of a `StatefulSet`, whose label `first` is wrong.
    #[rstest]
    #[case("0", Ok("10.0.0.1:5558 10.0.0.1:5658"))]
    #[case("6", Ok("10.0.0.1:5564 10.0.0.1:5664"))]
    #[case("label:pod-index", Ok("10.0.0.1:5560 10.0.0.1:5660"))]
    #[case("index:pod-index", Ok("10.0.0.1:5562 10.0.0.1:5662"))]
    #[case("65000", Err("its first rank is 65000"))]
    #[case("label:other", Err("no label other"))]
    #[case("index:first", Err("the label first of its pod is not a number"))]
    fn ports_count_up_from_the_first_rank_of_the_pod(
        #[case] first: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let ports = EventPorts {
            events: 5557,
            replay: Some(5657),
            first_rank: first.parse().unwrap(),
            ranks: 2,
        };
        assert_eq!(ports.first_rank.to_string(), first);
        let labels = [("pod-index", "2"), ("first", "-1")];
        let labels = labels.map(|(key, value)| (key.into(), value.into()));
        let found = ports.of(([10, 0, 0, 1], 8000).into(), 1, &labels.into());
        match (found, expected) {
            (Ok((events, replay)), Ok(expected)) => {
                assert_eq!(format!("{events} {}", replay.unwrap()), expected);
            }
            (found, expected) => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains(expected.unwrap_err()), "{error}");
            }
        }
    }
}
