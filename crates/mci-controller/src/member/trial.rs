//! The trial of new credentials while the old ones are in use. To replace them, they must lead to an API server, read what
//! the old ones read, and have the same rights to watch and write.

use std::{collections::BTreeSet, fmt::Debug, time::Duration};

use crd::{InferencePoolImport, inference_pool::InferencePool};
use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    connect::{ConnectError, Identity, connect, describe},
    identity::lost_rights,
};
use crate::index::update::Kind;

/// Timeout of the whole trial.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Tries a new client; `hidden` are the kinds that the client in use may not read either.
pub(super) async fn trial(
    client: &Client,
    in_use: &Client,
    hidden: &BTreeSet<Kind>,
) -> Result<Identity, ConnectError> {
    let tried = async {
        let identity = connect(client).await?;
        for kind in Kind::ALL {
            let read = match kind {
                Kind::Pools => read::<InferencePool>(client).await,
                Kind::Services => read::<Service>(client).await,
                Kind::Slices => read::<EndpointSlice>(client).await,
                Kind::Namespaces => read::<Namespace>(client).await,
                Kind::Imports => read::<InferencePoolImport>(client).await,
            };
            match read {
                Err(kube::Error::Api(status))
                    if status.code == 404 || (status.code == 403 && hidden.contains(&kind)) => {}
                Err(error) => return Err(describe(error)),
                Ok(()) => {}
            }
        }
        let lost = lost_rights(client, in_use).await;
        if lost.is_empty() {
            Ok(identity)
        } else {
            Err(ConnectError::LostRights(lost.join(", ")))
        }
    };
    timeout(TRIAL_TIMEOUT, tried)
        .await
        .unwrap_or(Err(ConnectError::Timeout(TRIAL_TIMEOUT)))
}

async fn read<K>(client: &Client) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let one = ListParams::default().limit(1);
    api.list_metadata(&one).await.map(drop)
}
