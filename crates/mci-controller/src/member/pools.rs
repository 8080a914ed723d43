//! The pools watch: a pool that vanishes counts only while its CRD stands, so every list and every deletion is
//! followed by a look at the CRD before it is told (K8). Events wait meanwhile, so their order holds.

use std::{collections::BTreeSet, time::Duration};

use crd::inference_pool::InferencePool;
use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, Resource};
use tokio::time::{sleep, timeout};

use super::{
    anew::Anew,
    project,
    vigil::Sign,
    watches::{Gone, Wires, config},
};
use crate::{
    index::{
        facts::CrdCheck,
        pools::MAX_POOLS,
        update::{Kind, Update},
    },
    name::{Key, opaque},
    seeded::{self, SeededFault},
    write::backoff,
};

const POOLS_CRD: &str = "inferencepools.inference.networking.k8s.io";
/// One look at the CRD; it is repeated until answered, and ends with the session.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
const CHECK_RETRY_MIN: Duration = Duration::from_millis(200);
const CHECK_RETRY_MAX: Duration = Duration::from_secs(5);
/// A CRD that was missing, going or hidden from us is looked at again after this much quiet.
const DOUBT_RETRY: Duration = Duration::from_secs(30);

/// Follows the pools of a member.
pub(super) async fn pools(wires: Wires, client: Client, mut anew: Anew) -> Result<(), Gone> {
    let list = || {
        let stream = watch::objects::<InferencePool>(Api::all(client.clone()), config());
        Box::pin(stream)
    };
    let mut stream = list();
    // a list or deletion was told under a CRD that may be going
    let mut doubtful = false;
    // unreadable pools told since the last list or failure: they precede the list that they are on
    let mut odd: BTreeSet<Key> = BTreeSet::new();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            asked = anew.asked() => {
                asked?;
                odd.clear();
                stream = list();
                continue;
            }
            () = sleep(DOUBT_RETRY), if doubtful => {
                if check_crd(&wires, &client).await != CrdCheck::Doubtful {
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
                for object in objects {
                    let key = project::key_of(object.meta());
                    match project::pool(object, &wires.ours) {
                        Some(facts) => pools.push(facts),
                        None => odd.extend(key),
                    }
                }
                let crd = if odd.len() < MAX_POOLS {
                    check_crd(&wires, &client).await
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
            watch::Update::Apply(object) => {
                let key = project::key_of(object.meta());
                match (project::pool(object, &wires.ours), key) {
                    (Some(facts), _) => wires.update(Update::PoolApplied(facts)).await?,
                    (None, Some(key)) => wires.update(Update::PoolOdd(key)).await?,
                    (None, None) => {}
                }
                wires.sign(Sign::Working(Kind::Pools)).await?;
            }
            watch::Update::Delete(object) => {
                if let Some(key) = project::key_of(object.meta()) {
                    let crd = check_crd(&wires, &client).await;
                    doubtful |= crd == CrdCheck::Doubtful;
                    wires.update(Update::PoolDeleted { key, crd }).await?;
                }
                wires.sign(Sign::Working(Kind::Pools)).await?;
            }
            watch::Update::OddDelete(object) => {
                if let Some(key) = Key::checked(&object.namespace, &object.name) {
                    let crd = check_crd(&wires, &client).await;
                    doubtful |= crd == CrdCheck::Doubtful;
                    wires.update(Update::PoolDeleted { key, crd }).await?;
                }
                wires.sign(Sign::Working(Kind::Pools)).await?;
            }
            watch::Update::Odd(object) => {
                if let Some(key) = Key::checked(&object.namespace, &object.name) {
                    if odd.len() < MAX_POOLS {
                        odd.insert(key.clone());
                    }
                    wires.update(Update::PoolOdd(key)).await?;
                }
            }
            watch::Update::Failed(failure) => {
                odd.clear();
                if seeded::is_on(SeededFault::LostWatchIsEmptyList) {
                    let crd = check_crd(&wires, &client).await;
                    let (pools, odd) = (Vec::new(), BTreeSet::new());
                    let listed = Update::PoolsListed { pools, odd, crd };
                    wires.update(listed).await?;
                }
                wires.failed(Kind::Pools, &failure).await?;
            }
        }
    }
}

/// Looks at the pools CRD until there is an answer. Not being allowed to see it is no proof that it stands.
async fn check_crd(wires: &Wires, client: &Client) -> CrdCheck {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut failures = 0;
    loop {
        let answer = timeout(CHECK_TIMEOUT, crds.get_metadata(POOLS_CRD)).await;
        match answer {
            Ok(Ok(crd)) => {
                return match opaque(crd.metadata.uid) {
                    Some(uid) if crd.metadata.deletion_timestamp.is_none() => {
                        CrdCheck::Serving { uid }
                    }
                    _ => CrdCheck::Doubtful,
                };
            }
            Ok(Err(kube::Error::Api(status))) if [403, 404].contains(&status.code) => {
                if status.code == 403 {
                    tracing::warn!(member = %wires.member, crd = POOLS_CRD,
                        "may not get the CRD: without it no deletion of a pool is believed");
                }
                return CrdCheck::Doubtful;
            }
            Ok(Err(_)) | Err(_) => {
                failures += 1;
                let wait = backoff(failures, CHECK_RETRY_MIN, CHECK_RETRY_MAX, &mut rand::rng());
                sleep(wait).await;
            }
        }
    }
}
