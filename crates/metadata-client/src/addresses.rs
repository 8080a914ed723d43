//! The addresses of the service, asked in turn, each behind a breaker.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use moment::Moment;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::breaker::{Admission, Breaker, Position};

/// More are not used: each has connections and a series of metrics. A service of so many replicas has other troubles.
pub(crate) const MAX_ADDRESSES: usize = 32;

/// Those of the last resolution.
#[derive(Debug)]
pub(crate) struct Addresses<P> {
    targets: ArcSwap<Vec<Arc<Target<P>>>>,
    /// Whose turn it is.
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Target<P> {
    address: SocketAddr,
    peer: P,
    /// The breaker is closed and the last call succeeded: most calls then take no lock.
    is_calm: AtomicBool,
    breaker: Mutex<Breaker>,
}

/// A call that may go to an address. How it went is to be recorded; else it counts as never made.
#[derive(Debug)]
pub(crate) struct Trial<P> {
    target: Arc<Target<P>>,
    is_probe: bool,
    is_recorded: bool,
}

/// Who asks for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A request waits: it probes an address only if no other is closed.
    Read,
    /// Nobody waits, and whoever asks tries again after a time that grows: one that is not let through anywhere goes all
    /// the same, and its end decides nothing. So what is reported is complete again soon after the service is back.
    Write,
}

/// Why there is no address to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTrial {
    /// The service has none, or none is known yet.
    NoAddress,
    /// All breakers are open.
    AllOpen,
}

// === impl Addresses ===

impl<P> Addresses<P> {
    pub(crate) fn new() -> Self {
        Self {
            targets: ArcSwap::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// What is still there keeps its connections and its breaker.
    pub(crate) fn replace(&self, mut found: Vec<SocketAddr>, peer: impl Fn(SocketAddr) -> P) {
        found.sort_unstable();
        found.dedup();
        found.truncate(MAX_ADDRESSES);
        let old = self.targets.load();
        if old.iter().map(|it| it.address).eq(found.iter().copied()) {
            return;
        }
        let target = |address| {
            let kept = old.iter().find(|it| it.address == address);
            kept.cloned()
                .unwrap_or_else(|| Arc::new(Target::new(address, peer(address))))
        };
        let targets = found.into_iter().map(target).collect();
        self.targets.store(Arc::new(targets));
    }

    /// The next address that may be called; one other than `except` takes no turn.
    pub(crate) fn admit(
        &self,
        asker: Asker,
        except: Option<SocketAddr>,
        now: Moment,
    ) -> Result<Trial<P>, NoTrial> {
        let targets = self.targets.load();
        let step = usize::from(except.is_none());
        let turn = self.turn.fetch_add(step, Relaxed);
        let in_turn = || {
            let from = turn.checked_rem(targets.len()).unwrap_or(0);
            let (before, after) = targets.split_at(from);
            let all = after.iter().chain(before);
            all.filter(|it| Some(it.address) != except)
        };
        if asker == Asker::Read
            && let Some(target) = in_turn().find(|it| it.is_closed())
        {
            return Ok(target.trial(false));
        }
        for target in in_turn() {
            match target.admit(now) {
                Admission::Call => return Ok(target.trial(false)),
                Admission::Probe => return Ok(target.trial(true)),
                Admission::Refused => {}
            }
        }
        let target = in_turn().next().ok_or(NoTrial::NoAddress)?;
        match asker {
            Asker::Read => Err(NoTrial::AllOpen),
            Asker::Write => Ok(target.trial(false)),
        }
    }

    /// Each address with its breaker.
    pub(crate) fn positions(&self) -> Vec<(SocketAddr, Position)> {
        let targets = self.targets.load();
        let position = |it: &Arc<Target<P>>| (it.address, it.breaker.lock().position());
        targets.iter().map(position).collect()
    }
}

// === impl Target ===

impl<P> Target<P> {
    fn new(address: SocketAddr, peer: P) -> Self {
        Self {
            address,
            peer,
            is_calm: AtomicBool::new(true),
            breaker: Mutex::new(Breaker::new()),
        }
    }

    fn is_closed(&self) -> bool {
        self.is_calm.load(Relaxed) || self.breaker.lock().position() == Position::Closed
    }

    fn admit(&self, now: Moment) -> Admission {
        if self.is_calm.load(Relaxed) {
            return Admission::Call;
        }
        self.breaker.lock().admit(now)
    }

    fn trial(self: &Arc<Self>, is_probe: bool) -> Trial<P> {
        Trial {
            target: Arc::clone(self),
            is_probe,
            is_recorded: false,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Breaker)) {
        let mut breaker = self.breaker.lock();
        let before = breaker.position();
        change(&mut breaker);
        let after = breaker.position();
        self.is_calm.store(breaker.is_calm(), Relaxed);
        drop(breaker);
        let address = self.address;
        match (before, after) {
            (Position::Closed, Position::Open) => {
                warn!(%address, "the Metadata-Center failed too often here: no request asks this address until probes succeed");
            }
            (Position::HalfOpen, Position::Closed) => {
                info!(%address, "the Metadata-Center answers here again");
            }
            _ => {}
        }
    }
}

// === impl Trial ===

impl<P> Trial<P> {
    pub(crate) fn address(&self) -> SocketAddr {
        self.target.address
    }

    pub(crate) fn peer(&self) -> &P {
        &self.target.peer
    }

    pub(crate) fn record_success(mut self) {
        self.is_recorded = true;
        if !self.target.is_calm.load(Relaxed) {
            let is_probe = self.is_probe;
            self.target.change(|it| it.record_success(is_probe));
        }
    }

    pub(crate) fn record_failure(mut self, now: Moment) {
        self.is_recorded = true;
        let is_probe = self.is_probe;
        self.target.change(|it| it.record_failure(is_probe, now));
    }
}

impl<P> Drop for Trial<P> {
    fn drop(&mut self) {
        if self.is_probe && !self.is_recorded {
            self.target.change(Breaker::abandon_probe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::START;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 8080))
    }

    fn mk_addresses(lasts: &[u8]) -> Addresses<SocketAddr> {
        let addresses = Addresses::new();
        let found = lasts.iter().map(|last| address(*last)).collect();
        addresses.replace(found, |it| it);
        addresses
    }

    fn open(addresses: &Addresses<SocketAddr>, last: u8) {
        let others: Vec<_> = addresses.positions();
        assert!(others.iter().any(|(it, _)| *it == address(last)));
        for _ in 0..10 * others.len() {
            let trial = addresses.admit(Asker::Write, None, NOW).unwrap();
            if trial.address() == address(last) {
                trial.record_failure(NOW);
            } else {
                trial.record_success();
            }
        }
    }

    #[test]
    fn addresses_have_their_turns() {
        let addresses = mk_addresses(&[2, 1, 2]);
        let next = || {
            let trial = addresses.admit(Asker::Read, None, NOW);
            trial.unwrap().address()
        };
        assert_eq!([next(), next(), next()], [1, 2, 1].map(address));
        let other = addresses.admit(Asker::Read, Some(address(2)), NOW);
        assert_eq!(other.unwrap().address(), address(1));
        let none = mk_addresses(&[1]).admit(Asker::Read, Some(address(1)), NOW);
        assert_eq!(none.unwrap_err(), NoTrial::NoAddress);
    }

    #[test]
    fn an_open_address_is_passed_over() {
        let addresses = mk_addresses(&[1, 2]);
        open(&addresses, 1);
        for _ in 0..4 {
            let trial = addresses.admit(Asker::Write, None, NOW).unwrap();
            assert_eq!(trial.address(), address(2));
        }
        let position = |at: usize| addresses.positions()[at].1;
        assert_eq!(
            (position(0), position(1)),
            (Position::Open, Position::Closed)
        );
    }

    #[test]
    fn where_all_are_open_requests_are_refused_and_reports_are_not() {
        let addresses = mk_addresses(&[1]);
        open(&addresses, 1);
        let refused = |now| addresses.admit(Asker::Read, None, now).err();
        assert_eq!(refused(NOW), Some(NoTrial::AllOpen));
        let write = addresses.admit(Asker::Write, None, NOW).unwrap();
        write.record_success();
        assert_eq!(refused(NOW), Some(NoTrial::AllOpen));
        let later = Moment::from_millis(5000);
        let probe = addresses.admit(Asker::Read, None, later).unwrap();
        assert_eq!(refused(later), Some(NoTrial::AllOpen));
        // Nobody waits for it any more.
        drop(probe);
        assert_eq!(refused(later), None);
    }

    #[test]
    fn no_request_probes_while_another_address_is_closed() {
        let addresses = mk_addresses(&[1, 2]);
        open(&addresses, 1);
        let later = Moment::from_millis(5000);
        let read = || {
            let trial = addresses.admit(Asker::Read, None, later);
            trial.unwrap().address()
        };
        assert_eq!([read(), read()], [2, 2].map(address));
        let mut writes = [(); 2].map(|()| addresses.admit(Asker::Write, None, later).unwrap());
        writes.sort_by_key(Trial::address);
        assert_eq!(writes.map(|it| it.address()), [1, 2].map(address));
    }

    #[test]
    fn an_address_that_stays_keeps_its_breaker() {
        let addresses = mk_addresses(&[1, 2]);
        open(&addresses, 1);
        addresses.replace(vec![address(1), address(3)], |it| it);
        let positions = addresses.positions();
        assert_eq!(
            positions,
            [(address(1), Position::Open), (address(3), Position::Closed)]
        );
    }
}
