//! Members from labelled Secrets in home's namespace.

use std::{collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use crd::annotations::CLUSTER_NAME;
use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer};
use tokio::sync::mpsc;
use watch::{OddObject, Update};
use zeroize::Zeroizing;

use crate::client::watch_config;
use crate::{
    kubeconfig::Credentials,
    listing::{Access, Listing, Listings},
    objects::Objects,
    reading::Reading,
};
use mci_model::index::{member::Refusal, origin::SourceKind};

/// Either marks a Secret as a member's: ours, and that of multicluster-runtime.
pub const SELECTORS: [&str; 2] = [
    "isthmus.dev/member=true",
    "sigs.k8s.io/multicluster-runtime-kubeconfig=true",
];
/// Keys that hold a kubeconfig; the first that is there counts.
pub const KEYS: [&str; 4] = ["kubeconfig", "value", "config", "Config"];

/// A Secret as it is read here. `Debug` shows no byte of it, and no annotation: they may repeat its content.
#[derive(Clone, Deserialize)]
struct MemberSecret {
    metadata: ObjectMeta,
    #[serde(default)]
    data: Option<BTreeMap<String, SecretBytes>>,
}

/// Wiped when dropped, never shown.
#[derive(Clone)]
struct SecretBytes(Zeroizing<Vec<u8>>);

/// The Secrets of both selectors: one may bear both labels, and lose one of them.
#[derive(Default)]
struct Selected([Objects<Arc<Listing>>; 2]);

/// Sends all labelled Secrets whenever they change, until nobody receives them.
pub(super) async fn watch_secrets(
    client: Client,
    namespace: String,
    reading: Reading,
    lists: mpsc::Sender<(SourceKind, Listings)>,
) {
    let updates = |which: usize| {
        let api = Api::namespaced(client.clone(), &namespace);
        let config = watch_config().labels(SELECTORS[which]);
        let updates = watch::objects::<MemberSecret>(api, config);
        updates.map(move |update| (which, update)).boxed()
    };
    let mut updates = futures::stream::select(updates(0), updates(1));
    let mut selected = Selected::default();
    while let Some((which, update)) = updates.next().await {
        if let Update::Failed(failure) = &update {
            tracing::warn!(reason = failure.reason(), error = %failure,
                "cannot watch the member Secrets: all members stay");
            continue;
        }
        if selected.apply(which, update, &reading)
            && let Some(listings) = selected.all()
            && lists.send((SourceKind::Secret, listings)).await.is_err()
        {
            return;
        }
    }
}

fn read(secret: &MemberSecret, reading: &Reading) -> (String, Arc<Listing>) {
    let name = secret.metadata.name.clone().unwrap_or_default();
    let annotations = secret.metadata.annotations.as_ref();
    let named = annotations.and_then(|annotations| annotations.get(CLUSTER_NAME));
    let data = secret.data.as_ref();
    let bytes = data.and_then(|data| KEYS.iter().find_map(|key| data.get(*key)));
    let access = match bytes {
        Some(bytes) => Credentials::parse(&bytes.0, reading.allow_plain_http).into(),
        None => Access::refused(
            Refusal::BadCredentials,
            format!("the Secret has none of the keys {}", KEYS.join(", ")),
        ),
    };
    let listing = Listing {
        member: named.unwrap_or(&name).clone(),
        origin: reading.origin(SourceKind::Secret, &secret.metadata, |_| None),
        access,
    };
    (name, Arc::new(listing))
}

/// A Secret that is there and cannot be read.
fn unreadable(odd: &OddObject, reading: &Reading) -> Arc<Listing> {
    Arc::new(Listing {
        member: odd.name.clone(),
        origin: reading.unreadable(SourceKind::Secret, &odd.namespace, &odd.name),
        access: Access::refused(Refusal::BadCredentials, "the Secret does not decode"),
    })
}

// === impl MemberSecret ===

impl fmt::Debug for MemberSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberSecret({:?})", self.metadata.name)
    }
}

impl Resource for MemberSecret {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        "Secret".into()
    }

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> std::borrow::Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        "secrets".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl SecretBytes ===

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        // the decoder's own error quotes a byte
        let bytes = STANDARD
            .decode(text.as_bytes())
            .map_err(|_| serde::de::Error::custom("a value is not base64"))?;
        Ok(Self(Zeroizing::new(bytes)))
    }
}

// === impl Selected ===

impl Selected {
    fn apply(&mut self, which: usize, update: Update<MemberSecret>, reading: &Reading) -> bool {
        self.0[which].apply(
            update,
            |secret| read(&secret, reading),
            |odd| unreadable(odd, reading),
        )
    }

    /// All Secrets, once both selectors have listed.
    fn all(&self) -> Option<Listings> {
        let [ours, theirs] = &self.0;
        let mut all = theirs.all()?.clone();
        all.extend(ours.all()?.clone());
        Some(all)
    }
}

#[cfg(test)]
mod tests;
