//! What a server holds: objects as JSON text, one resource version for all, and the latest changes of each kind.
//!
//! Text takes a tenth of the memory of a tree, and goes to every reader and watcher as it is: a tree is made only where
//! something is written. A status that many objects have is kept once.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{journal::Journal, kinds::Kind, selector::Selector, whole::Whole};

/// An object as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    /// When it became so.
    pub(crate) at: Instant,
    pub(crate) labels: BTreeMap<String, String>,
    text: Text,
}

#[derive(Debug)]
enum Text {
    Written {
        json: Bytes,
        partial: OnceLock<Bytes>,
        /// How the next status can replace this one, where it can.
        whole: OnceLock<Whole>,
    },
    /// Put together whenever it is read: a status then is kept once, however many objects and versions have it.
    Framed(Whole),
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) deleted: bool,
    pub(crate) object: Arc<Stored>,
    pub(crate) before: Option<Arc<Stored>>,
}

/// All that a server holds.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) version: u64,
    tables: BTreeMap<(&'static str, &'static str), Table>,
    uids: u64,
    seed: String,
    /// The server's clock, against ours.
    pub(crate) skew: SignedDuration,
    /// Fields of an import's status that its CRD knows; none: the CRD is not there.
    pub(crate) import_fields: Option<Vec<String>>,
    /// Schema of imports, while their CRD stands.
    pub(crate) import_schema: Option<Arc<Value>>,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<(String, String), Arc<Stored>>,
    history: VecDeque<Change>,
    /// Changes up to here are no longer known.
    compacted: u64,
    bell: watch::Sender<u64>,
    /// Every change, for a test that asked for it.
    journal: Option<Journal>,
}

/// Changes that are kept for watches that resume: above what a test's kind sees between two watches.
const HISTORY: usize = 1024;

// === impl Stored ===

impl Stored {
    fn new(value: &Value, version: u64) -> Self {
        let text = |pointer: &str| {
            let text = value.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            version,
            at: Instant::now(),
            labels: labels
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            text: Text::Written {
                json: value.to_string().into(),
                partial: OnceLock::new(),
                whole: OnceLock::new(),
            },
        }
    }

    /// This object with another status.
    fn with(&self, whole: Whole, version: u64) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            version,
            at: Instant::now(),
            labels: self.labels.clone(),
            text: Text::Framed(whole),
        }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Self {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let value = json!({"metadata": {"namespace": namespace, "name": name, "labels": labels}});
        Self::new(&value, 1)
    }

    pub(crate) fn json(&self) -> Bytes {
        match &self.text {
            Text::Written { json, .. } => json.clone(),
            Text::Framed(whole) => whole.text(self.version).into(),
        }
    }

    pub(crate) fn value(&self) -> Value {
        // what we have written ourselves reads back
        serde_json::from_slice(&self.json()).unwrap_or_default()
    }

    /// Metadata alone, as `PartialObjectMetadata`.
    pub(crate) fn partial(&self) -> Bytes {
        let partial = |metadata: &str| {
            let head =
                r#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":"#;
            Bytes::from([head, metadata, "}"].concat())
        };
        match &self.text {
            Text::Written { partial: made, .. } => made
                .get_or_init(|| {
                    let value = self.value();
                    let metadata = value.get("metadata").map(Value::to_string);
                    partial(&metadata.unwrap_or_default())
                })
                .clone(),
            Text::Framed(whole) => partial(&whole.metadata(self.version)),
        }
    }

    /// How the next status can replace this one, where it can.
    pub(crate) fn whole(&self) -> Option<&Whole> {
        match &self.text {
            Text::Written { whole, .. } => whole.get(),
            Text::Framed(whole) => Some(whole),
        }
    }

    /// Notes that another status can replace this one as a whole.
    pub(crate) fn note(&self, noted: Whole) {
        if let Text::Written { whole, .. } = &self.text {
            // what was noted before says the same
            let _ = whole.set(noted);
        }
    }
}

// === impl Store ===

impl Store {
    pub(crate) fn new(seed: &str) -> Self {
        Self {
            version: 1,
            tables: BTreeMap::new(),
            uids: 0,
            seed: seed.to_owned(),
            skew: SignedDuration::ZERO,
            import_fields: None,
            import_schema: None,
        }
    }

    fn table(&mut self, kind: &'static Kind) -> &mut Table {
        let table = self.tables.entry((kind.group, kind.plural));
        table.or_insert_with(|| Table {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 0,
            bell: watch::Sender::new(0),
            journal: None,
        })
    }

    fn known(&self, kind: &'static Kind) -> Option<&Table> {
        self.tables.get(&(kind.group, kind.plural))
    }

    /// The server's time, to the second as Kubernetes writes it.
    pub(crate) fn now(&self) -> String {
        let now = Timestamp::now().saturating_add(self.skew);
        now.map(|now| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
            .unwrap_or_default()
    }

    pub(crate) fn fresh_uid(&mut self) -> String {
        self.uids += 1;
        format!("{}-{:08}", self.seed, self.uids)
    }

    pub(crate) fn get(
        &self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Stored>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.known(kind)?.objects.get(&key).cloned()
    }

    pub(crate) fn objects(&self, kind: &'static Kind) -> impl Iterator<Item = &Arc<Stored>> {
        let table = self.known(kind).into_iter();
        table.flat_map(|table| table.objects.values())
    }

    /// Objects after `after`, in order, at most `limit`; and whether there are more.
    pub(crate) fn page(
        &self,
        kind: &'static Kind,
        selector: &Selector,
        after: Option<(String, String)>,
        limit: usize,
    ) -> (Vec<Arc<Stored>>, bool) {
        use std::ops::Bound;
        let Some(table) = self.known(kind) else {
            return (Vec::new(), false);
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = table
            .objects
            .range((from, Bound::Unbounded))
            .map(|(_, object)| object)
            .filter(|object| selector.matches(object));
        let page: Vec<_> = rest.by_ref().take(limit).cloned().collect();
        (page, rest.next().is_some())
    }

    /// Stores an object: metadata that the server gives is set, the rest is as it comes.
    pub(crate) fn put(&mut self, kind: &'static Kind, mut value: Value) -> Arc<Stored> {
        let now = self.now();
        self.version += 1;
        let version = self.version;
        let uid = self.fresh_uid();
        if let Some(object) = value.as_object_mut() {
            object.insert("apiVersion".to_owned(), kind.api_version().into());
            object.insert("kind".to_owned(), kind.kind.into());
            let meta = object.entry("metadata").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                meta.insert("resourceVersion".to_owned(), version.to_string().into());
                meta.entry("uid").or_insert(uid.into());
                meta.entry("creationTimestamp").or_insert(now.into());
                meta.entry("generation").or_insert(1.into());
            }
        }
        self.insert(kind, Stored::new(&value, version))
    }

    /// Stores an object with another status.
    pub(crate) fn replace(
        &mut self,
        kind: &'static Kind,
        live: &Stored,
        whole: Whole,
    ) -> Arc<Stored> {
        self.version += 1;
        self.insert(kind, live.with(whole, self.version))
    }

    fn insert(&mut self, kind: &'static Kind, object: Stored) -> Arc<Stored> {
        let object = Arc::new(object);
        let version = object.version;
        let table = self.table(kind);
        let key = (object.namespace.clone(), object.name.clone());
        let before = table.objects.insert(key, object.clone());
        table.note(Change {
            version,
            deleted: false,
            object: object.clone(),
            before,
        });
        object
    }

    pub(crate) fn remove(
        &mut self,
        kind: &'static Kind,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<Stored>> {
        let key = (namespace.to_owned(), name.to_owned());
        let before = self.table(kind).objects.remove(&key)?;
        self.version += 1;
        let version = self.version;
        let mut last = before.value();
        last["metadata"]["resourceVersion"] = version.to_string().into();
        let object = Arc::new(Stored::new(&last, version));
        self.table(kind).note(Change {
            version,
            deleted: true,
            object: object.clone(),
            before: Some(before),
        });
        Some(object)
    }

    /// Changes after a version; none where they are no longer known.
    pub(crate) fn since(&self, kind: &'static Kind, version: u64) -> Option<Vec<Change>> {
        let Some(table) = self.known(kind) else {
            return Some(Vec::new());
        };
        if version < table.compacted {
            return None;
        }
        let first = table
            .history
            .partition_point(|change| change.version <= version);
        Some(table.history.range(first..).cloned().collect())
    }

    /// Forgets all changes so far: a watch that resumes below is told 410.
    pub(crate) fn compact(&mut self, kind: &'static Kind) {
        self.version += 1;
        let version = self.version;
        let table = self.table(kind);
        table.history.clear();
        table.compacted = version;
    }

    /// Keeps each change of a kind from now on, as long as nobody takes it and so many fit.
    pub(crate) fn record(&mut self, kind: &'static Kind, most: usize) {
        self.table(kind).journal = Some(Journal::new(most));
    }

    /// The changes since the last call, in order, and how many did not fit.
    pub(crate) fn take_recorded(&mut self, kind: &'static Kind) -> (Vec<Change>, u64) {
        let journal = self.table(kind).journal.as_mut();
        journal.map(Journal::take).unwrap_or_default()
    }

    /// Rings with the version of each change.
    pub(crate) fn bell(&mut self, kind: &'static Kind) -> watch::Receiver<u64> {
        self.table(kind).bell.subscribe()
    }

    /// The object without what the CRD at hand does not know (K6).
    pub(crate) fn shown(&self, kind: &'static Kind, object: &Stored, partial: bool) -> Bytes {
        if partial {
            return object.partial();
        }
        match &self.import_fields {
            Some(fields) if *kind == crate::kinds::IMPORTS && fields.len() < ALL_IMPORT_FIELDS => {
                let mut value = object.value();
                if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
                    retain(status, fields);
                }
                value.to_string().into()
            }
            _ => object.json(),
        }
    }
}

/// As many as our CRD has: observedGeneration, conditions, controllers, clusters.
pub(crate) const ALL_IMPORT_FIELDS: usize = 4;

fn retain(status: &mut Map<String, Value>, fields: &[String]) {
    status.retain(|field, _| fields.contains(field));
}

// === impl Table ===

impl Table {
    fn note(&mut self, change: Change) {
        let version = change.version;
        if let Some(journal) = &mut self.journal {
            journal.add(&change);
        }
        self.history.push_back(change);
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.version;
        }
        self.bell.send_replace(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{POOLS, SERVICES};

    fn mk(name: &str) -> Value {
        json!({"metadata": {"namespace": "ml", "name": name}})
    }

    #[test]
    fn changes_are_told_in_order_until_they_are_forgotten() {
        let mut store = Store::new("s");
        let start = store.version;
        let first = store.put(&POOLS, mk("a"));
        store.put(&SERVICES, mk("b"));
        store.put(&POOLS, mk("c"));
        store.remove(&POOLS, "ml", "a");
        let changes = store.since(&POOLS, start).expect("known");
        let told: Vec<_> = changes
            .iter()
            .map(|one| (one.object.name.as_str(), one.deleted))
            .collect();
        assert_eq!(told, [("a", false), ("c", false), ("a", true)]);
        assert_eq!(
            changes[2].before.as_ref().map(|one| one.version),
            Some(first.version)
        );
        assert!(
            store
                .since(&POOLS, store.version)
                .expect("known")
                .is_empty()
        );
        store.compact(&POOLS);
        assert!(store.since(&POOLS, start).is_none());
        assert!(store.since(&SERVICES, start).is_some());
    }

    #[test]
    fn the_oldest_changes_are_forgotten_first() {
        let mut store = Store::new("s");
        let start = store.version;
        for _ in 0..=HISTORY {
            store.put(&POOLS, mk("a"));
        }
        assert!(store.since(&POOLS, start).is_none());
        let later = store.since(&POOLS, start + 1).expect("known");
        assert_eq!(later.len(), HISTORY);
    }

    #[test]
    fn pages_follow_each_other() {
        let mut store = Store::new("s");
        for name in ["c", "a", "b"] {
            store.put(&POOLS, mk(name));
        }
        let all = Selector::default();
        let (page, more) = store.page(&POOLS, &all, None, 2);
        assert_eq!((page.len(), more), (2, true));
        let last = (page[1].namespace.clone(), page[1].name.clone());
        let (page, more) = store.page(&POOLS, &all, Some(last), 2);
        assert_eq!((page[0].name.as_str(), more), ("c", false));
    }
}
