//! Flags of what is published of the KV cache.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use process::ConfigError;

use super::listen::Place;

/// KV-cache events.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct KvEventArgs {
    /// Publish over ZeroMQ on this port what the KV cache stores and removes, as vLLM does; each data-parallel rank
    /// on its own port, counted up; 0 takes a free one and logs it [default: nothing is published]
    #[arg(long, env = "KV_EVENTS_PORT", value_name = "PORT")]
    kv_events_port: Option<u16>,

    /// Replay the last 10000 batches of KV-cache events on this port, counted up as --kv-events-port
    /// [default: no replay]
    #[arg(
        long,
        env = "KV_REPLAY_PORT",
        value_name = "PORT",
        requires = "kv_events_port"
    )]
    kv_replay_port: Option<u16>,

    /// How KV-cache events and replays are written: map, as vLLM does since 0.26, or array, as it did before
    #[arg(long, env = "KV_EVENTS_FORM", value_enum, default_value_t = EventForm::Map)]
    kv_events_form: EventForm,
}

/// How events are written. A batch is an array in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EventForm {
    /// Values in a fixed order; replays have no topic.
    Array,
    /// Names and values, without those that are nothing by default; replays have the topic.
    Map,
}

/// What one rank publishes of its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvEventSettings {
    /// Where it publishes.
    pub events: SocketAddr,
    /// Where it replays.
    pub replay: Option<SocketAddr>,
    /// How it is written.
    pub form: EventForm,
    /// Its number among the ranks of all nodes.
    pub rank: u16,
}

// === impl KvEventArgs ===

impl KvEventArgs {
    /// What the rank at this place publishes.
    ///
    /// # Errors
    /// [`ConfigError`] when there are fewer ports than needed, or one for two purposes.
    pub(super) fn at(&self, place: &Place) -> Result<Option<KvEventSettings>, ConfigError> {
        let Place {
            address,
            rank,
            ranks,
            first_rank,
            ..
        } = *place;
        let Self {
            kv_events_port,
            kv_replay_port,
            kv_events_form: form,
        } = *self;
        let Some(events) = kv_events_port else {
            return Ok(None);
        };
        let ports = |first: u16| first..=first.saturating_add(ranks - 1);
        let last_rank = first_rank.saturating_add(ranks - 1);
        let is_too_high = |first: u16| first > 0 && first.checked_add(last_rank).is_none();
        let overlap = kv_replay_port
            .filter(|replay| events > 0 && *replay > 0 && events.abs_diff(*replay) < ranks);
        if let Some(replay) = overlap {
            return Err(ConfigError::new(
                format!(
                    "--kv-events-port {events} with --kv-replay-port {replay} and {ranks} ranks"
                ),
                format!("{ranks} ports each, counted up, that have none in common"),
                format!(
                    "--kv-events-port {events} --kv-replay-port {}",
                    ports(events).end().saturating_add(1)
                ),
            ));
        }
        if is_too_high(events) || kv_replay_port.is_some_and(is_too_high) {
            return Err(ConfigError::new(
                format!("--kv-events-port or --kv-replay-port with rank {last_rank}"),
                "a port for each rank, counted up, below 65536",
                "--kv-events-port 5557 --kv-replay-port 5657",
            ));
        }
        let rank = first_rank.saturating_add(rank);
        let own = |first: u16| if first == 0 { 0 } else { first + rank };
        Ok(Some(KvEventSettings {
            events: SocketAddr::new(address.ip(), own(events)),
            replay: kv_replay_port.map(|replay| SocketAddr::new(address.ip(), own(replay))),
            form,
            rank,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_args(events: Option<u16>, replay: Option<u16>) -> KvEventArgs {
        KvEventArgs {
            kv_events_port: events,
            kv_replay_port: replay,
            kv_events_form: EventForm::Array,
        }
    }

    fn mk_place(rank: u16, first_rank: u16) -> Place {
        Place {
            address: SocketAddr::from(([10, 0, 0, 1], 8000 + rank)),
            server: None,
            rank,
            ranks: 4,
            first_rank,
            has_shared_ports: false,
        }
    }

    #[test]
    fn each_rank_has_ports_of_its_own() {
        let settings = mk_args(Some(5557), Some(5657)).at(&mk_place(2, 0)).unwrap();
        let settings = settings.expect("published");
        assert_eq!(settings.events.to_string(), "10.0.0.1:5559");
        assert_eq!(settings.replay, Some(([10, 0, 0, 1], 5659).into()));
        assert_eq!(mk_args(None, None).at(&mk_place(2, 0)).unwrap(), None);
        let free = mk_args(Some(0), Some(0)).at(&mk_place(2, 0)).unwrap();
        assert_eq!(free.map(|it| it.events.port()), Some(0));
        // the second node of an engine
        let second = mk_args(Some(5557), None).at(&mk_place(2, 4)).unwrap();
        let second = second.map(|it| (it.events.port(), it.rank));
        assert_eq!(second, Some((5563, 6)));
    }

    #[test]
    fn ports_that_meet_or_end_are_refused() {
        for (events, replay) in [(5557, 5558), (5558, 5557), (65_534, 1), (1, 65_534)] {
            let error = mk_args(Some(events), Some(replay)).at(&mk_place(0, 0));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("--kv-events-port"), "{error}");
        }
        let beyond = mk_args(Some(65_530), None).at(&mk_place(0, 9));
        let error = beyond.unwrap_err().to_string();
        assert!(error.contains("--kv-events-port"), "{error}");
        let one = Place {
            ranks: 1,
            ..mk_place(0, 0)
        };
        assert!(mk_args(Some(5557), Some(5558)).at(&one).is_ok());
    }
}
