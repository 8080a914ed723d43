//! An import's JSON text as the model sees it.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{Import, Member};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    clusters: Vec<Named>,
    controllers: Vec<Controller>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Controller {
    name: String,
    exporting_clusters: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Members by their numbers: `m0007`.
fn numbers(names: impl Iterator<Item = Named>) -> BTreeSet<Member> {
    let numbers = names.filter_map(|named| named.name.strip_prefix('m')?.parse().ok());
    numbers.collect()
}

// === impl Import ===

impl Import {
    /// Reads an import as it is stored.
    /// # Errors
    /// When it is no import: then nothing can be said of it.
    pub fn read(text: &[u8]) -> serde_json::Result<Self> {
        let object: Object = serde_json::from_slice(text)?;
        let controllers = object.status.controllers.into_iter();
        let ours = controllers.filter(|one| one.name == crd::annotations::MCI_CONTROLLER);
        Ok(Self {
            entries: numbers(object.status.clusters.into_iter()),
            names: numbers(ours.flat_map(|one| one.exporting_clusters)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_and_names_of_our_controller_are_read() {
        let import = json!({"status": {
            "clusters": [{"name": "m0007", "routingMode": "EndpointMode"}],
            "controllers": [
                {"name": "other.example/controller", "exportingClusters": [{"name": "m0001"}]},
                {"name": crd::annotations::MCI_CONTROLLER, "exportingClusters": [{"name": "m0007"}, {"name": "m0012"}]},
            ],
        }});
        let import = Import::read(import.to_string().as_bytes()).expect("an import");
        assert_eq!(import.entries, BTreeSet::from([7]));
        assert_eq!(import.names, BTreeSet::from([7, 12]));
        assert_eq!(Import::read(b"{}").expect("nothing"), Import::default());
        assert!(Import::read(b"{").is_err());
    }
}
