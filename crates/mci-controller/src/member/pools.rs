//! The pools watch: a pool that vanishes counts only while its CRD stands, so every list and every deletion is
//! followed by a look at the CRD before it is told (K8). Events wait meanwhile, so their order holds.

use std::{collections::BTreeSet, time::Duration};

use crd::inference_pool::InferencePool;
use futures::StreamExt;
use kube::{Api, Client, Resource};
use tokio::time::sleep;
use watch::CrdState;

use super::{
    project,
    under_way::{ListMemory, Seen},
    vigil::Sign,
    watches::{Gone, Wires},
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
/// A CRD that was missing, going or hidden from us is looked at again after this much quiet.
const DOUBT_RETRY: Duration = Duration::from_secs(30);

/// Follows the pools of a member.
pub(super) async fn pools(wires: Wires, client: Client) -> Result<(), Gone> {
    let memory = ListMemory::new(&wires.under_way);
    let list = || {
        let (ours, adding) = (wires.ours.clone(), memory.clone());
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
    // a list or deletion was told under a CRD that may be going
    let mut doubtful = false;
    // unreadable pools told since the last list or failure: they precede the list that they are on
    let mut odd: BTreeSet<Key> = BTreeSet::new();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = sleep(DOUBT_RETRY), if doubtful => {
                if check_crd(&client).await != CrdCheck::Doubtful {
                    // only a list made after that proves anything
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
                    wires.sign(Sign::Settled(Kind::Pools)).await?;
                    continue;
                }
                let crd = if odd.len() < MAX_POOLS {
                    check_crd(&client).await
                } else {
                    // some may have been left out: their absence proves nothing
                    CrdCheck::Doubtful
                };
                doubtful = crd == CrdCheck::Doubtful;
                let odd = std::mem::take(&mut odd);
                wires
                    .update(Update::PoolsListed { pools, odd, crd })
                    .await?;
                wires.sign(Sign::Settled(Kind::Pools)).await?;
            }
            watch::Update::Apply(Seen { key, facts }) => {
                memory.end();
                match (facts, key) {
                    (Some(facts), _) => wires.update(Update::PoolApplied(facts)).await?,
                    (None, Some(key)) => wires.update(Update::PoolOdd(key)).await?,
                    (None, None) => {}
                }
                wires.sign(Sign::Working(Kind::Pools)).await?;
            }
            watch::Update::Delete(Seen { key, .. }) => {
                memory.end();
                doubtful |= deleted(&wires, &client, key).await?;
            }
            watch::Update::OddDelete(object) => {
                memory.end();
                let key = Key::checked(&object.namespace, &object.name);
                doubtful |= deleted(&wires, &client, key).await?;
            }
            watch::Update::Odd(object) => {
                wires.check_list(Kind::Pools.into(), &memory).await?;
                if let Some(key) = Key::checked(&object.namespace, &object.name) {
                    if odd.len() < MAX_POOLS {
                        odd.insert(key.clone());
                    }
                    wires.update(Update::PoolOdd(key)).await?;
                }
            }
            watch::Update::Failed(failure) => {
                memory.end();
                odd.clear();
                if seeded::is_on(SeededFault::LostWatchIsEmptyList) {
                    let crd = check_crd(&client).await;
                    let (pools, odd) = (Vec::new(), BTreeSet::new());
                    let listed = Update::PoolsListed { pools, odd, crd };
                    wires.update(listed).await?;
                }
                wires.failed(Kind::Pools, &failure).await?;
            }
        }
    }
}

/// Passes a deletion on with what the CRD says after it; whether that is doubtful.
async fn deleted(wires: &Wires, client: &Client, key: Option<Key>) -> Result<bool, Gone> {
    let mut doubtful = false;
    if let Some(key) = key {
        let crd = check_crd(client).await;
        doubtful = crd == CrdCheck::Doubtful;
        wires.update(Update::PoolDeleted { key, crd }).await?;
    }
    wires.sign(Sign::Working(Kind::Pools)).await?;
    Ok(doubtful)
}

/// What the pools CRD says of itself. Not being allowed to get it is no proof that it stands.
async fn check_crd(client: &Client) -> CrdCheck {
    match watch::crd_state(client, POOLS_CRD).await {
        CrdState::Standing { uid } => {
            opaque(Some(uid)).map_or(CrdCheck::Doubtful, |uid| CrdCheck::Serving { uid })
        }
        CrdState::Gone | CrdState::Forbidden => CrdCheck::Doubtful,
    }
}
