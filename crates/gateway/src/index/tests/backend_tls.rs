//! What a policy for TLS asked for, and until when it holds.

use super::*;
use crate::model::backend_tls::named_maps;
use crate::world::authorities::mk_map;

type Policy = crate::world::RawTlsPolicy;

fn mk_policy(name: &str, maps: &[&str], hostname: &str) -> Policy {
    let refs = maps
        .iter()
        .map(|map| json!({"group": "", "kind": "ConfigMap", "name": map}));
    let object = json!({
        "metadata": {"namespace": "ns", "name": name},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "validation": {
                "hostname": hostname,
                "caCertificateRefs": refs.collect::<Vec<_>>(),
            },
        },
    });
    serde_json::from_value(object).unwrap()
}

fn listed(index: &mut Index, name: &str) {
    let pem = String::from_utf8(Ca::new("a").pem()).unwrap();
    let list = vec![mk_map(name, &pem)];
    let event = Event::ConfigMap(Key::new("ns", name), Update::Reset(list));
    on(index, event);
}

fn apply(index: &mut Index, policy: Policy) {
    on(index, Event::TlsPolicies(Update::Apply(policy)));
}

/// The host name of what the policy `tls` asked for before.
fn before(index: &Index) -> Option<&str> {
    let before = index.world.tls_before.get(&Key::new("ns", "tls"));
    before.map(|validation| validation.hostname.as_str())
}

fn maps(index: &Index) -> Vec<String> {
    let named = named_maps(&index.world).into_iter();
    named.map(|key| key.name).collect()
}

/// A backend would else not be connected to while the next authorities are read.
#[test]
fn what_a_policy_asked_for_holds_until_its_next_authorities_are_listed() {
    let mut index = Index::default();
    apply(&mut index, mk_policy("tls", &["one"], "a.b"));
    assert_eq!(before(&index), None);
    listed(&mut index, "one");
    apply(&mut index, mk_policy("tls", &["two"], "c.d"));
    assert_eq!(before(&index), Some("a.b"));
    apply(&mut index, mk_policy("tls", &["three"], "e.f"));
    assert_eq!(before(&index), Some("a.b"));
    assert_eq!(maps(&index), ["one", "three"]);
    listed(&mut index, "three");
    assert_eq!(before(&index), None);
    assert_eq!(maps(&index), ["three"]);
}

/// Edits come in a list where the watch starts again.
#[test]
fn what_a_policy_asked_for_holds_where_a_list_has_its_edit() {
    let mut index = Index::default();
    apply(&mut index, mk_policy("tls", &["one"], "a.b"));
    listed(&mut index, "one");
    let edited = vec![mk_policy("tls", &["two"], "c.d")];
    on(&mut index, Event::TlsPolicies(Update::Reset(edited)));
    assert_eq!(before(&index), Some("a.b"));
    listed(&mut index, "two");
    assert_eq!(before(&index), None);
}

/// Policies that go before `tls` and name 63 ConfigMaps of the 64.
fn mk_almost_full() -> Index {
    let mut index = Index::default();
    let names: Vec<String> = (0..63).map(|number| format!("m{number:02}")).collect();
    for (number, names) in names.chunks(8).enumerate() {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        apply(&mut index, mk_policy(&format!("a{number}"), &names, "a.b"));
    }
    apply(&mut index, mk_policy("tls", &["one"], "a.b"));
    listed(&mut index, "one");
    assert_eq!(maps(&index).len(), 64);
    index
}

#[test]
fn config_map_beyond_the_bound_is_not_waited_for() {
    let mut index = mk_almost_full();
    apply(&mut index, mk_policy("tls", &["one", "two"], "c.d"));
    assert_eq!(before(&index), None);
    assert!(!maps(&index).contains(&"two".to_owned()));
}

#[test]
fn config_map_of_before_takes_no_place_of_one_that_is_named() {
    let mut index = mk_almost_full();
    apply(&mut index, mk_policy("tls", &["two"], "c.d"));
    assert_eq!(before(&index), Some("a.b"));
    let named = maps(&index);
    assert!(named.contains(&"one".to_owned()), "{named:?}");
    assert!(named.contains(&"two".to_owned()), "{named:?}");
    listed(&mut index, "two");
    assert_eq!(before(&index), None);
    assert_eq!(maps(&index).len(), 64);
}
