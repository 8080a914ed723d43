//! The texts of conditions, as users read them.

use rstest::rstest;

use super::*;

const POOLS: &str = "inference.networking.k8s.io";
const IMPORTS: &str = "inference.networking.x-k8s.io";

#[rstest]
#[case::experimental_pool(
    IMPORTS,
    "InferencePool",
    "use inference.networking.k8s.io/InferencePool ("
)]
#[case::pool_without_group("", "InferencePool", "use inference.networking.k8s.io/InferencePool (")]
#[case::stable_import(
    POOLS,
    "InferencePoolImport",
    "use inference.networking.x-k8s.io/InferencePoolImport ("
)]
#[case::import_without_group(
    "",
    "InferencePoolImport",
    "use inference.networking.x-k8s.io/InferencePoolImport ("
)]
#[case::service("v1", "Service", "use a Service of the core group (")]
#[case::other(
    "",
    "Bucket",
    "use a Service of the core group, inference.networking.k8s.io/InferencePool or "
)]
fn wrong_kind_of_backend_names_the_right_one(
    #[case] group: &str,
    #[case] kind: &str,
    #[case] advice: &str,
) {
    let mut backend = mk_ref("pool", "llm", 1);
    (backend.group, backend.kind) = (group.into(), kind.into());
    let mut world = mk_world();
    add_route(&mut world, mk_route("r", vec![mk_rule("/", vec![backend])]));
    let (_, wanted) = build_all(&world);
    let resolved = &wanted.routes[&key("r")][0].conditions[1];
    assert_eq!(resolved.reason, "InvalidKind");
    assert!(resolved.message.contains(advice), "{}", resolved.message);
    let written = format!("use {group}/{kind}");
    assert!(!resolved.message.contains(&written), "{}", resolved.message);
    assert!(!resolved.message.starts_with('/'), "{}", resolved.message);
}

#[rstest]
#[case::no_such_port(Some(9999), "Service ns/epp of endpointPickerRef has no TCP port 9999")]
#[case::none(
    None,
    "endpointPickerRef names no port of Service ns/epp: set port.number"
)]
fn picker_port_is_written_as_a_number(#[case] port: Option<u16>, #[case] message: &str) {
    let mut world = mk_world();
    let pool = world.pools.get_mut(&key("llm")).unwrap();
    pool.picker.as_mut().unwrap().port = port;
    let (_, wanted) = build_all(&world);
    assert_eq!(wanted.pools[&key("llm")][0].conditions[1].message, message);
}

#[rstest]
#[case::line("10.2.0.9\neast 1000", r#""10.2.0.9\neast 1000""#)]
#[case::terminal("\u{1b}[2J", r#""\u001b[2J""#)]
#[case::long(&"a".repeat(200), &format!("\"{}…\"", "a".repeat(100)))]
fn address_of_another_cluster_is_quoted(#[case] address: &str, #[case] shown: &str) {
    let mut world = mk_world();
    world
        .imports
        .insert(key("llm"), mk_import(&[("east", address)]));
    let (_, wanted) = build_all(&world);
    let message = &import_conditions(&wanted, "llm")[2].message;
    let wanted = format!("east AddressDenied (address {shown} is not allowed)");
    assert_eq!(*message, wanted);
}

/// Whoever writes the status of an import writes these names; Envoy's resources are called by them.
#[rstest]
#[case::hop_of_the_local_pool("@pool", r#""@pool""#)]
#[case::path("a/b", r#""a/b""#)]
#[case::any("*", r#""*""#)]
#[case::upper_case("EAST", r#""EAST""#)]
#[case::letter("é", r#""é""#)]
#[case::newline("a\n", r#""a\n""#)]
#[case::dash("-a", r#""-a""#)]
#[case::dot("a.b", r#""a.b""#)]
#[case::long(&"a".repeat(64), &format!("{:?}", "a".repeat(64)))]
#[case::megabyte(&"a".repeat(1 << 20), &format!("\"{}…\"", "a".repeat(100)))]
#[case::empty("", r#""""#)]
fn entry_whose_name_is_no_label_is_ignored_and_named(#[case] name: &str, #[case] shown: &str) {
    let mut world = mk_world();
    let import = mk_import(&[(name, "10.2.0.7"), ("east", "10.2.0.9")]);
    world.imports.insert(key("llm"), import);
    let (models, wanted) = build_all(&world);
    let hops = models[0].imports[&key("llm")].hops();
    let hops: Vec<&str> = hops.map(|(cluster, _)| &*cluster.name).collect();
    assert_eq!(hops, ["east"]);
    let message = &import_conditions(&wanted, "llm")[2].message;
    assert_eq!(*message, format!("east 1000; {shown} InvalidName"));
}

#[test]
fn longest_label_is_the_name_of_a_cluster() {
    let name = "a".repeat(63);
    let mut world = mk_world();
    world
        .imports
        .insert(key("llm"), mk_import(&[(&name, "10.2.0.9")]));
    let (models, _) = build_all(&world);
    assert_eq!(models[0].imports[&key("llm")].hops().count(), 1);
}
