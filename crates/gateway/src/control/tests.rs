//! What follows from events, one after the other, is what follows from everything that is known in the end.

use std::sync::LazyLock;
use std::time::Duration;

use ::tls::test_pki::Ca;
use ::watch::Update;
use crd::conditions::PROGRAMMED;
use moment::Moment;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::feedback::Feedback;
use crate::fixture::{key, mk_feedback, mk_https_listener, mk_options, mk_settings, mk_world};
use crate::infra::MANAGED_BY;
use crate::model::{Cond, Truth, WantedStatus, build_with};
use crate::select::ClusterId;
use crate::world::Formers;
use crate::world::secrets::{mk_pem, mk_secret};
use crate::xds::Kind;

/// Authorities of backends, and a certificate of a listener with its key.
static AUTHORITIES: LazyLock<[String; 2]> =
    LazyLock::new(|| ["a", "b"].map(|name| String::from_utf8(Ca::new(name).pem()).unwrap()));
static CERTIFICATES: LazyLock<[(String, String); 2]> =
    LazyLock::new(|| ["a.example", "b"].map(|host| mk_pem(&Ca::new("a"), host)));

#[test]
fn secrets_that_listeners_name_are_watched() {
    let mut world = mk_world();
    let gateway = world.gateways.get_mut(&key("gw")).unwrap();
    gateway
        .listeners
        .push(mk_https_listener("https", 443, None, &["cert"]));
    let sources = wanted_sources(&world, &mk_settings().controller);
    assert!(sources.contains_key(&Source::Secret(key("cert"))));
}

/// Its other routes are served, and so is the Gateway.
#[test]
fn refused_hop_shows_on_the_routes_that_lead_to_it_alone() {
    let is_programmed = |conditions: &[Cond]| {
        let mut programmed = conditions.iter().filter(|one| one.kind == PROGRAMMED);
        programmed.all(|one| one.status == Truth::True)
    };
    for name in [
        "hop/ns/llm/east",
        "hop/ns/llm/east/@parent",
        "hop/ns/llm/@pool",
    ] {
        for kind in [Kind::Listener, Kind::Routes] {
            let refused = Rejection {
                of: names::refused(kind, name),
                name: name.to_owned(),
                message: "no".to_owned(),
                others_serve: false,
            };
            let mut feedback = mk_feedback();
            feedback.rejections.insert(key("gw"), vec![refused]);
            let (_, wanted) = build_with(&mk_world(), &feedback, &mk_settings());
            let gateway = &wanted.gateways[&key("gw")];
            let listeners = gateway.listeners.iter().map(|one| &one.conditions);
            let routes = ["chat", "web"].map(|route| &wanted.routes[&key(route)][0].conditions);
            let said = [&gateway.conditions]
                .into_iter()
                .chain(listeners)
                .chain(routes);
            let said: Vec<bool> = said.map(|conditions| is_programmed(conditions)).collect();
            assert_eq!(said, [true, true, false, true], "{kind:?} {name}");
        }
    }
}

/// The parts of the loop that need nothing else.
#[derive(Default)]
struct Bed {
    index: Index,
    decided: Decided,
    selector: Selector,
    now: Moment,
}

impl Bed {
    /// What follows from the changes; everything that is other than before must be named as such.
    fn follow(&mut self, changes: Changes) -> Result<(), TestCaseError> {
        let before = (
            self.decided.built.wanted.clone(),
            self.decided.selection.clone(),
        );
        let (mut status, unreported) = self.decide(&changes.world);
        let mut reads = changes.endpoints;
        let mut selects = changes.selection;
        if !changes.world.is_empty() || changes.observed {
            selects |= self.observe();
        }
        if selects || status.has_imports() || changes.world.all {
            let now = self.selector.selection();
            let before = std::mem::replace(&mut self.decided.selection, now);
            for import in self.decided.selection.differing(&before) {
                status.targets.insert(Target::Import(import.clone()));
                reads.insert(Reads::Import(import));
            }
        }
        self.observe();
        prop_assert_eq!(&self.decided.selection, &self.selector.selection());
        let Decided {
            served, selection, ..
        } = &mut self.decided;
        served.assign(&reads, &self.index.endpoints, selection);
        let Index {
            world, feedback, ..
        } = &self.index;
        let built = &mut self.decided.built;
        status.add(built.report(world, feedback, &mk_settings(), unreported));
        let (selection, now) = (&self.decided.selection, &self.decided.built.wanted);
        let said = |wanted: &WantedStatus, selection: &Selection| -> BTreeMap<Target, Wanted> {
            crate::status::wanted(wanted, selection).collect()
        };
        let (before, now) = (said(&before.0, &before.1), said(now, selection));
        for (target, wanted) in &now {
            let is_named = status.all || status.targets.contains(target);
            prop_assert!(
                is_named || before.get(target) == Some(wanted),
                "{target:?} is not named"
            );
            let one = crate::status::wanted_of(target, &self.decided.built.wanted, selection);
            prop_assert_eq!(one.as_ref(), Some(wanted));
        }
        Ok(())
    }

    /// Whether shares may be other than before.
    fn observe(&mut self) -> bool {
        let (imports, world) = (self.decided.imports(), &self.index.world);
        let wanted = inputs::wanted(&imports, &self.decided.built.policies, world);
        let changed = self.selector.sync(wanted);
        self.selector.advance(self.now) || changed
    }

    /// A second later a probe ends.
    fn probe(&mut self, mut number: usize) -> Changes {
        let number = &mut number;
        self.now = self.now.plus(Duration::from_secs(1));
        let fact = Fact::Probed {
            cluster: ClusterId {
                import: key("llm"),
                cluster: pick(&["east", "north", "west"], number).to_owned(),
            },
            result: pick(
                &[Ok(()), Err("no connection"), Err("no connection")],
                number,
            ),
        };
        let recorded = self.selector.record(fact, self.now);
        Changes {
            selection: self.selector.advance(self.now) || recorded,
            ..Changes::default()
        }
    }

    /// What ends meanwhile has ended.
    fn wait(&mut self, time: Duration) -> Changes {
        self.now = self.now.plus(time);
        let mut changes = self.index.expire(self.now);
        changes.selection |= self.selector.advance(self.now);
        changes
    }

    fn decide(&mut self, touched: &Touched) -> (StatusDelta, Unreported) {
        let Decided {
            built,
            served,
            selection,
            ..
        } = &mut self.decided;
        let Delta {
            models,
            status,
            unreported,
        } = built.update(&self.index.world, &mk_settings(), touched);
        for gateway in &models {
            let model = built.models.get(gateway).map(|model| &**model);
            let (options, endpoints) = (mk_options(), &self.index.endpoints);
            served.plan(gateway, model, &options, endpoints, selection);
        }
        (status, unreported)
    }
}

fn mk<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// The object, or its end.
fn update<K: DeserializeOwned>(object: Value, is_gone: bool) -> Update<K> {
    if is_gone {
        Update::Delete(mk(object))
    } else {
        Update::Apply(mk(object))
    }
}

/// One of these, by a number of any size.
fn pick<T: Clone>(all: &[T], number: &mut usize) -> T {
    let picked = all[*number % all.len()].clone();
    *number /= all.len();
    picked
}

fn meta(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "generation": 1})
}

fn route(number: &mut usize) -> Value {
    let mut metadata = meta(
        pick(&["ns", "ns", "other"], number),
        pick(&["a", "b", "c"], number),
    );
    metadata["generation"] = pick(&[1, 2], number).into();
    let parents = [
        json!([{"name": "gw", "namespace": "ns"}]),
        json!([{"name": "gw", "namespace": "ns"}, {"name": "second", "namespace": "ns"}]),
        json!([{"name": "gw", "namespace": "ns"}, {"name": "gw", "namespace": "ns", "port": 80}]),
        json!([{"name": "second", "namespace": "ns"}]),
        json!([{"name": "foreign", "namespace": "ns"}]),
    ];
    let hosts = [
        json!([]),
        json!(["a.example"]),
        json!(["*.example"]),
        json!(["*.example", "a.example", "b"]),
    ];
    let backend = |kind: &str, namespace: &str, name: &str| {
        let (group, port) = match kind {
            "InferencePool" => ("inference.networking.k8s.io", None),
            "InferencePoolImport" => ("inference.networking.x-k8s.io", None),
            _ => ("", Some(8080)),
        };
        json!({"group": group, "kind": kind, "namespace": namespace, "name": name, "port": port})
    };
    let backends = [
        json!([backend("InferencePool", "ns", "llm")]),
        json!([
            backend("InferencePool", "ns", "llm"),
            backend("InferencePoolImport", "ns", "llm")
        ]),
        json!([backend("InferencePoolImport", "ns", "llm")]),
        json!([backend("Service", "ns", "web")]),
        json!([
            backend("Service", "ns", "epp"),
            backend("InferencePool", "other", "llm")
        ]),
        json!([
            backend("InferencePoolImport", "other", "llm"),
            backend("Unknown", "ns", "llm")
        ]),
    ];
    let timeouts = [
        json!({}),
        json!({"request": "10s"}),
        json!({"request": "soon"}),
    ];
    json!({
        "metadata": metadata,
        "spec": {
            "parentRefs": pick(&parents, number),
            "hostnames": pick(&hosts, number),
            "rules": [{"backendRefs": pick(&backends, number), "timeouts": pick(&timeouts, number)}],
        },
    })
}

fn gateway(number: &mut usize) -> Value {
    let selector = json!({"from": "Selector", "selector": {"matchLabels": {"is": "in"}}});
    let from = [json!({"from": "All"}), json!({"from": "Same"}), selector];
    let listener = |name: &str, port: u16, host: Option<&str>, from: &Value| {
        json!({"name": name, "port": port, "protocol": "HTTP", "hostname": host,
            "allowedRoutes": {"namespaces": from}})
    };
    let from = pick(&from, number);
    let listeners = [
        json!([listener("any", 80, None, &from)]),
        json!([
            listener("any", 80, None, &from),
            listener("example", 80, Some("*.example"), &from)
        ]),
        json!([listener("one", 81, Some("a.example"), &from)]),
        json!([{"name": "udp", "port": 80, "protocol": "UDP"}]),
        json!([
            listener("any", 80, None, &from),
            {"name": "tls", "port": 443, "protocol": "HTTPS", "allowedRoutes": {"namespaces": from},
                "tls": {"certificateRefs": [{"name": "cert"}]}},
        ]),
    ];
    let parameters =
        json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "parameters"}});
    json!({
        "metadata": meta("ns", pick(&["gw", "gw", "second"], number)),
        "spec": {
            "gatewayClassName": pick(&["isthmus", "isthmus", "other"], number),
            "listeners": pick(&listeners, number),
            "infrastructure": pick(&[json!({}), parameters], number),
        },
    })
}

/// Of authorities, or of parameters.
fn config_map(number: &mut usize) -> (Key, Value) {
    let [a, b] = &*AUTHORITIES;
    let maps = [
        ("ca", json!({"ca.crt": a})),
        ("ca", json!({"ca.crt": b})),
        ("ca", json!({"ca.crt": "none"})),
        ("parameters", json!({"parameters.yaml": "drainSeconds: 60"})),
        (
            "parameters",
            json!({"parameters.yaml": "serviceType: ClusterIP"}),
        ),
        ("parameters", json!({"parameters.yaml": "unknown: 1"})),
    ];
    let (name, data) = pick(&maps, number);
    (
        key(name),
        json!({"metadata": meta("ns", name), "data": data}),
    )
}

fn pool(number: &mut usize) -> Value {
    let pickers = [
        json!({"name": "epp", "port": {"number": 9002}}),
        json!({"name": "epp", "port": {"number": 9002}, "failureMode": "FailOpen"}),
        json!({"name": "web", "port": {"number": 9002}}),
        json!({"name": "none"}),
    ];
    json!({
        "metadata": meta(pick(&["ns", "ns", "other"], number), "llm"),
        "spec": {
            "selector": {"matchLabels": {"app": "llm"}},
            "targetPorts": pick(&[json!([{"number": 8000}]), json!([{"number": 8000}, {"number": 8001}])], number),
            "endpointPickerRef": pick(&pickers, number),
        },
    })
}

fn import(number: &mut usize) -> Value {
    let entry = |name: &str, ready: &str| {
        json!({
            "name": name, "routingMode": "EndpointMode", "targetPortNumber": 8000, "podCIDRs": ["10.2.0.0/16"],
            "endpointPicker": {"name": "epp", "service": [
                {"type": "LoadBalancer", "addresses": ["203.0.113.9"], "ports": [{"number": 9002, "protocol": "TCP"}]},
            ]},
            "conditions": [
                {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": ready, "reason": "NoEndpoints", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
        })
    };
    let mut by_gateway = entry("east", "True");
    by_gateway["routingMode"] = "ParentMode".into();
    by_gateway["parents"] = json!([{
        "name": "front", "namespace": "ns", "hostnames": [],
        "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}],
        "service": [{"type": "LoadBalancer", "addresses": ["203.0.113.7"], "ports": [{"number": 80, "appProtocol": "http"}]}],
    }]);
    let mut by_no_gateway = entry("east", "False");
    by_no_gateway["routingMode"] = "ParentMode".into();
    let clusters = [
        json!([entry("east", "True")]),
        json!([by_gateway]),
        json!([by_no_gateway]),
        json!([entry("east", "True"), entry("north", "False")]),
        json!([entry("east", "True"), entry("north", "True")]),
        json!([]),
    ];
    json!({
        "metadata": meta(pick(&["ns", "ns", "other"], number), "llm"),
        "status": {"clusters": pick(&clusters, number)},
    })
}

fn service(number: &mut usize) -> Value {
    let port = |name: &str, number: u16, protocol: Option<&str>| json!({"name": name, "port": number, "protocol": "TCP", "appProtocol": protocol});
    let specs = [
        json!({"ports": [port("http", 8080, None), port("grpc", 9002, None)]}),
        json!({"ports": [port("http", 8080, Some("kubernetes.io/h2c")), port("grpc", 9002, None), port("health", 9003, None)]}),
        json!({"ports": [port("grpc", 9002, None)]}),
        json!({"type": "ExternalName", "externalName": "a.example"}),
        json!({"type": "LoadBalancer", "ports": [port("http", 8080, None)]}),
    ];
    json!({
        "metadata": meta("ns", pick(&["web", "epp"], number)),
        "spec": pick(&specs, number),
        "status": {"loadBalancer": {"ingress": pick(&[json!([]), json!([{"ip": "203.0.113.9"}])], number)}},
    })
}

fn slice(number: &mut usize) -> Value {
    let service = pick(&["web", "epp", "unused"], number);
    let name = pick(&["one", "two"], number);
    let ports = [
        json!([{"name": "http", "port": 3000}]),
        json!([{"name": "grpc", "port": 9002}, {"name": "health", "port": 9003}]),
    ];
    let ready = pick(&[true, true, false], number);
    let address = pick(&["10.1.0.1", "10.1.0.2"], number);
    json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
        "ports": pick(&ports, number),
    })
}

fn pod(number: &mut usize) -> Value {
    let status = pick(&["True", "True", "False"], number);
    let (name, ip) = pick(&[("a", "10.1.0.8"), ("b", "10.1.0.9")], number);
    json!({
        "metadata": {"namespace": "ns", "name": name},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": status}]},
    })
}

fn deployment(number: &mut usize) -> Value {
    let gateway = pick(&["gw", "second"], number);
    json!({
        "metadata": {
            "namespace": "ns", "name": format!("{gateway}-isthmus"),
            "labels": {(crd::annotations::MANAGED_BY): MANAGED_BY},
            "ownerReferences": [{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": gateway,
                "uid": format!("uid-{gateway}"), "controller": true}],
        },
        "status": {"availableReplicas": pick(&[0, 1, 2], number)},
    })
}

fn grant(number: &mut usize) -> Value {
    let kinds = ["InferencePool", "InferencePoolImport"];
    let groups = [
        "inference.networking.k8s.io",
        "inference.networking.x-k8s.io",
    ];
    let to = kinds.iter().zip(groups);
    let to: Vec<Value> = to
        .map(|(kind, group)| json!({"group": group, "kind": kind}))
        .collect();
    let from = pick(&["ns", "elsewhere"], number);
    json!({
        "metadata": meta("other", "grant"),
        "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": from}],
            "to": to,
        },
    })
}

fn policy(number: &mut usize) -> Value {
    json!({
        "metadata": meta("ns", pick(&["first", "second"], number)),
        "spec": {
            "localPool": pick(&["Include", "Exclude"], number),
            "type": pick(&["HealthBased", "ActivePassive"], number),
            "targetRefs": [{"group": "inference.networking.x-k8s.io", "kind": "InferencePoolImport", "name": "llm"}],
        },
    })
}

fn tls_policy(number: &mut usize) -> Value {
    let target = |group: &str, kind: &str, name: &str, section: Option<&str>| json!({"group": group, "kind": kind, "name": name, "sectionName": section});
    let targets = [
        json!([target("", "Service", "web", None)]),
        json!([target("", "Service", "web", Some("http"))]),
        json!([target("", "Service", "epp", Some("none"))]),
        json!([target("", "Service", "epp", None)]),
        json!([target(
            "inference.networking.x-k8s.io",
            "InferencePoolImport",
            "llm",
            Some("north")
        )]),
    ];
    let named = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
    let validations = [
        json!({"hostname": "a.example", "wellKnownCACertificates": "System"}),
        json!({"hostname": "b.example", "wellKnownCACertificates": "System"}),
        json!({"hostname": "a.example", "caCertificateRefs": named}),
    ];
    json!({
        "metadata": meta("ns", pick(&["first", "second"], number)),
        "spec": {
            "targetRefs": pick(&targets, number),
            "validation": pick(&validations, number),
        },
    })
}

fn node(number: &mut usize) -> Value {
    let networks = pick(&[json!(["10.9.0.0/24"]), json!(["203.0.113.0/24"])], number);
    json!({"metadata": {"name": "node"}, "spec": {"podCIDRs": networks}})
}

/// Something that may happen.
fn event(kind: usize, mut number: usize) -> Event {
    let number = &mut number;
    let is_gone = pick(&[false, false, false, true], number);
    match kind {
        0..=3 => Event::Routes(update(route(number), is_gone)),
        4 => Event::Gateways(update(gateway(number), is_gone)),
        5 | 6 => Event::Pools(update(pool(number), is_gone)),
        7 | 8 => Event::Imports(update(import(number), is_gone)),
        9 | 10 => Event::Services(update(service(number), is_gone)),
        11 | 12 => Event::Slices(update(slice(number), is_gone)),
        13 => Event::Pods(key("llm"), update(pod(number), is_gone)),
        14 => Event::Deployments(update(deployment(number), is_gone)),
        15 => Event::Grants(update(grant(number), is_gone)),
        16 => Event::Policies(update(policy(number), is_gone)),
        17 => Event::Nodes(update(node(number), is_gone)),
        18 => {
            let labels = pick(&[json!({}), json!({"is": "in"})], number);
            let name = pick(&["ns", "other"], number);
            let namespace = json!({"metadata": {"name": name, "labels": labels}});
            Event::Namespaces(update(namespace, false))
        }
        19 => {
            let controller = pick(&[crate::fixture::CONTROLLER, "example.com/other"], number);
            let class = json!({"metadata": {"name": "isthmus", "generation": 1}, "spec": {"controllerName": controller}});
            Event::Classes(update(class, is_gone))
        }
        20 => {
            let kinds = [
                "Gateway",
                "HTTPRoute",
                "InferencePool",
                "InferencePoolImport",
            ];
            Event::Confirmed(pick(&kinds, number), pick(&[true, true, false], number))
        }
        21 => Event::TlsPolicies(update(tls_policy(number), is_gone)),
        22 => {
            let (key, map) = config_map(number);
            Event::ConfigMap(key, update(map, is_gone))
        }
        23 => {
            let (chain, private) = pick(&*CERTIFICATES, number);
            let secret = mk_secret("cert", "kubernetes.io/tls", &chain, &private);
            let update = if is_gone {
                Update::Delete(secret)
            } else {
                Update::Apply(secret)
            };
            Event::Secret(key("cert"), update)
        }
        _ => Event::Services(Update::Reset(vec![
            mk(service(number)),
            mk(service(number)),
        ])),
    }
}

/// Enough for most of what happens to matter.
fn beginning() -> Vec<Event> {
    let class = json!({"metadata": {"name": "isthmus", "generation": 1}, "spec": {"controllerName": crate::fixture::CONTROLLER}});
    let mut events = vec![Event::Classes(Update::Apply(mk(class)))];
    for kind in [
        "Gateway",
        "HTTPRoute",
        "InferencePool",
        "InferencePoolImport",
        "GatewayClass",
    ] {
        events.push(Event::Confirmed(kind, true));
    }
    events.push(Event::Gateways(Update::Apply(mk(gateway(&mut 0)))));
    events.push(Event::Pools(Update::Apply(mk(pool(&mut 0)))));
    events.push(Event::Imports(Update::Apply(mk(import(&mut 0)))));
    for mut number in 0..2 {
        events.push(Event::Services(Update::Apply(mk(service(&mut number)))));
    }
    events.push(Event::Routes(Update::Apply(mk(route(&mut 0)))));
    // What is named and not listed yet leaves a Gateway as it was, which is not as it would be built from nothing.
    for name in ["ca", "parameters"] {
        events.push(Event::ConfigMap(key(name), Update::Reset(Vec::new())));
    }
    events.push(Event::Secret(key("cert"), Update::Reset(Vec::new())));
    events
}

/// What Envoys of a Gateway refuse, or refuse no more.
fn refuse(feedback: &mut Feedback, mut number: usize) -> Changes {
    let number = &mut number;
    let gateway = key(pick(&["gw", "second"], number));
    let (kind, name) = pick(
        &[
            (Kind::Cluster, "pool/ns/llm"),
            (Kind::Cluster, "import/ns/llm"),
            (Kind::Listener, "edge/80"),
            (Kind::Listener, "hop/ns/llm/east"),
            (Kind::Secret, "ca/ns/ca"),
        ],
        number,
    );
    let refused = Rejection {
        of: names::refused(kind, name),
        name: name.to_owned(),
        message: "no".to_owned(),
        others_serve: pick(&[false, true], number),
    };
    let refused = pick(&[vec![refused], Vec::new()], number);
    let before = feedback.rejections.insert(gateway.clone(), refused.clone());
    let reports = Some(gateway).filter(|_| before != Some(refused));
    Changes {
        world: Touched {
            reports: reports.into_iter().collect(),
            ..Touched::default()
        },
        ..Changes::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Models, snapshots and what every object's status shall say.
    #[test]
    fn after_any_events_all_is_as_if_it_were_built_from_nothing(
        bursts in prop::collection::vec(prop::collection::vec((0_usize..28, 0_usize..1_000_000), 1..4), 1..12)
    ) {
        let mut bed = Bed::default();
        for event in beginning() {
            let changes = bed.index.on(event, bed.now);
            bed.follow(changes)?;
        }
        for burst in bursts {
            let mut changes = Changes::default();
            for (kind, number) in burst {
                changes.add(match kind {
                    24 => refuse(&mut bed.index.feedback, number),
                    25 => bed.probe(number),
                    27 => bed.wait(Duration::from_secs(20)),
                    _ => bed.index.on(event(kind, number), bed.now),
                });
            }
            bed.follow(changes)?;
            let Bed { index, decided, .. } = &bed;
            let Index { world, feedback, endpoints, .. } = index;
            let mut built = Built::default();
            let Delta { unreported, .. } = built.update(world, &mk_settings(), &Touched::all());
            built.report(world, feedback, &mk_settings(), unreported);
            prop_assert_eq!(&decided.built.models, &built.models);
            prop_assert_eq!(&decided.built.wanted, &built.wanted);
            let mut served = Served::default();
            for (gateway, model) in &built.models {
                served.plan(gateway, Some(model), &mk_options(), endpoints, &decided.selection);
            }
            prop_assert_eq!(&decided.served.snapshots, &served.snapshots);
        }
        // in the end no former mode is left
        let changes = bed.wait(Duration::from_mins(10));
        bed.follow(changes)?;
        prop_assert_eq!(&bed.index.world.formers, &Formers::default());
        let imports = bed.decided.built.models.values().flat_map(|model| model.imports.values());
        prop_assert!(imports.into_iter().all(|import| import.formers.is_empty()));
    }
}
