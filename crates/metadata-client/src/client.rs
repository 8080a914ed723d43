//! What an endpoint picker holds of a Metadata-Center.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use metadata::{
    Address, Cluster,
    wire::{
        cache::Save,
        pick::{MAX_COUNT, Pick, Picks},
    },
};
use moment::Clock;
use serde::de::DeserializeOwned;

use crate::{
    answer::Unavailable,
    cache_calls::CacheCalls,
    calls::Named,
    metrics::{ClientCollector, FullBatches},
    outboxes::{Charges, Outboxes, TooManyClusters},
    reporter::Reporter,
    run::Tasks,
    saves::Saves,
    service::Service,
    settings::{Api, Settings},
    transport::{Trace, Transport},
};

/// Asks a Metadata-Center and reports to it. Cheap to clone.
pub struct Client<T: Transport> {
    pub(crate) shared: Arc<Shared<T>>,
}

/// What requests and tasks share.
pub(crate) struct Shared<T: Transport> {
    pub(crate) settings: Arc<Settings>,
    pub(crate) service: Service<T>,
    pub(crate) outboxes: Outboxes,
    pub(crate) saves: Saves,
    pub(crate) cache_calls: CacheCalls,
    pub(crate) full_batches: FullBatches,
    pub(crate) reporter: Reporter,
    /// A [`Degraded`] of the last answer that a request waited for, as bits.
    reads: AtomicU8,
}

/// What the service does not give just now; label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// Load.
    Load,
    /// Prompt caches.
    Cache,
    /// Both; no pick.
    Both,
    /// What is reported does not reach it.
    Writes,
}

// === impl Client ===

impl<T: Transport> Client<T> {
    /// A client, and the tasks that it needs: until they run, the service has no address.
    pub fn new(settings: Settings, transport: T, clock: Clock) -> (Self, Tasks<T>) {
        let settings = Arc::new(settings);
        let shared = Arc::new(Shared {
            service: Service::new(transport, clock),
            outboxes: Outboxes::new(Arc::clone(&settings), clock),
            saves: Saves::default(),
            cache_calls: CacheCalls::default(),
            full_batches: FullBatches::default(),
            reporter: Reporter::new(&settings),
            reads: AtomicU8::new(0),
            settings,
        });
        let tasks = Tasks::new(Arc::clone(&shared));
        (Self { shared }, tasks)
    }

    /// Picks and reserves in one step. The caller checks that it is an endpoint that it asked for.
    ///
    /// # Errors
    /// [`Unavailable`] after the timeout of the settings at the latest. The service may have made a reservation even so.
    pub async fn pick(&self, pick: &Pick, trace: &Trace) -> Result<Picks, Unavailable> {
        let picks = self.shared.pick(pick, trace).await;
        let missing = picks.as_ref().err().map(|_| Degraded::Both);
        self.shared.note_read(missing);
        picks
    }

    /// What requests of a cluster report through.
    ///
    /// # Errors
    /// [`TooManyClusters`] beyond 1024.
    pub fn charges(&self, cluster: &Cluster) -> Result<Charges, TooManyClusters> {
        self.shared.outboxes.charges(cluster)
    }

    /// An endpoint has a prompt. Where too many wait, the oldest is dropped. Nothing is sent to a service without calls for caches.
    pub fn save(&self, save: Save) {
        if !self.shared.cache_calls.are_missing() {
            self.shared.saves.save(save);
        }
    }

    /// An endpoint is gone or restarted: it has no prompt any more. The former service has no such call: nothing is sent to it.
    pub fn purge(&self, cluster: Cluster, ip: Address) {
        if self.shared.settings.api == Api::Isthmus {
            self.shared.saves.purge(cluster, ip);
        }
    }

    /// What the service does not give just now: as the last answer was, and as the last reports were.
    pub fn degraded(&self) -> impl Iterator<Item = (Degraded, bool)> {
        let reads = self.shared.reads.load(Relaxed);
        let writes = u8::from(self.shared.outboxes.is_failing()) * Degraded::Writes.bit();
        let state = reads | writes;
        Degraded::ALL
            .map(|it| (it, state & it.bit() != 0))
            .into_iter()
    }

    /// Serves `epp_metadata_*`.
    pub fn collector(&self) -> ClientCollector<T> {
        ClientCollector(Arc::clone(&self.shared))
    }
}

impl<T: Transport> Clone for Client<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T: Transport> fmt::Debug for Client<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl<T: Transport> Shared<T> {
    async fn pick(&self, pick: &Pick, trace: &Trace) -> Result<Picks, Unavailable> {
        let named = Named::pick(pick)?.with_trace(trace);
        let picks: Option<Picks> = self.service.read(named, self.settings.timeout).await?;
        let picks = picks.ok_or_else(|| Unavailable::Malformed("it has no data".to_owned()))?;
        let count = picks.picks.len();
        if count == 0 || count > MAX_COUNT as usize {
            let problem = format!("it names {count} endpoints: expected 1 to {MAX_COUNT}");
            return Err(Unavailable::Malformed(problem));
        }
        if i32::try_from(picks.charge).is_ok_and(|charge| charge >= 0) {
            return Ok(picks);
        }
        let problem = format!("its charge is {}: expected 0 to 2147483647", picks.charge);
        Err(Unavailable::Malformed(problem))
    }

    pub(crate) fn note_read(&self, missing: Option<Degraded>) {
        let bits = missing.map_or(0, Degraded::bit);
        if self.reads.load(Relaxed) != bits {
            self.reads.store(bits, Relaxed);
        }
    }

    /// A call that no request waits for.
    pub(crate) async fn write<R: DeserializeOwned>(
        &self,
        named: Named,
    ) -> Result<Option<R>, Unavailable> {
        let within = self.settings.async_timeout;
        self.service.write(named, within).await
    }
}

// === impl Degraded ===

impl Degraded {
    /// All that there is.
    pub const ALL: [Self; 4] = [Self::Load, Self::Cache, Self::Both, Self::Writes];

    /// Stable: metric label and field of the access log alike.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Cache => "cache",
            Self::Both => "both",
            Self::Writes => "writes",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}
