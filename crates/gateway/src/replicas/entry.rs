//! What one replica writes for the others: JSON of bounded size, which names Envoys' resources and no content of them.

use std::collections::{BTreeMap, BTreeSet};

use foreign_text::clipped;
use serde::{Deserialize, Serialize};

use crate::world::Key;
use crate::xds::Kind;
use crate::xds::ads::proxies::{Known, KnownByGateway, ResourceId, Verdict};
use crate::xds::ads::server::version_text;

/// One entry: 16 of them are an object of 1 MiB, which is the most that the API server takes. A Gateway with two listeners takes some
/// 100 bytes.
pub(super) const ENTRY_BYTES: usize = 60 * 1024;

/// Greatest number of refused resources that an entry names of one Gateway. Status has room for few of them.
const MOST_REFUSED: usize = 16;

/// Bytes of the reason of a refusal.
const MESSAGE: usize = 256;

#[derive(Serialize, Deserialize)]
struct Entry {
    /// Counts the writes: an entry that stays the same is of a replica that is gone.
    beat: u64,
    #[serde(default)]
    gateways: BTreeMap<String, OfGateway>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OfGateway {
    envoys: u32,
    served: BTreeSet<String>,
    refused: Vec<Refused>,
    partial: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Refused {
    kind: String,
    name: String,
    version: String,
    message: String,
    by: u32,
    others_serve: bool,
}

/// The entry, and how many Gateways have no place in it.
pub(super) fn encode(known: &KnownByGateway, beat: u64) -> (String, usize) {
    let mut left = ENTRY_BYTES;
    let mut gateways = BTreeMap::new();
    // what is served goes before what is refused
    for (key, known) in known {
        let of = OfGateway {
            envoys: u32::try_from(known.connected).unwrap_or(u32::MAX),
            served: known.served.clone(),
            refused: Vec::new(),
            partial: known.is_partial || !known.refused.is_empty(),
        };
        let key = key.to_string();
        if takes(&mut left, &(&key, &of)) {
            gateways.insert(key, of);
        }
    }
    for (key, known) in known {
        let Some(of) = gateways.get_mut(&key.to_string()) else {
            continue;
        };
        for (id, verdict) in known.refused.iter().take(MOST_REFUSED) {
            let refused = Refused::new(id, verdict);
            if takes(&mut left, &refused) {
                of.refused.push(refused);
            }
        }
        of.partial = known.is_partial || of.refused.len() < known.refused.len();
    }
    let without = known.len().saturating_sub(gateways.len());
    let entry = Entry { beat, gateways };
    (serde_json::to_string(&entry).unwrap_or_default(), without)
}

/// Whether there is room for it, which it then takes.
fn takes(left: &mut usize, part: &impl Serialize) -> bool {
    // with what is between two parts
    let bytes = serde_json::to_string(part).map_or(usize::MAX, |text| text.len() + 4);
    let rest = left.checked_sub(bytes);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// What it says; `None` where it is too long or cannot be read.
pub(super) fn decode(text: &str) -> Option<KnownByGateway> {
    // another version of this program may write more, but not without bound
    if text.len() > 2 * ENTRY_BYTES {
        return None;
    }
    let entry = serde_json::from_str::<Entry>(text).ok()?;
    let gateways = entry.gateways.into_iter();
    let known = gateways.filter_map(|(key, of)| {
        let (namespace, name) = key.split_once('/')?;
        Some((Key::new(namespace, name), of.known()))
    });
    Some(known.collect())
}

// === impl OfGateway ===

impl OfGateway {
    fn known(self) -> Known {
        let connected = usize::try_from(self.envoys).unwrap_or(usize::MAX);
        let all = self.refused.len();
        let refused = self.refused.into_iter();
        let refused: BTreeMap<ResourceId, Verdict> =
            refused.filter_map(|one| one.known(connected)).collect();
        Known {
            connected,
            served: self.served,
            // one of a kind that this version does not know
            is_partial: self.partial || refused.len() < all,
            refused,
        }
    }
}

// === impl Refused ===

impl Refused {
    fn new((kind, name, version): &ResourceId, verdict: &Verdict) -> Self {
        Self {
            kind: kind.as_str().to_owned(),
            name: name.clone(),
            version: version_text(*version),
            message: clipped(verdict.message.clone(), MESSAGE),
            by: u32::try_from(verdict.by).unwrap_or(u32::MAX),
            others_serve: verdict.others_serve,
        }
    }

    fn known(self, of: usize) -> Option<(ResourceId, Verdict)> {
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == self.kind)?;
        let version = u64::from_str_radix(&self.version, 16).ok()?;
        let verdict = Verdict {
            message: clipped(self.message, MESSAGE),
            by: usize::try_from(self.by).unwrap_or(usize::MAX),
            of,
            others_serve: self.others_serve,
        };
        Some(((kind, self.name, version), verdict))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk_known(served: &[&str], refused: usize) -> Known {
        let verdict = Verdict {
            message: "m".repeat(MESSAGE),
            by: 1,
            of: 2,
            others_serve: true,
        };
        let refused = (0_u64..).take(refused);
        let refused = refused.map(|at| {
            let id = (Kind::Cluster, format!("svc/ns/{at}/80"), u64::MAX - at);
            (id, verdict.clone())
        });
        Known {
            connected: 2,
            served: served.iter().map(ToString::to_string).collect(),
            refused: refused.collect(),
            is_partial: false,
        }
    }

    fn key(name: impl std::fmt::Display) -> Key {
        Key::new("ns", name.to_string())
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let known = KnownByGateway::from([
            (key("a"), mk_known(&["edge/443", "edge/80"], 2)),
            (key("b"), mk_known(&[], 0)),
        ]);
        let (text, without) = encode(&known, 3);
        assert_eq!((decode(&text), without), (Some(known.clone()), 0));
        assert_ne!(encode(&known, 4).0, text, "it shows that the replica lives");
    }

    #[test]
    fn what_is_refused_is_told_of_some_resources() {
        let known = KnownByGateway::from([(key("a"), mk_known(&["edge/80"], 2 * MOST_REFUSED))]);
        let read = decode(&encode(&known, 1).0).unwrap();
        let read = &read[&key("a")];
        assert_eq!(read.refused.len(), MOST_REFUSED);
        assert!(read.is_partial);
    }

    /// What is served goes before what is refused.
    #[test]
    fn an_entry_is_bounded() {
        let many = (0..100).map(|at| (key(at), mk_known(&["edge/80"], MOST_REFUSED)));
        let many: KnownByGateway = many.collect();
        let (text, without) = encode(&many, u64::MAX);
        assert!(text.len() <= ENTRY_BYTES + 100, "{}", text.len());
        let read = decode(&text).unwrap();
        let is_served = |one: &Known| one.served.iter().eq(["edge/80"]);
        assert!(without == 0 && read.len() == 100 && read.values().all(is_served));
        let refused = read.values().map(|one| one.refused.len());
        assert!(refused.clone().sum::<usize>() > 0);
        let partial = read.values().filter(|one| one.is_partial).count();
        assert_eq!(refused.filter(|told| *told < MOST_REFUSED).count(), partial);
        let more = (0..2_000).map(|at| (key(at), mk_known(&["edge/80"], 0)));
        let (text, without) = encode(&more.collect(), u64::MAX);
        assert!(text.len() <= ENTRY_BYTES + 100, "{}", text.len());
        assert!(without > 0 && decode(&text).unwrap().len() == 2_000 - without);
    }

    #[rstest]
    #[case::text("none", None)]
    #[case::other_types(r#"{"beat": "x", "gateways": []}"#, None)]
    #[case::no_key(
        r#"{"beat": 1, "gateways": {"gw": {"envoys": 1}}}"#,
        Some(KnownByGateway::new())
    )]
    fn what_cannot_be_read_says_nothing(#[case] text: &str, #[case] read: Option<KnownByGateway>) {
        assert_eq!(decode(text), read);
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let text = |length: usize| {
            let served = "x".repeat(length);
            format!(r#"{{"beat": 1, "gateways": {{"ns/gw": {{"served": ["{served}"]}}}}}}"#)
        };
        assert_eq!(decode(&text(10)).unwrap().len(), 1);
        assert_eq!(decode(&text(2 * ENTRY_BYTES)), None);
    }

    /// A later version of this program may know another kind of resource, and more of each.
    #[test]
    fn what_a_later_version_writes_is_read_as_far_as_it_is_known() {
        let refused = r#"{"kind": "ecds", "name": "a", "version": "1", "message": "", "by": 1, "othersServe": false, "more": 1}"#;
        let text = format!(
            r#"{{"beat": 1, "more": 2, "gateways": {{"ns/gw": {{"envoys": 1, "served": ["edge/80"], "refused": [{refused}]}}}}}}"#
        );
        let read = decode(&text).unwrap();
        let read = &read[&key("gw")];
        assert!(read.is_partial && read.refused.is_empty() && read.connected == 1);
    }
}
