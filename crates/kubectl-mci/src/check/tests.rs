use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mci_inventory::client::CertificateProblem;
use serde_json::json;

mod diagnosis;

use super::{
    facts::{
        ClassFacts, ClusterFacts, CredentialFacts, Definition, Denied, Facts, HomeFacts, Inside,
        Life, MemberFacts, Picker, ServiceKind, TokenFacts, Tried, Version, Workload,
    },
    judge::{definition_names, judge},
    *,
};
use crate::{
    controller::{ActiveView, MemberView, View},
    member::{MemberRights, Right, Subject},
    status,
};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("a time")
}

fn hours(hours: i64) -> SignedDuration {
    SignedDuration::from_hours(hours)
}

/// Nothing is wrong: home in west, members east and west, a pool of east that west imports.
fn mk_facts() -> Facts {
    let member = |name: &str| MemberFacts {
        name: name.to_owned(),
        source: format!("Secret isthmus-system/{name}"),
        held: None,
        ignored: Vec::new(),
        credentials: CredentialFacts::InSecret(Ok(TokenFacts {
            server: format!("https://{name}"),
            life: Some(Life {
                from: now() - hours(24),
                until: now() + hours(8760),
            }),
            tried: Tried::Works(Some(format!("uid-{name}"))),
            subject: None,
        })),
    };
    let said = |name: &str| MemberView {
        name: name.to_owned(),
        active: ActiveView {
            status: true,
            reason: "Active".to_owned(),
            message: "in contact".to_owned(),
        },
        source: format!("Secret isthmus-system/{name}"),
        pod_cidrs: Some(vec!["10.2.0.0/16".to_owned()]),
        export_namespaces: Some("*".to_owned()),
        ..MemberView::default()
    };
    Facts {
        now: now(),
        home: HomeFacts {
            context: "west".to_owned(),
            namespace: "isthmus-system".to_owned(),
            clusterset: "default".to_owned(),
            controller: Ok(Some(mk_workload())),
            renewed: Ok(Some(now() - SignedDuration::from_secs(3))),
            members: vec![member("east"), member("west")],
            unseen: Vec::new(),
            view: Some(Ok(View {
                clusters: vec![said("east"), said("west")],
                ..View::default()
            })),
        },
        clusters: vec![mk_cluster("east"), mk_cluster("west")],
        seen: vec![
            mk_seen("east", mk_pool(), json!([])),
            mk_seen("west", json!([]), mk_import()),
        ],
    }
}

fn mk_workload() -> Workload {
    Workload {
        available: 1,
        wanted: 1,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn mk_cluster(name: &str) -> ClusterFacts {
    let definition = Definition {
        established: true,
        served: vec!["v1".to_owned()],
        bundle: Some(crd::annotations::BUNDLE_VERSION_VALUE.to_owned()),
        has_clusters: true,
        has_networks: true,
    };
    let picker = Picker::Service {
        name: "llama-epp".to_owned(),
        kind: ServiceKind::Headless,
        addresses: Vec::new(),
        ready: 2,
        ignored: Vec::new(),
    };
    let key = ("llm".to_owned(), "llama".to_owned());
    let pickers = (name == "east").then_some((key, Ok(picker)));
    ClusterFacts {
        name: name.to_owned(),
        context: Some(name.to_owned()),
        inside: Ok(Inside {
            uid: Some(format!("uid-{name}")),
            version: Ok(Version {
                major: 1,
                minor: 34,
                text: "v1.34.1".to_owned(),
            }),
            definitions: Ok(definition_names()
                .map(|name| (name.to_owned(), definition.clone()))
                .collect()),
            denied: Some(Ok(mk_denied("isthmus-mci-controller", 0))),
            gateway_class: Ok(None),
            gateway: Ok(None),
            pods: pickers
                .iter()
                .map(|(key, _)| {
                    (
                        key.clone(),
                        Ok(vec!["10.2.0.9".parse().expect("an address")]),
                    )
                })
                .collect(),
            pickers: pickers.into_iter().collect::<BTreeMap<_, _>>(),
        }),
    }
}

/// So many rights are missing.
fn mk_denied(account: &str, count: usize) -> Denied {
    let rights = MemberRights::read().expect("the manifest").rights;
    let rights: Vec<Right> = rights.into_iter().take(count).collect();
    let user = format!("system:serviceaccount:isthmus-system:{account}");
    Denied {
        subject: Subject {
            user,
            groups: Vec::new(),
        },
        rights,
    }
}

fn mk_seen(name: &str, pools: serde_json::Value, imports: serde_json::Value) -> status::Seen {
    status::Seen {
        cluster: name.to_owned(),
        context: Some(name.to_owned()),
        facts: Ok(status::Facts {
            namespaces: Some(["llm".to_owned()].into()),
            pools: Ok(serde_json::from_value(pools).expect("pools")),
            imports: Ok(serde_json::from_value(imports).expect("imports")),
            ignored: Vec::new(),
        }),
    }
}

fn mk_pool() -> serde_json::Value {
    json!([{
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"name": "llama", "namespace": "llm",
            "annotations": {"inference.networking.x-k8s.io/export": "ClusterSet"}},
        "spec": {"selector": {"matchLabels": {}}, "targetPorts": []},
        "status": {"parents": [{"parentRef": {"name": "default"}, "controllerName": "isthmus.dev/mci-controller",
            "conditions": [{"type": "Exported", "status": "True", "reason": "Exported", "message": "exported to 1/1",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]},
    }])
}

fn mk_import() -> serde_json::Value {
    json!([{
        "metadata": {"name": "llama", "namespace": "llm",
            "labels": {"app.kubernetes.io/managed-by": "isthmus-mci-controller"}},
        "status": {"clusters": [{"name": "east", "routingMode": "EndpointMode", "targetPortNumber": 8000,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]},
    }])
}

// === impl Facts ===

impl Facts {
    fn inside(&mut self, index: usize) -> &mut Inside {
        self.clusters[index].inside.as_mut().expect("seen")
    }

    fn token(&mut self, index: usize) -> &mut TokenFacts {
        let CredentialFacts::InSecret(Ok(token)) = &mut self.home.members[index].credentials else {
            panic!("no token");
        };
        token
    }

    fn view(&mut self) -> &mut View {
        let view = self.home.view.as_mut().expect("asked");
        view.as_mut().expect("answered")
    }

    fn picker(&mut self) -> &mut Picker {
        let pickers = self.inside(0).pickers.values_mut().next();
        pickers.expect("a picker").as_mut().expect("read")
    }
}

/// Lines that are not good: their level and text.
fn wrong(facts: &Facts) -> Vec<(Level, String)> {
    let groups = judge(facts).groups.into_iter();
    let lines = groups.flat_map(|group| group.lines);
    lines
        .filter(|line| line.level != Level::Good)
        .map(|line| (line.level, line.text))
        .collect()
}

#[test]
fn where_nothing_is_wrong_each_line_is_good() {
    assert_eq!(wrong(&mk_facts()), []);
    let text = text::render(&judge(&mk_facts()), Paint::Plain);
    assert!(text.ends_with("nothing is wrong\n"), "{text}");
    let pools = "llm/llama: exported by east, imported by west";
    assert!(text.contains(pools), "{text}");
}

/// One change, and the one line that it makes.
type Case = (fn(&mut Facts), Level, &'static str);

fn each_is_one_line(cases: &[Case]) {
    for (change, level, words) in cases {
        let mut facts = mk_facts();
        change(&mut facts);
        let wrong = wrong(&facts);
        assert_eq!(wrong.len(), 1, "{words}: {wrong:#?}");
        assert_eq!(wrong[0].0, *level, "{wrong:?}");
        assert!(wrong[0].1.contains(words), "{words}: {wrong:?}");
    }
}

#[test]
fn what_is_wrong_with_the_controller_is_one_line() {
    each_is_one_line(&[
        (
            |f| {
                f.home.controller = Ok(None);
                f.home.renewed = Ok(None);
                f.home.view = None;
            },
            Level::Bad,
            "no controller in isthmus-system",
        ),
        (
            |f| {
                f.home.controller = Ok(Some(Workload {
                    available: 0,
                    ..mk_workload()
                }));
            },
            Level::Bad,
            "the controller: 0 of 1 available",
        ),
        (
            |f| {
                f.home.controller = Ok(Some(Workload {
                    version: "v0.0.1".to_owned(),
                    ..mk_workload()
                }));
            },
            Level::Warning,
            "is of version v0.0.1",
        ),
        (
            |f| f.home.renewed = Ok(Some(now() - hours(1))),
            Level::Bad,
            "was renewed 3600 s ago",
        ),
        (
            |f| f.home.renewed = Ok(None),
            Level::Bad,
            "no Lease isthmus-mci-default",
        ),
        (
            |f| f.home.view = Some(Err("forbidden".to_owned())),
            Level::Unknown,
            "cannot be asked: forbidden",
        ),
        (
            |f| {
                let view = f.view();
                view.clusters[0].active = ActiveView {
                    status: false,
                    reason: "ConnectionLost".to_owned(),
                    message: "no answer".to_owned(),
                };
            },
            Level::Bad,
            "the controller says of east: ConnectionLost",
        ),
    ]);
}

#[test]
fn networks_of_a_member_that_its_pods_are_not_in_are_one_line() {
    each_is_one_line(&[
        (
            |f| f.view().clusters[0].pod_cidrs = Some(Vec::new()),
            Level::Warning,
            "east: Secret isthmus-system/east does not say the networks of its pods",
        ),
        (
            |f| f.view().clusters[0].pod_cidrs = Some(vec!["10.244.0.0/16".to_owned()]),
            Level::Bad,
            "east: 1 of 1 ready pods of what it exports, such as 10.2.0.9 of llm/llama, are outside",
        ),
    ]);
    // pods that were not seen prove nothing
    let mut facts = mk_facts();
    facts.view().clusters[0].pod_cidrs = Some(vec!["10.244.0.0/16".to_owned()]);
    for pods in facts.inside(0).pods.values_mut() {
        *pods = Err("forbidden".to_owned());
    }
    assert_eq!(wrong(&facts), []);
}

fn mk_rejected(why: CertificateProblem) -> Tried {
    Tried::BadCertificate(why, "why".to_owned())
}

#[test]
fn what_is_wrong_with_credentials_is_one_line() {
    each_is_one_line(&[
        (
            |f| f.token(0).life.as_mut().expect("a life").until = now() - hours(1),
            Level::Bad,
            "east: the token in Secret isthmus-system/east ended on",
        ),
        (
            |f| f.token(0).life.as_mut().expect("a life").until = now() + hours(2),
            Level::Warning,
            "works, until",
        ),
        (
            |f| f.token(0).tried = Tried::Refused("Unauthorized".to_owned()),
            Level::Bad,
            "east: https://east refuses the token in Secret isthmus-system/east",
        ),
        (
            |f| f.token(0).tried = Tried::Unreached("timed out".to_owned()),
            Level::Warning,
            "east: https://east is not reached from here",
        ),
        (
            |f| f.token(0).tried = mk_rejected(CertificateProblem::Untrusted),
            Level::Bad,
            "east: https://east answers, and Secret isthmus-system/east has not the authority of its certificate: why",
        ),
        (
            |f| f.token(0).tried = mk_rejected(CertificateProblem::Expired),
            Level::Bad,
            "east: https://east answers, and its certificate has expired or is not valid yet: why",
        ),
        (
            |f| f.token(0).tried = mk_rejected(CertificateProblem::NameMismatch),
            Level::Bad,
            "east: https://east answers, and its certificate is not of the host in Secret isthmus-system/east: why",
        ),
        (
            |f| f.token(0).tried = Tried::Works(Some("uid-north".to_owned())),
            Level::Bad,
            "leads to another cluster than context east",
        ),
        (
            |f| {
                f.home.members[0].credentials =
                    CredentialFacts::InSecret(Err("exec is refused".to_owned()));
            },
            Level::Bad,
            "east: the controller refuses Secret isthmus-system/east: exec is refused",
        ),
        (
            |f| f.home.members[0].credentials = CredentialFacts::Elsewhere,
            Level::Warning,
            "its credentials are not in a Secret, and were not checked",
        ),
        (
            |f| f.home.unseen.push("west: cannot list secrets".to_owned()),
            Level::Unknown,
            "cannot list secrets",
        ),
    ]);
}

#[test]
fn what_is_wrong_with_a_cluster_is_one_line() {
    each_is_one_line(&[
        (
            |f| {
                f.inside(0).version = Ok(Version {
                    major: 1,
                    minor: 30,
                    text: "v1.30.9".to_owned(),
                });
            },
            Level::Bad,
            "Kubernetes v1.30.9 is too old",
        ),
        (
            |f| {
                f.inside(0)
                    .definitions
                    .as_mut()
                    .expect("read")
                    .remove("inferencepools.inference.networking.k8s.io");
            },
            Level::Bad,
            "no CRD of InferencePool",
        ),
        (
            |f| {
                f.inside(0)
                    .definitions
                    .as_mut()
                    .expect("read")
                    .remove(crate::join::IMPORT_CRD);
            },
            Level::Bad,
            "no CRD of InferencePoolImport",
        ),
        (
            |f| {
                f.inside(0)
                    .definitions
                    .as_mut()
                    .expect("read")
                    .get_mut(crate::join::IMPORT_CRD)
                    .expect("a CRD")
                    .has_clusters = false;
            },
            Level::Warning,
            "is upstream's",
        ),
        (
            |f| {
                f.inside(0)
                    .definitions
                    .as_mut()
                    .expect("read")
                    .get_mut(crate::join::IMPORT_CRD)
                    .expect("a CRD")
                    .has_networks = false;
            },
            Level::Bad,
            "the CRD of InferencePoolImport is of an earlier release",
        ),
        (
            |f| {
                f.inside(0)
                    .definitions
                    .as_mut()
                    .expect("read")
                    .get_mut(crate::join::IMPORT_CRD)
                    .expect("a CRD")
                    .bundle = Some("v1.0.0".to_owned());
            },
            Level::Warning,
            "InferencePoolImport (v1.0.0): this version comes with",
        ),
        (
            |f| {
                f.inside(0)
                    .definitions
                    .as_mut()
                    .expect("read")
                    .remove("gateways.gateway.networking.k8s.io");
            },
            Level::Warning,
            "no CRD gateways.gateway.networking.k8s.io",
        ),
    ]);
}

#[test]
fn what_is_wrong_with_rights_or_a_gateway_is_one_line() {
    each_is_one_line(&[
        (
            |f| f.inside(0).denied = Some(Ok(mk_denied("isthmus-mci-controller", 6))),
            Level::Bad,
            "the controller may not: get inferencepools.inference.networking.k8s.io",
        ),
        (
            |f| f.inside(0).denied = None,
            Level::Warning,
            "it is not known by which account the controller comes",
        ),
        (
            |f| f.inside(0).denied = Some(Err("east: cannot review".to_owned())),
            Level::Unknown,
            "cannot review",
        ),
        (
            |f| {
                f.inside(0).gateway_class = Ok(Some(ClassFacts {
                    name: "isthmus".to_owned(),
                    accepted: Some(false),
                    message: "no".to_owned(),
                }));
            },
            Level::Bad,
            "GatewayClass isthmus is not accepted: no",
        ),
        (
            |f| {
                f.inside(0).gateway_class = Ok(Some(ClassFacts {
                    name: "isthmus".to_owned(),
                    accepted: None,
                    message: String::new(),
                }));
            },
            Level::Bad,
            "no gateway has looked at GatewayClass isthmus",
        ),
        (
            |f| f.clusters[1].inside = Err("west: no answer".to_owned()),
            Level::Unknown,
            "west: no answer",
        ),
    ]);
}

#[test]
fn what_is_wrong_with_an_exported_pool_is_one_line() {
    each_is_one_line(&[
        (
            |f| *f.picker() = Picker::NoService("llama-epp".to_owned()),
            Level::Bad,
            "there is no Service llama-epp",
        ),
        (
            |f| *f.picker() = mk_picker(ServiceKind::LoadBalancer, &[], 1),
            Level::Bad,
            "waits for the address of a load balancer",
        ),
        (
            |f| *f.picker() = mk_picker(ServiceKind::Virtual, &["10.96.0.7"], 1),
            Level::Warning,
            "has the address 10.96.0.7",
        ),
        (
            |f| *f.picker() = mk_picker(ServiceKind::Headless, &[], 0),
            Level::Bad,
            "has no ready endpoint",
        ),
        (
            |f| *f.picker() = mk_picker(ServiceKind::ExternalName, &[], 0),
            Level::Bad,
            "is an ExternalName",
        ),
        (
            |f| {
                if let Picker::Service { ignored, .. } = f.picker() {
                    ignored.push("annotation a/b is ignored".to_owned());
                }
            },
            Level::Warning,
            "llm/llama in east: annotation a/b is ignored",
        ),
        (
            |f| {
                let mut pool = mk_pool();
                pool[0]["metadata"]["annotations"]["isthmus.dev/helth-port"] = json!("9003");
                f.seen[0] = mk_seen("east", pool, json!([]));
            },
            Level::Warning,
            "InferencePool llm/llama in east: annotation isthmus.dev/helth-port has no effect",
        ),
        (
            |f| f.home.members[0].ignored = vec!["annotation a/b has no effect".to_owned()],
            Level::Warning,
            "east: Secret isthmus-system/east: annotation a/b has no effect",
        ),
        (
            |f| {
                f.seen[1] = mk_seen("west", json!([]), json!([]));
                f.seen[1].facts.as_mut().expect("seen").namespaces =
                    Some(std::collections::BTreeSet::new());
            },
            Level::Bad,
            "llm/llama in west, from east: NamespaceMissing",
        ),
    ]);
}

fn mk_picker(kind: ServiceKind, addresses: &[&str], ready: usize) -> Picker {
    Picker::Service {
        name: "llama-epp".to_owned(),
        kind,
        addresses: addresses.iter().map(|one| (*one).to_owned()).collect(),
        ready,
        ignored: Vec::new(),
    }
}

#[test]
fn a_namespace_that_one_of_several_lacks_is_told_and_is_no_fault() {
    let mut facts = mk_facts();
    facts.clusters.push(mk_cluster("south"));
    facts.seen.push(mk_seen("south", json!([]), json!([])));
    facts.seen[2].facts.as_mut().expect("seen").namespaces =
        Some(std::collections::BTreeSet::new());
    let levels: Vec<Level> = wrong(&facts).into_iter().map(|(level, _)| level).collect();
    // and that it is no member
    assert_eq!(levels, [Level::Bad, Level::Warning]);
}

#[test]
fn a_controller_outside_of_the_cluster_leads_and_cannot_be_asked() {
    let mut facts = mk_facts();
    facts.home.controller = Ok(None);
    facts.home.view = None;
    let wrong = wrong(&facts);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!(wrong[0].0, Level::Unknown, "{wrong:?}");
}

#[test]
fn a_cluster_is_no_member_where_all_members_were_seen() {
    for (seen, level) in [(true, Level::Bad), (false, Level::Unknown)] {
        let mut facts = mk_facts();
        facts.home.members.remove(1);
        if !seen {
            facts.home.unseen.push("cannot list secrets".to_owned());
        }
        let (found, text) = wrong(&facts).pop().expect("a line");
        assert_eq!(found, level, "{text}");
    }
}

#[test]
fn home_itself_is_a_member_without_credentials() {
    let mut facts = mk_facts();
    facts.home.members[1].credentials = CredentialFacts::OfHome;
    assert_eq!(wrong(&facts), []);
}

#[test]
fn rights_are_granted_to_the_account_by_which_the_controller_comes() {
    for (account, words) in [
        ("isthmus-mci-controller", "kubectl mci join east"),
        ("robot", "grant system:serviceaccount:isthmus-system:robot"),
    ] {
        let mut facts = mk_facts();
        facts.inside(0).denied = Some(Ok(mk_denied(account, 1)));
        let groups = judge(&facts).groups.into_iter();
        let mut lines = groups.flat_map(|group| group.lines);
        let line = lines.find(|line| line.level == Level::Bad).expect("a line");
        let next = line.next.expect("what to do");
        assert!(next.contains(words), "{next}");
    }
}

#[test]
fn before_anything_is_installed_each_line_says_what_to_do() {
    let mut facts = mk_facts();
    facts.home.controller = Ok(None);
    facts.home.renewed = Ok(None);
    facts.home.view = None;
    facts.home.members = Vec::new();
    facts.seen.clear();
    for index in 0..2 {
        facts.inside(index).definitions = Ok(BTreeMap::new());
    }
    let report = judge(&facts);
    assert_eq!(report.worst(), Level::Bad);
    let lines = report.groups.iter().flat_map(|group| &group.lines);
    let silent: Vec<&Line> = lines
        .filter(|line| line.level != Level::Good && line.next.is_none())
        .collect();
    assert_eq!(silent, [] as [&Line; 0]);
}
