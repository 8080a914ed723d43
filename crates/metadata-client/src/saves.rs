//! Cache locations on their way to the service: the newest few.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use metadata::{Address, Cluster, wire::cache::Save};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    answer::Unavailable, backoff::Backoff, calls::Named, client::Shared, transport::Transport,
};

/// Saves that wait. They are hints: of what is older than these a repeated prompt tells again.
const MAX_SAVES: usize = 256;
/// Purges that wait: the endpoints of a cluster.
const MAX_PURGES: usize = 4096;
/// Saves on their way at once.
const AT_ONCE: usize = 4;

/// What waits. The lock is held for a push, or while a purge looks through the queue.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    queue: Mutex<Queue>,
    wake: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    saves: VecDeque<Save>,
    purges: VecDeque<(Cluster, Address)>,
}

/// What is sent next.
enum Next {
    Save(Save),
    /// Once no save is on its way: one that arrives later would undo it.
    Purge(Cluster, Address),
}

// === impl Saves ===

impl Saves {
    /// The endpoint has the prompt. The oldest save gives way.
    pub(crate) fn save(&self, save: Save) {
        let mut queue = self.queue.lock();
        if queue.saves.len() == MAX_SAVES {
            queue.saves.pop_front();
            self.dropped.fetch_add(1, Relaxed);
        }
        queue.saves.push_back(save);
        drop(queue);
        self.wake.notify_one();
    }

    /// The endpoint has nothing any more; saves of before do not count.
    pub(crate) fn purge(&self, cluster: Cluster, ip: Address) {
        let mut queue = self.queue.lock();
        queue
            .saves
            .retain(|save| save.ip != ip || save.cluster != cluster);
        let purge = (cluster, ip);
        if !queue.purges.contains(&purge) {
            if queue.purges.len() == MAX_PURGES {
                queue.purges.pop_front();
            }
            queue.purges.push_back(purge);
        }
        drop(queue);
        self.wake.notify_one();
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// None: nothing waits, or what waits is not to be sent beside what is under way.
    fn next(&self, under_way: usize) -> Option<Next> {
        let mut queue = self.queue.lock();
        match queue.purges.is_empty() {
            true if under_way < AT_ONCE => queue.saves.pop_front().map(Next::Save),
            false if under_way == 0 => {
                let purge = queue.purges.pop_front();
                purge.map(|(cluster, ip)| Next::Purge(cluster, ip))
            }
            _ => None,
        }
    }
}

/// Sends what waits until `stop`, then what is left.
pub(crate) async fn run<T: Transport>(shared: Arc<Shared<T>>, stop: CancellationToken) {
    let mut under_way: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
    loop {
        match shared.saves.next(under_way.len()) {
            // These saves waited when the service answered that it does not support the calls.
            Some(Next::Save(_)) if shared.cache_calls.are_missing() => continue,
            Some(Next::Save(save)) => {
                under_way.push(Box::pin(send(&shared, Named::save(&save), true)));
                continue;
            }
            Some(Next::Purge(cluster, ip)) => {
                send(&shared, Ok(Named::purge(&cluster, ip)), false).await;
                continue;
            }
            None => {}
        }
        if stop.is_cancelled() && under_way.is_empty() {
            return;
        }
        tokio::select! {
            () = shared.saves.wake.notified() => {}
            Some(()) = under_way.next() => {}
            () = stop.cancelled(), if !stop.is_cancelled() => {}
        }
    }
}

/// Until the service took it or refused it.
async fn send<T: Transport>(shared: &Shared<T>, named: Result<Named, Unavailable>, is_save: bool) {
    let mut backoff = Backoff::new();
    let named = match named {
        Ok(named) => named,
        Err(error) => return debug!(%error, "not sent"),
    };
    loop {
        let sent = shared.write::<serde_json::Value>(named.clone()).await;
        match sent {
            Ok(_) => return,
            Err(Unavailable::Refused(why)) => {
                if is_save {
                    shared.saves.dropped.fetch_add(1, Relaxed);
                }
                return debug!(%why, "a cache location is not taken");
            }
            Err(_) => {
                let wait = backoff.failed(&mut rand::rng());
                sleep(wait).await;
            }
        }
    }
}
