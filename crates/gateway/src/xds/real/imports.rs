//! Imports on the real Envoy: Gateways of other clusters, shares, the pool of this cluster.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::tls::test_pki::Ca;
use crd::networks::Cidr;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::fixture::{
    add_route, include_local, key, mk_https_listener, mk_parent_entry, mk_ref, mk_route, mk_rule,
};
use crate::model::{GatewayModel, Mode, ParentAddresses};
use crate::select::{Assigned, Health, Selection};
use crate::world::secrets::mk_certificate;
use crate::world::{ImportedCluster, World};
use crate::xds::names::HOP;

use super::bed::{
    Answer, Bed, EPP, LIMIT, POD_A, POD_B, REMOTE_EPP, REMOTE_POD, SECOND_EPP, free_port,
};
use super::epp::{Behaviour, Epp};
use super::pod::{STREAM, UNAVAILABLE};

/// Where no Gateway is until a test starts one.
pub(super) const LATE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 19);

/// Where a listener takes no connection.
const SILENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 20);

/// An entry whose Gateway is one of the bed's pods: it answers to all hosts, and shows what it got.
pub(super) fn mk_parent(bed: &Bed, name: &str, at: Ipv4Addr, hosts: &[&str]) -> ImportedCluster {
    mk_parent_entry(name, &at.to_string(), &[bed.pods], hosts)
}

pub(super) fn set_entries(world: &mut World, entries: Vec<ImportedCluster>) {
    world.imports.get_mut(&key("llm")).unwrap().clusters = entries;
}

/// Of one priority each.
fn mk_shares(shares: &[(&str, u32, Health)]) -> Selection {
    let assigned = shares.iter().map(|(name, weight, health)| {
        let assigned = Assigned {
            weight: *weight,
            priority: 0,
            health: *health,
        };
        ((*name).to_owned(), assigned)
    });
    let mut selection = Selection::default();
    selection.insert(key("llm"), assigned.collect());
    selection
}

/// Requests by the pod that answered; the first answer that is not 200 instead.
async fn answered(
    bed: &Bed,
    path: &str,
    requests: usize,
) -> Result<BTreeMap<String, usize>, Answer> {
    let mut counted = BTreeMap::new();
    for _ in 0..requests {
        let answer = bed.post(path, 100).await;
        if answer.status != 200 {
            return Err(answer);
        }
        let pod = answer.body.split(' ').next().unwrap_or_default().to_owned();
        *counted.entry(pod).or_default() += 1;
    }
    Ok(counted)
}

/// The same where each answer must be 200.
async fn count(bed: &Bed, path: &str, requests: usize) -> BTreeMap<String, usize> {
    let counted = answered(bed, path, requests).await;
    counted.expect("each answer is 200")
}

/// Adds a cluster with a Gateway to the one of the bed, whose endpoint picker is asked, and returns that once both answer.
async fn serve_both(bed: &mut Bed) -> Epp {
    let south = mk_parent(bed, "south", POD_B, &[]);
    let import = bed.world.imports.get_mut(&key("llm")).unwrap();
    import.clusters.push(south);
    bed.publish();
    let pick = bed.at(REMOTE_POD);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    let bed = &*bed;
    bed.wait("both answer", || async {
        let counted = answered(bed, "/import", 10).await;
        counted.is_ok_and(|counted| counted.len() == 2)
    })
    .await;
    epp
}

async fn get_host(bed: &Bed, path: &str, host: &str) -> Answer {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    bed.exchange(&head, b"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_of_another_cluster_gets_a_host_of_its_own_and_the_name_of_this_one() {
    let mut bed = Bed::start(|_| {}).await;
    let hosts = ["*.models.example", "llm.south.example"];
    let south = mk_parent(&bed, "south", REMOTE_POD, &hosts);
    set_entries(&mut bed.world, vec![south]);
    bed.publish();
    bed.until("/import", 200).await;
    bed.seen.take();
    for (host, sent) in [
        ("any", "llm.south.example"),
        ("a.b.models.example:8080", "a.b.models.example:8080"),
        ("llm.south.example", "llm.south.example"),
        ("models.example", "llm.south.example"),
    ] {
        let answer = get_host(&bed, "/import", host).await;
        assert_eq!(answer.body, format!("{REMOTE_POD} 0"), "{answer:?}");
        let seen = bed.seen.take().remove(0);
        assert_eq!(seen.headers["host"], sent, "{host}");
        assert_eq!(seen.headers[HOP], "west");
        assert!(!seen.headers.contains_key("x-envoy-attempt-count"));
    }
}

/// No request is lost while the Gateways of one cluster are down, and they are used again when they are back.
#[tokio::test(flavor = "multi_thread")]
async fn gateway_that_is_down_is_passed_over_for_another_cluster() {
    let mut bed = Bed::start(|_| {}).await;
    let south = mk_parent(&bed, "south", LATE, &[]);
    let north = mk_parent(&bed, "north", REMOTE_POD, &[]);
    set_entries(&mut bed.world, vec![south, north]);
    bed.publish();
    bed.until("/import", 200).await;
    for bytes in [0, 1000, 300_000] {
        for _ in 0..4 {
            let answer = bed.post("/import", bytes).await;
            assert_eq!(answer.body, format!("{REMOTE_POD} {bytes}"), "{answer:?}");
        }
    }
    bed.pod(LATE).await;
    let late = format!("{LATE} 0");
    bed.wait("the Gateway is used again", || async {
        bed.get("/import").await.body == late
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_of_both_modes_share_requests_as_they_are_weighted() {
    let mut bed = Bed::start(|_| {}).await;
    let _epp = serve_both(&mut bed).await;
    let (east, south) = (REMOTE_POD.to_string(), POD_B.to_string());
    // Each worker takes its turns exactly, and there is one. Where its turns begin is by chance.
    let counted = count(&bed, "/import", 100).await;
    assert!((48..=52).contains(&counted[&east]), "{counted:?}");
    let routes = bed.routes();
    let weights = [
        ("east", 800, Health::Healthy),
        ("south", 200, Health::Healthy),
    ];
    bed.selection = Some(mk_shares(&weights));
    bed.publish();
    assert_eq!(bed.routes(), routes);
    bed.wait("Envoy has the shares", || async {
        let counted = count(&bed, "/import", 50).await;
        (38..=42).contains(&counted[&east]) && counted[&south] == 50 - counted[&east]
    })
    .await;
}

/// What a model server answers is the answer, also where it is 503 and comes through a Gateway of another cluster.
#[tokio::test(flavor = "multi_thread")]
async fn answer_of_a_model_server_is_final_in_both_modes() {
    const REQUESTS: usize = 8;
    let mut bed = Bed::start(|_| {}).await;
    let _epp = serve_both(&mut bed).await;
    bed.seen.take();
    let pods = [REMOTE_POD, POD_B].map(|pod| format!("{pod} 100"));
    let mut by_pod = BTreeMap::new();
    for _ in 0..REQUESTS {
        let answer = bed.post(&format!("/import{UNAVAILABLE}"), 100).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(pods.contains(&answer.body), "{answer:?}");
        *by_pod.entry(answer.body).or_insert(0) += 1;
    }
    assert_eq!(by_pod.len(), 2, "{by_pod:?}");
    assert_eq!(bed.seen.take().len(), REQUESTS, "each was sent once");
}

/// Where packets to the endpoints of one cluster are lost.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_that_takes_no_connection_is_passed_over_for_another_cluster() {
    let mut bed = Bed::start(|world| {
        let import = world.imports.get_mut(&key("llm")).unwrap();
        let mut south = import.clusters[0].clone();
        south.name = "south".into();
        south.picker.as_mut().unwrap().addresses = vec![SECOND_EPP.to_string()];
        import.clusters.push(south);
    })
    .await;
    let _silent = take_no_connection((SILENT, bed.pods).into()).await;
    let allowed = vec![Cidr::host(SILENT.into())];
    bed.settings.pod_cidrs.insert("east".into(), allowed);
    bed.publish();
    let (silent, pod) = (bed.at(SILENT), bed.at(REMOTE_POD));
    let east = bed.epp(REMOTE_EPP, silent).await;
    let south = bed.epp(SECOND_EPP, pod).await;
    // Envoy checks the health of each by itself, and one may be known to it 2 s before the other.
    bed.wait("the picker of the other cluster is asked", || async {
        bed.get("/import").await;
        south.asked() > 0
    })
    .await;
    // what failed before may have set this cluster aside for a while
    bed.wait("some had to be sent again", || async {
        let before = east.asked();
        let answers = join_all((0..8).map(|_| bed.post("/import", 1000))).await;
        for answer in answers {
            assert_eq!(answer.body, format!("{REMOTE_POD} 1000"), "{answer:?}");
        }
        east.asked() > before
    })
    .await;
}

/// A listener that accepts nothing and whose queue is full. The system drops packets that would begin another connection.
async fn take_no_connection(at: SocketAddr) -> (TcpListener, Vec<TcpStream>) {
    const MOST: usize = 16;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(at).unwrap();
    let listener = socket.listen(1).unwrap();
    let mut queue = Vec::new();
    let wait = Duration::from_millis(200);
    while let Ok(connected) = timeout(wait, TcpStream::connect(at)).await {
        queue.push(connected.unwrap());
        assert!(queue.len() < MOST, "its queue has no end");
    }
    (listener, queue)
}

/// Two clusters that import the pool from each other, and route to their imports alone.
#[tokio::test(flavor = "multi_thread")]
async fn request_goes_through_the_gateway_of_one_other_cluster_at_most() {
    let (mut near, mut far) = tokio::join!(Bed::start(|_| {}), Bed::start(|_| {}));
    let to = |bed: &Bed, name| mk_parent_entry(name, "127.0.0.1", &[bed.edge], &[]);
    let (to_far, to_near) = (to(&far, "far"), to(&near, "near"));
    set_entries(&mut near.world, vec![to_far]);
    set_entries(&mut far.world, vec![to_near]);
    far.options.cluster_name = "far".into();
    near.publish();
    far.publish();
    let refused = near.until("/import", 508).await;
    assert!(
        refused.body.contains(r#""type":"loop-refused""#),
        "{refused:?}"
    );
    assert!(!refused.head.contains("x-isthmus"), "{refused:?}");
    // its own pool is left to the other cluster
    let pick = far.at(POD_B);
    let _epp = far.epp(EPP, pick).await;
    far.until("/pool", 200).await;
    include_local(&mut far.world);
    far.publish();
    let answer = near.until("/import", 200).await;
    assert_eq!(answer.body, format!("{POD_B} 0"));
    far.seen.take();
    for _ in 0..10 {
        assert_eq!(near.post("/import", 1000).await.status, 200);
    }
    let seen = far.seen.take();
    assert!(seen.iter().all(|request| request.headers[HOP] == "west"));
    assert_eq!(seen.len(), 10);
    assert_eq!(near.seen.take().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_claims_to_be_a_cluster_is_kept_from_gateways_of_others() {
    let mut bed = Bed::start(|_| {}).await;
    let by_gateway = mk_parent(&bed, "south", POD_B, &[]);
    let entries = &mut bed.world.imports.get_mut(&key("llm")).unwrap().clusters;
    let before = std::mem::replace(entries, vec![by_gateway]);
    bed.publish();
    bed.until("/import", 200).await;
    bed.seen.take();
    let forged = format!("{HOP}: east\r\n");
    let refused = bed.send("GET", "/import", &forged, 0).await;
    assert_eq!(refused.status, 508, "{refused:?}");
    assert_eq!(bed.seen.take().len(), 0);
    // what needs no Gateway of another cluster is served
    set_entries(&mut bed.world, before);
    let _epp = serve_both(&mut bed).await;
    for _ in 0..10 {
        let answer = bed.send("POST", "/import", &forged, 1000).await;
        assert_eq!(answer.body, format!("{REMOTE_POD} 1000"), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_drains_gets_nothing_new_and_ends_what_it_has() {
    ends_what_it_has(Health::Draining).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_that_becomes_unhealthy_gets_nothing_new_and_ends_what_it_has() {
    ends_what_it_has(Health::Unhealthy).await;
}

async fn ends_what_it_has(becomes: Health) {
    let mut bed = Bed::start(|_| {}).await;
    let south = mk_parent(&bed, "south", POD_B, &[]);
    let north = mk_parent(&bed, "north", REMOTE_POD, &[]);
    set_entries(&mut bed.world, vec![north, south]);
    let rule = mk_rule(STREAM, vec![mk_ref("import", "llm", 1)]);
    add_route(&mut bed.world, mk_route("stream", vec![rule]));
    let (up, down) = (Health::Healthy, Health::Unhealthy);
    bed.selection = Some(mk_shares(&[("south", 1000, up), ("north", 0, down)]));
    bed.publish();
    let south = format!("{POD_B} 0");
    bed.wait("the first has all", || async {
        bed.get("/import").await.body == south
    })
    .await;
    let mut connection = bed.connect().await;
    let request = format!("GET {STREAM}?40 HTTP/1.1\r\nhost: any\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let pieces = |answer: &[u8]| String::from_utf8_lossy(answer).matches("piece").count();
    while pieces(&answer) == 0 {
        assert!(connection.read_buf(&mut answer).await.unwrap() > 0);
    }
    let drains = [("south", 0, becomes), ("north", 1000, up)];
    bed.selection = Some(mk_shares(&drains));
    bed.publish();
    let north = format!("{REMOTE_POD} 0");
    bed.wait("the other has it", || async {
        bed.get("/import").await.body == north
    })
    .await;
    let counted = count(&bed, "/import", 20).await;
    assert_eq!(counted, BTreeMap::from([(REMOTE_POD.to_string(), 20)]));
    let rest = async {
        while !answer.ends_with(b"\r\n0\r\n\r\n") {
            assert!(connection.read_buf(&mut answer).await.unwrap() > 0);
        }
    };
    timeout(LIMIT, rest).await.expect("the rest in time");
    assert_eq!(pieces(&answer), 40);
}

/// Fail over first, fail open last.
#[tokio::test(flavor = "multi_thread")]
async fn local_pool_fails_open_when_no_other_cluster_is_left() {
    let mut bed = Bed::start(|world| {
        let pool = world.pools.get_mut(&key("llm")).unwrap();
        pool.picker.as_mut().unwrap().fail_open = true;
        include_local(world);
    })
    .await;
    let pick = bed.at(REMOTE_POD);
    let epp = bed.epp(REMOTE_EPP, pick).await;
    bed.wait("the other cluster answers", || async {
        let answer = bed.get("/import").await;
        answer.body == format!("{REMOTE_POD} 0")
    })
    .await;
    // Its own endpoint picker is down. More failures in a row would set the pool aside for 10 s.
    let counted = count(&bed, "/import", 4).await;
    assert_eq!(counted, BTreeMap::from([(REMOTE_POD.to_string(), 4)]));
    epp.stop.cancel();
    let shares = [
        ("east", 0, Health::Unhealthy),
        ("west", 1000, Health::Healthy),
    ];
    bed.selection = Some(mk_shares(&shares));
    bed.publish();
    bed.wait("only this cluster is left", || async {
        let answer = bed.get("/import").await;
        answer.status == 200 && !answer.body.starts_with(&REMOTE_POD.to_string())
    })
    .await;
    // All of them fail at first, more than five in a row.
    let own = [POD_A, POD_B].map(|pod| pod.to_string());
    for answer in join_all((0..30).map(|_| bed.post("/import", 100))).await {
        let pod = answer.body.split(' ').next().unwrap_or_default().to_owned();
        assert!(answer.status == 200 && own.contains(&pod), "{answer:?}");
    }
}

/// The other one gets nothing, and must not count as one that is left.
#[tokio::test(flavor = "multi_thread")]
async fn last_cluster_that_gets_requests_is_not_set_aside() {
    let mut bed = Bed::start(|_| {}).await;
    let east = bed.world.imports[&key("llm")].clusters[0].clone();
    let south = mk_parent(&bed, "south", POD_B, &[]);
    set_entries(&mut bed.world, vec![east, south]);
    let shares = [
        ("east", 1000, Health::Healthy),
        ("south", 0, Health::Unhealthy),
    ];
    bed.selection = Some(mk_shares(&shares));
    bed.publish();
    let epp = bed.epp(REMOTE_EPP, bed.at(REMOTE_POD)).await;
    let answer = bed.until("/import", 200).await;
    assert_eq!(answer.body, format!("{REMOTE_POD} 0"));
    epp.set(Behaviour::Refuse(503));
    for _ in 0..10 {
        assert_eq!(bed.post("/import", 100).await.status, 503);
    }
    epp.set(bed.at(REMOTE_POD));
    let answer = bed.post("/import", 100).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// The hosts are given as names, of which those are denied that lead to this network.
fn name_hosts(model: &mut GatewayModel, deny: Ipv4Addr) {
    let names = |addresses: &[SocketAddr]| {
        let names = addresses.iter().map(|at| (at.ip().to_string(), at.port()));
        names.collect::<Vec<_>>()
    };
    let denied = vec![Cidr::host(deny.into())];
    for import in model.imports.values_mut() {
        for cluster in &mut Arc::make_mut(import).clusters {
            let Ok(Mode::Parent(mode)) = &mut cluster.mode else {
                panic!("a cluster with Gateways");
            };
            if let ParentAddresses::Ips(ips) = &mode.addresses {
                mode.addresses = ParentAddresses::Dns(names(ips));
            }
            mode.denied.clone_from(&denied);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn name_of_a_gateway_that_leads_to_a_denied_address_gets_no_request() {
    let mut bed = Bed::start(|_| {}).await;
    let south = mk_parent(&bed, "south", POD_B, &[]);
    set_entries(&mut bed.world, vec![south]);
    bed.remodel = |model| name_hosts(model, POD_A);
    bed.publish();
    bed.until("/import", 200).await;
    let clusters = bed.clusters();
    bed.remodel = |model| name_hosts(model, POD_B);
    bed.publish();
    // else networks that come and go would end streams
    assert!(clusters == bed.clusters());
    let refused = bed.until("/import", 502).await;
    assert!(refused.body.contains("endpoint-not-allowed"), "{refused:?}");
    bed.seen.take();
    assert_eq!(bed.post("/import", 1000).await.status, 502);
    assert_eq!(bed.seen.take().len(), 0);
    // another cluster takes what this one must not get
    let south = mk_parent(&bed, "south", POD_B, &[]);
    let north = mk_parent(&bed, "north", REMOTE_POD, &[]);
    set_entries(&mut bed.world, vec![north, south]);
    bed.publish();
    bed.until("/import", 200).await;
    for _ in 0..6 {
        let answer = bed.post("/import", 1000).await;
        assert_eq!(answer.body, format!("{REMOTE_POD} 1000"), "{answer:?}");
    }
}

const PATH: &str = "/tls";

#[tokio::test(flavor = "multi_thread")]
async fn gateway_with_https_is_verified_for_the_host_that_it_gets() {
    let (ca, port) = (Ca::new("a"), free_port().await);
    let far = Bed::start(|world| {
        let gateway = world.gateways.get_mut(&key("gw")).unwrap();
        let listener = mk_https_listener("https", port, Some("*.b.test"), &["b"]);
        gateway.listeners.push(listener);
        let certificate = mk_certificate("b", &ca, "*.b.test");
        world.certificates.insert(key("b"), Ok(certificate));
    });
    // at the other one this path leads to a Service
    let near = Bed::start(|world| {
        let rule = mk_rule(PATH, vec![mk_ref("import", "llm", 1)]);
        add_route(world, mk_route("tls", vec![rule]));
    });
    let (mut near, far) = tokio::join!(near, far);
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, ca: &Ca| {
        let file = directory.path().join(name);
        std::fs::write(&file, ca.pem()).unwrap();
        file.to_str().unwrap().to_owned()
    };
    near.options.roots = write("right.pem", &ca);
    let mk = |hosts: &[&str]| {
        let mut entry = mk_parent_entry("far", "127.0.0.1", &[443], hosts);
        entry.parents[0].listeners[0].port = port;
        entry
    };
    set_entries(&mut near.world, vec![mk(&["llm.b.test", "*.b.test"])]);
    near.publish();
    let answer = near.until(PATH, 200).await;
    assert_eq!(answer.body, format!("{POD_A} 0"));
    far.seen.take();
    // the name of TLS is that of each request, not that of the cluster
    for (host, sent) in [("x.b.test", "x.b.test"), ("any", "llm.b.test")] {
        let answer = get_host(&near, PATH, host).await;
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        assert_eq!(far.seen.take().remove(0).headers["host"], sent);
    }
    // a host that its certificate does not have, although the wildcard of a route would
    for _ in 0..6 {
        let answer = get_host(&near, PATH, "x.y.b.test").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(far.seen.take().remove(0).headers["host"], "llm.b.test");
    }
    set_entries(&mut near.world, vec![mk(&["llm.c.test"])]);
    near.publish();
    near.until(PATH, 503).await;
    // a certificate of another authority
    set_entries(&mut near.world, vec![mk(&["llm.b.test"])]);
    near.publish();
    near.until(PATH, 200).await;
    near.options.roots = write("wrong.pem", &Ca::new("other"));
    near.publish();
    near.until(PATH, 503).await;
    assert_eq!(near.post(PATH, 1000).await.status, 503);
}
