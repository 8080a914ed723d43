//! Merges what the sources list into one list of members. Pure.
//!
//! A name belongs to the object that has it for as long as that object stands; a free name goes to the first source in
//! table order, in it to the oldest object, then to the first by name. A source counts only once all before it have
//! listed, so that who is first does not depend on which API answered first.

use std::{collections::BTreeMap, sync::Arc};

use crate::listing::{InventoryEvent, Listing, Listings, Unused};
use mci_model::{
    index::{
        member::Refusal,
        origin::{Source, SourceKind},
    },
    name::ClusterName,
};

/// All sources, and what was reported of them.
#[derive(Debug)]
pub(crate) struct Roster {
    /// None: it has not listed yet.
    sources: BTreeMap<SourceKind, Option<Listings>>,
    /// The object behind each member, as it was last reported.
    reported: BTreeMap<ClusterName, Arc<Listing>>,
    unused: Vec<Unused>,
    listed: bool,
}

// === impl Roster ===

impl Roster {
    /// A roster of these sources.
    pub(crate) fn new(sources: impl IntoIterator<Item = SourceKind>) -> Self {
        Self {
            sources: sources.into_iter().map(|kind| (kind, None)).collect(),
            reported: BTreeMap::new(),
            unused: Vec::new(),
            listed: false,
        }
    }

    /// A source's complete list of objects: what is not in it is gone.
    pub(crate) fn reset(&mut self, kind: SourceKind, listings: Listings) -> Vec<InventoryEvent> {
        self.sources.insert(kind, Some(listings));
        let (chosen, unused) = self.choose();
        let mut events = Vec::new();
        for name in self
            .reported
            .keys()
            .filter(|name| !chosen.contains_key(*name))
        {
            events.push(InventoryEvent::Gone(name.clone()));
        }
        for (name, listing) in &chosen {
            let known = self.reported.get(name);
            if known.is_none_or(|known| !Arc::ptr_eq(known, listing) && known != listing) {
                events.push(InventoryEvent::Upsert(name.clone(), listing.clone()));
            }
        }
        if unused != self.unused {
            for one in unused.iter().filter(|one| !self.unused.contains(one)) {
                tracing::warn!(source = %one.origin.source, member = one.member,
                    reason = one.refusal.reason(), detail = one.detail, "not a member");
            }
            events.push(InventoryEvent::Unused(unused.clone()));
        }
        self.reported = chosen;
        self.unused = unused;
        if !self.listed && self.sources.values().all(Option::is_some) {
            self.listed = true;
            events.push(InventoryEvent::Listed);
        }
        events
    }

    /// The object behind each name, and those behind none.
    fn choose(&self) -> (BTreeMap<ClusterName, Arc<Listing>>, Vec<Unused>) {
        let listed = self.sources.values().map_while(Option::as_ref);
        let mut candidates: Vec<&Arc<Listing>> = listed.flat_map(BTreeMap::values).collect();
        candidates.sort_by(|a, b| a.origin.source.cmp(&b.origin.source));
        let mut chosen: BTreeMap<ClusterName, Arc<Listing>> = BTreeMap::new();
        let mut unused = Vec::new();
        for listing in &candidates {
            let name = match ClusterName::new(&listing.member) {
                Ok(name) => name,
                Err(error) => {
                    unused.push(Unused {
                        origin: listing.origin.clone(),
                        member: listing.member.clone(),
                        refusal: Refusal::BadCredentials,
                        detail: error.to_string(),
                    });
                    continue;
                }
            };
            match chosen.get(&name) {
                Some(other) if !self.holds(&name, listing) => unused.push(taken(listing, other)),
                Some(other) => {
                    unused.push(taken(other, listing));
                    chosen.insert(name, (*listing).clone());
                }
                None => {
                    chosen.insert(name, (*listing).clone());
                }
            }
        }
        unused.sort_by(|a: &Unused, b| a.origin.source.cmp(&b.origin.source));
        (chosen, unused)
    }

    /// Whether the name was last reported with this object, whatever became of the object since.
    fn holds(&self, name: &ClusterName, listing: &Listing) -> bool {
        let holder = self.reported.get(name);
        holder.is_some_and(|holder| place(&holder.origin.source) == place(&listing.origin.source))
    }
}

/// Where an object is, whichever object is there now.
fn place(source: &Source) -> (SourceKind, &str, &str) {
    (source.kind, &source.namespace, &source.name)
}

fn taken(listing: &Listing, by: &Listing) -> Unused {
    Unused {
        origin: listing.origin.clone(),
        member: listing.member.clone(),
        refusal: Refusal::DuplicateCluster,
        detail: format!("{} gives this name too", by.origin.source),
    }
}

#[cfg(test)]
mod tests;
