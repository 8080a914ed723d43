//! What Envoys show that they are of their Gateway: a Secret for each, signed by the authority and renewed in time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::pki::{Authority, Identity, PkiError};
use crate::world::Key;

use super::{bootstrap, is_applied};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";

/// Nothing watches the Secrets, which would be a watch of all there are: so often each is read, for what became of it.
const LOOK: Duration = Duration::from_mins(5);

/// Makes the Secrets of Envoys, and knows which were found good. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Credentials {
    cluster: Arc<str>,
    authority: Authority,
    good: Arc<Mutex<BTreeMap<Key, Good>>>,
}

/// A Secret that needs no write.
struct Good {
    /// The object as it was wanted, without its data.
    wanted: Value,
    /// When to look at it again.
    again: Instant,
}

// === impl Credentials ===

impl Credentials {
    pub(crate) fn new(cluster: &str, authority: Authority) -> Self {
        Self {
            cluster: cluster.into(),
            authority,
            good: Arc::default(),
        }
    }

    /// Whether the Secret is to be looked at: it is new, wanted otherwise, or was not looked at for a while.
    pub(crate) fn is_due(&self, key: &Key, wanted: &Value, now: Instant) -> bool {
        let good = self.good.lock();
        let good = good.get(key).filter(|good| good.wanted == *wanted);
        good.is_none_or(|good| good.again <= now)
    }

    /// Forgets Secrets that are not wanted any more.
    pub(crate) fn keep(&self, wanted: impl Fn(&Key) -> bool) {
        self.good.lock().retain(|key, _| wanted(key));
    }

    /// The object to apply, with its data; none where the live one is good. `now` is in seconds since 1970.
    pub(super) fn fill(
        &self,
        gateway: &Key,
        wanted: &Value,
        live: Option<&Secret>,
        now: u64,
    ) -> Result<Option<Value>, PkiError> {
        let uid = wanted.pointer("/metadata/ownerReferences/0/uid");
        let identity = Identity {
            cluster: self.cluster.to_string(),
            gateway: gateway.clone(),
            uid: uid.and_then(Value::as_str).unwrap_or_default().to_owned(),
        };
        if live.is_some_and(|live| self.is_good(&identity, wanted, live, now)) {
            return Ok(None);
        }
        let issued = self.authority.issue_client(&identity, now)?;
        let mut data = documents();
        let more = [
            (CERTIFICATE, issued.certificate),
            (KEY, issued.key),
            (CA, self.authority.pem().to_owned()),
        ];
        data.extend(more.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes()))));
        let mut full = wanted.clone();
        full["data"] = json!(data);
        Ok(Some(full))
    }

    /// The Secret was found good, or written.
    pub(super) fn note_good(&self, key: Key, wanted: Value, now: Instant) {
        let again = now + LOOK;
        self.good.lock().insert(key, Good { wanted, again });
    }

    fn is_good(&self, identity: &Identity, wanted: &Value, live: &Secret, now: u64) -> bool {
        let data = |name: &str| {
            let value = live.data.as_ref().and_then(|data| data.get(name));
            value.map_or(&[][..], |ByteString(bytes)| bytes)
        };
        let (ca, certificate, key) = (data(CA), data(CERTIFICATE), data(KEY));
        let renewal = self.authority.renewal(ca, certificate, key, identity, now);
        let mut documents = documents().into_iter();
        renewal.is_some()
            && documents.all(|(name, ByteString(text))| data(&name) == text)
            && serde_json::to_value(live).is_ok_and(|live| is_applied(wanted, &live))
    }
}

/// How Envoy finds the files beside them.
fn documents() -> BTreeMap<String, ByteString> {
    let documents = bootstrap::documents(bootstrap::CREDENTIALS);
    let texts = documents.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())));
    BTreeMap::from(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::mk_gateway;
    use crate::infra::{Part, with_metadata};
    use crate::world::part_key;

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 24 * 60 * 60;

    fn mk_wanted() -> (Key, Value) {
        let gateway = mk_gateway("gw", Vec::new());
        let key = part_key(&gateway);
        let body = with_metadata(
            Part::ClientSecret,
            &gateway,
            &key,
            crate::fixture::CONTROLLER,
            super::super::client_secret(),
        );
        (gateway.key, body)
    }

    fn mk_credentials() -> Credentials {
        Credentials::new("west", Authority::make(NOW).unwrap().0)
    }

    /// As the API server has it after the write.
    fn mk_live(full: Value) -> Secret {
        serde_json::from_value(full).unwrap()
    }

    #[test]
    fn a_good_secret_is_left_and_any_other_written() {
        let (gateway, wanted) = mk_wanted();
        let credentials = mk_credentials();
        let fill = |live: Option<&Secret>, now| credentials.fill(&gateway, &wanted, live, now);
        let written = mk_live(fill(None, NOW).unwrap().unwrap());
        assert_eq!(written.type_.as_deref(), Some("kubernetes.io/tls"));
        assert_eq!(fill(Some(&written), NOW + 59 * DAY).unwrap(), None);
        assert!(fill(Some(&written), NOW + 60 * DAY).unwrap().is_some());
        let names = written.data.clone().unwrap().into_keys();
        for name in names.map(Some).chain([None]) {
            let mut spoiled = written.clone();
            match (&name, &mut spoiled.data) {
                (Some(name), Some(data)) => drop(data.remove(name)),
                _ => spoiled.metadata.labels = None,
            }
            assert!(fill(Some(&spoiled), NOW).unwrap().is_some(), "{name:?}");
        }
        // of a Gateway that is made anew, the object is the same but for its owner
        let mut anew = wanted.clone();
        anew["metadata"]["ownerReferences"][0]["uid"] = json!("uid-anew");
        let mut taken_over = written.clone();
        taken_over.metadata.owner_references =
            serde_json::from_value(anew["metadata"]["ownerReferences"].clone()).unwrap();
        let renewed = credentials.fill(&gateway, &anew, Some(&taken_over), NOW);
        assert!(renewed.unwrap().is_some());
        // another authority, and another name of the cluster
        let other = mk_credentials();
        assert!(
            other
                .fill(&gateway, &wanted, Some(&written), NOW)
                .unwrap()
                .is_some()
        );
        let authority = credentials.authority.clone();
        let renamed = Credentials::new("north", authority);
        assert!(
            renamed
                .fill(&gateway, &wanted, Some(&written), NOW)
                .unwrap()
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_is_looked_at_again_after_a_while_and_when_it_is_wanted_otherwise() {
        let (_, wanted) = mk_wanted();
        let (credentials, key) = (mk_credentials(), Key::new("ns", "gw-isthmus"));
        let now = Instant::now();
        assert!(credentials.is_due(&key, &wanted, now));
        credentials.note_good(key.clone(), wanted.clone(), now);
        assert!(!credentials.is_due(&key, &wanted, now));
        assert!(credentials.is_due(&key, &json!({}), now));
        assert!(credentials.is_due(&key, &wanted, now + LOOK));
        credentials.keep(|_| false);
        assert!(credentials.is_due(&key, &wanted, now));
    }
}
