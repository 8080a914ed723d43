//! Components as an SPDX 2.3 document. Pure: the same components give the same text.

use serde_json::{Value, json};

use super::{Component, Id};

/// Of a program whose image has this digest; `time` as SPDX writes it.
pub(in crate::images) fn document(
    about: &Component,
    digest: &str,
    time: &str,
    components: &[Component],
) -> String {
    let image = format!("{}-image", about.name);
    let image = json!({
        "SPDXID": "SPDXRef-Image",
        "name": image,
        "versionInfo": about.version,
        "primaryPackagePurpose": "CONTAINER",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": declared(about),
        "copyrightText": "NOASSERTION",
        "externalRefs": [url(&format!("pkg:oci/{}@{digest}", about.name))],
    });
    let mut relationships = vec![relationship(
        "SPDXRef-DOCUMENT",
        "DESCRIBES",
        "SPDXRef-Image",
    )];
    let mut packages = vec![image];
    for component in components {
        let id = reference(&component.id());
        relationships.push(relationship("SPDXRef-Image", "CONTAINS", &id));
        packages.push(package(component, &id));
    }
    for component in components {
        let from = reference(&component.id());
        let needs = component.needs.iter();
        relationships.extend(needs.map(|to| relationship(&from, "DEPENDS_ON", &reference(to))));
    }
    let text = json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{}-{}", about.name, about.version),
        "documentNamespace": format!("https://isthmus.dev/spdx/{}-{}-{}", about.name, about.version, digest.replace(':', "-")),
        "creationInfo": { "created": time, "creators": [format!("Tool: isthmus-xtask-{}", env!("CARGO_PKG_VERSION"))] },
        "packages": packages,
        "relationships": relationships,
    });
    format!("{text:#}\n")
}

fn package(component: &Component, id: &str) -> Value {
    let mut package = json!({
        "SPDXID": id,
        "name": component.name,
        "versionInfo": component.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": declared(component),
        "copyrightText": "NOASSERTION",
        "externalRefs": [url(&component.url)],
    });
    if let (Some(checksum), Some(fields)) = (&component.checksum, package.as_object_mut()) {
        let checksums = json!([{ "algorithm": "SHA256", "checksumValue": checksum }]);
        fields.insert("checksums".to_owned(), checksums);
    }
    package
}

fn declared(component: &Component) -> &str {
    component.licences.as_deref().unwrap_or("NOASSERTION")
}

fn url(url: &str) -> Value {
    json!({ "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url })
}

fn relationship(from: &str, kind: &str, to: &str) -> Value {
    json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to })
}

/// Letters, digits, dots and dashes are allowed.
fn reference((name, version): &Id) -> String {
    let text = format!("SPDXRef-Package-{name}-{version}");
    text.replace(|it: char| !it.is_ascii_alphanumeric() && it != '.', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(name: &str, needs: &[(&str, &str)]) -> Component {
        let needs = needs.iter();
        Component {
            name: name.to_owned(),
            version: "1.0.0+x".to_owned(),
            licences: (name != "odd").then(|| "MIT".to_owned()),
            checksum: Some("00".to_owned()),
            url: format!("pkg:cargo/{name}@1.0.0"),
            needs: needs
                .map(|(name, version)| ((*name).to_owned(), (*version).to_owned()))
                .collect(),
            ..Component::default()
        }
    }

    #[test]
    fn documents_name_each_package_once_and_relate_only_packages_that_they_name() {
        let epp = component("epp", &[("odd_name", "1.0.0+x")]);
        let components = [epp.clone(), component("odd_name", &[])];
        let text = document(&epp, "sha256:00", "2026-01-02T03:04:05Z", &components);
        assert_eq!(
            text,
            document(&epp, "sha256:00", "2026-01-02T03:04:05Z", &components)
        );
        let document: Value = serde_json::from_str(&text).unwrap();
        let ids: Vec<&str> = document["packages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|package| package["SPDXID"].as_str().unwrap())
            .collect();
        let names = [
            "SPDXRef-Image",
            "SPDXRef-Package-epp-1.0.0-x",
            "SPDXRef-Package-odd-name-1.0.0-x",
        ];
        assert_eq!(ids, names);
        for relationship in document["relationships"].as_array().unwrap() {
            for end in ["spdxElementId", "relatedSpdxElement"] {
                let end = relationship[end].as_str().unwrap();
                assert!(ids.contains(&end) || end == "SPDXRef-DOCUMENT", "{end}");
            }
        }
        assert_eq!(document["relationships"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn a_licence_that_is_not_known_is_not_asserted() {
        let odd = component("odd", &[]);
        let text = document(&odd, "sha256:00", "", std::slice::from_ref(&odd));
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["packages"][1]["licenseDeclared"], "NOASSERTION");
    }
}
