//! The pools watch: the absence of a pool counts only while its CRD exists, so the CRD is checked after every list and
//! every deletion before they are reported (K8). Events wait meanwhile, so their order holds.

use std::{collections::BTreeSet, time::Duration};

use crd::inference_pool::InferencePool;
use futures::StreamExt;
use kube::{Api, Client, Resource};
use tokio::time::sleep;
use watch::CrdState;

use super::{
    health::HealthEvent,
    project,
    under_way::{ListMemory, Seen},
    watches::{Gone, WatchContext},
};
use crate::{
    client::watch_config,
    index::{
        facts::CrdCheck,
        pools::MAX_POOLS,
        update::{Kind, Update},
    },
    name::{Key, opaque},
    seeded::{self, SeededFault},
};

const POOLS_CRD: &str = "inferencepools.inference.networking.k8s.io";
/// A CRD that was missing, terminating or hidden from us is checked again after this time without events.
const DOUBT_RETRY: Duration = Duration::from_secs(30);

/// Watches the pools of a member.
pub(super) async fn pools(ctx: WatchContext, client: Client) -> Result<(), Gone> {
    let memory = ListMemory::new(&ctx.under_way);
    let list = || {
        let (ours, adding) = (ctx.ours.clone(), memory.clone());
        let reduce = move |object: InferencePool| {
            let key = project::key_of(object.meta());
            let facts = project::pool(object, &ours);
            adding.add(Seen { key, facts })
        };
        Box::pin(watch::reduced(
            Api::all(client.clone()),
            watch_config(),
            reduce,
        ))
    };
    let mut stream = list();
    // a list or deletion was reported under a CRD that may be terminating
    let mut doubtful = false;
    // unreadable pools reported since the last list or failure: they precede the list that they are on
    let mut odd: BTreeSet<Key> = BTreeSet::new();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = sleep(DOUBT_RETRY), if doubtful => {
                if check_crd(&client).await != CrdCheck::Doubtful {
                    // only a list made after that is evidence
                    doubtful = false;
                    odd.clear();
                    stream = list();
                }
                continue;
            }
        };
        let Some(event) = event else {
            return Ok(());
        };
        match event {
            watch::Update::Reset(objects) => {
                let mut pools = Vec::new();
                for Seen { key, facts } in objects {
                    match facts {
                        Some(facts) => pools.push(facts),
                        None => odd.extend(key),
                    }
                }
                if !memory.end() {
                    odd.clear();
                    ctx.report(HealthEvent::Settled(Kind::Pools)).await?;
                    continue;
                }
                let crd = if odd.len() < MAX_POOLS {
                    check_crd(&client).await
                } else {
                    // some may have been left out: their absence is no evidence
                    CrdCheck::Doubtful
                };
                doubtful = crd == CrdCheck::Doubtful;
                let odd = std::mem::take(&mut odd);
                ctx.update(Update::PoolsListed { pools, odd, crd }).await?;
                ctx.report(HealthEvent::Settled(Kind::Pools)).await?;
            }
            watch::Update::Apply(Seen { key, facts }) => {
                memory.end();
                match (facts, key) {
                    (Some(facts), _) => ctx.update(Update::PoolApplied(facts)).await?,
                    (None, Some(key)) => ctx.update(Update::PoolOdd(key)).await?,
                    (None, None) => {}
                }
                ctx.report(HealthEvent::Working(Kind::Pools)).await?;
            }
            watch::Update::Delete(Seen { key, .. }) => {
                memory.end();
                doubtful |= deleted(&ctx, &client, key).await?;
            }
            watch::Update::OddDelete(object) => {
                memory.end();
                let key = Key::checked(&object.namespace, &object.name);
                doubtful |= deleted(&ctx, &client, key).await?;
            }
            watch::Update::Odd(object) => {
                ctx.check_list(Kind::Pools.into(), &memory).await?;
                if let Some(key) = Key::checked(&object.namespace, &object.name) {
                    if odd.len() < MAX_POOLS {
                        odd.insert(key.clone());
                    }
                    ctx.update(Update::PoolOdd(key)).await?;
                }
            }
            watch::Update::Failed(failure) => {
                memory.end();
                odd.clear();
                if seeded::is_on(SeededFault::LostWatchIsEmptyList) {
                    let crd = check_crd(&client).await;
                    let (pools, odd) = (Vec::new(), BTreeSet::new());
                    let listed = Update::PoolsListed { pools, odd, crd };
                    ctx.update(listed).await?;
                }
                ctx.failed(Kind::Pools, &failure).await?;
            }
        }
    }
}

/// Reports a deletion with the state of the CRD after it; returns whether that is doubtful.
async fn deleted(ctx: &WatchContext, client: &Client, key: Option<Key>) -> Result<bool, Gone> {
    let mut doubtful = false;
    if let Some(key) = key {
        let crd = check_crd(client).await;
        doubtful = crd == CrdCheck::Doubtful;
        ctx.update(Update::PoolDeleted { key, crd }).await?;
    }
    ctx.report(HealthEvent::Working(Kind::Pools)).await?;
    Ok(doubtful)
}

/// The state of the pools CRD. One that we may not read counts as doubtful.
async fn check_crd(client: &Client) -> CrdCheck {
    match watch::crd_state(client, POOLS_CRD).await {
        CrdState::Standing { uid, .. } => {
            opaque(Some(uid)).map_or(CrdCheck::Doubtful, |uid| CrdCheck::Serving { uid })
        }
        CrdState::Gone | CrdState::Forbidden => CrdCheck::Doubtful,
    }
}
