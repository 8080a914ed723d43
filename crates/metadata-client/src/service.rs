//! The service as it is called: addresses in turn, deadlines, breakers, and what is noticed of it on the way.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use moment::{Clock, Moment};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{sleep, timeout_at},
};
use tracing::{debug, info, warn};

use crate::{
    addresses::{Addresses, Asker, NoTrial, Trial},
    answer::{self, Unavailable},
    breaker::Position,
    calls::Named,
    metrics::CallMetrics,
    transport::{Peer, Transport},
};

/// Between two looks for addresses.
const RESOLVE_EACH: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Service<T: Transport> {
    transport: T,
    addresses: Addresses<T::Peer>,
    clock: Clock,
    /// Which life of the service's state the last answer was from.
    boot: watch::Sender<Option<u64>>,
    /// The same, read with each answer. 0 is no life's.
    last_boot: AtomicU64,
    calls: CallMetrics,
}

// === impl Service ===

impl<T: Transport> Service<T> {
    pub(crate) fn new(transport: T, clock: Clock) -> Self {
        Self {
            transport,
            addresses: Addresses::new(),
            clock,
            boot: watch::Sender::new(None),
            last_boot: AtomicU64::new(0),
            calls: CallMetrics::new(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn calls(&self) -> &CallMetrics {
        &self.calls
    }

    pub(crate) fn positions(&self) -> Vec<(SocketAddr, Position)> {
        self.addresses.positions()
    }

    /// 0: nothing was answered yet.
    pub(crate) fn last_boot(&self) -> u64 {
        self.last_boot.load(Relaxed)
    }

    /// Lives of the service's state.
    pub(crate) fn boots(&self) -> watch::Receiver<Option<u64>> {
        self.boot.subscribe()
    }

    /// A call that a request waits for. Where the connection breaks, or the replica is not there for calls just now, it is
    /// tried once more at another address, if half of the time is left.
    pub(crate) async fn read<R: DeserializeOwned>(
        &self,
        named: Named,
        within: Duration,
    ) -> Result<Option<R>, Unavailable> {
        let start = self.now();
        let deadline = start + within;
        let trial = self.admit(&named, Asker::Read)?;
        let address = trial.address();
        let result = self.exchange(trial, named.clone(), deadline, within).await;
        let Err(error) = &result else {
            return result;
        };
        if !error.is_of_one_address() || self.now().since(start) * 2 > within {
            return result;
        }
        let other = self.addresses.admit(Asker::Read, Some(address), self.now());
        match other {
            Ok(trial) => self.exchange(trial, named, deadline, within).await,
            Err(_) => result,
        }
    }

    /// A call that nobody waits for.
    pub(crate) async fn write<R: DeserializeOwned>(
        &self,
        named: Named,
        within: Duration,
    ) -> Result<Option<R>, Unavailable> {
        let trial = self.admit(&named, Asker::Write)?;
        let deadline = self.now() + within;
        self.exchange(trial, named, deadline, within).await
    }

    /// Looks for the service's addresses again and again.
    pub(crate) async fn resolve(&self) {
        let mut is_failing = false;
        loop {
            let error = match self.transport.resolve().await {
                Ok(found) if found.is_empty() => Some("no address".to_owned()),
                Ok(found) => {
                    self.addresses.replace(found, |it| self.transport.peer(it));
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            match &error {
                None if is_failing => info!("the Metadata-Center's addresses are found again"),
                Some(error) if !is_failing => {
                    warn!(
                        error,
                        "the Metadata-Center's addresses are not found: former ones count; this is logged once"
                    );
                }
                _ => debug!(error, "looked for the Metadata-Center's addresses"),
            }
            is_failing = error.is_some();
            sleep(RESOLVE_EACH).await;
        }
    }

    /// Closes all connections. No call succeeds after it.
    pub(crate) async fn close(&self) {
        self.addresses
            .replace(Vec::new(), |it| self.transport.peer(it));
        self.transport.closed().await;
    }

    fn admit(&self, named: &Named, asker: Asker) -> Result<Trial<T::Peer>, Unavailable> {
        let trial = self.addresses.admit(asker, None, self.now());
        trial.map_err(|none| {
            let why = Unavailable::from(none);
            self.calls.observe(named.name, Some(&why), Duration::ZERO);
            why
        })
    }

    async fn exchange<R: DeserializeOwned>(
        &self,
        trial: Trial<T::Peer>,
        Named { name, call }: Named,
        deadline: Moment,
        within: Duration,
    ) -> Result<Option<R>, Unavailable> {
        let start = self.now();
        let reply = trial.peer().call(call);
        let result = match timeout_at(self.clock.instant(deadline), reply).await {
            Err(_) => Err(Unavailable::Timeout(within)),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(reply)) => {
                // One that cannot reach its store does not know whether that lost anything.
                if !reply.status.is_server_error() {
                    self.note_boot(reply.boot);
                }
                answer::read(&reply)
            }
        };
        let now = self.now();
        let address = trial.address();
        let error = result.as_ref().err();
        match error {
            Some(error) if error.is_failure() => trial.record_failure(now),
            _ => trial.record_success(),
        }
        self.calls.observe(name, error, now.since(start));
        debug!(call = name.label(), %address, error = error.map(Unavailable::reason), "called");
        result
    }

    fn note_boot(&self, boot: Option<u64>) {
        let Some(boot) = boot else {
            return;
        };
        if self.last_boot.load(Relaxed) != boot {
            self.last_boot.store(boot, Relaxed);
            self.boot.send_replace(Some(boot));
        }
    }
}

// === impl Unavailable ===

impl From<NoTrial> for Unavailable {
    fn from(none: NoTrial) -> Self {
        match none {
            NoTrial::NoAddress => Self::NoAddress,
            NoTrial::AllOpen => Self::BreakerOpen,
        }
    }
}
