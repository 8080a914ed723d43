//! Headers that steer connections or Envoy itself, from routes and from model servers.

use crate::fixture::{add_route, key, mk_ref, mk_route, mk_rule};
use crate::world::{HeaderEdit, RouteFilter, World};

use super::bed::{Bed, EPP, POD_A, REMOTE_EPP, REMOTE_POD};
use super::epp::Behaviour;
use super::pod::FORGED_FAILOVER;

/// A filter shortens the body for the receiver alone: the rest would be read as the next request, and its answer would
/// be sent to the client of the next request.
#[tokio::test(flavor = "multi_thread")]
async fn body_does_not_become_a_request_of_its_own_by_a_filter() {
    let shortening = |world: &mut World| {
        let filter = RouteFilter::RequestHeaders(HeaderEdit {
            set: vec![("Content-Length".into(), "3".into())],
            ..HeaderEdit::default()
        });
        let mut of_rule = mk_rule("/rule", vec![mk_ref("service", "web", 1)]);
        of_rule.filters = vec![filter.clone()];
        let mut of_backend = mk_rule("/backend", vec![mk_ref("service", "web", 1)]);
        of_backend.backends[0].filters = vec![filter];
        add_route(world, mk_route("short", vec![of_rule, of_backend]));
    };
    let bed = Bed::start(shortening).await;
    bed.until("/usual", 200).await;
    bed.seen.take();
    let body = b"abcGET /smuggled HTTP/1.1\r\nhost: any\r\n\r\n";
    for path in ["/rule", "/backend"] {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: any\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        let refused = bed.exchange(&head, body).await;
        // This request uses the connection to the pod that the request above may have left open.
        let innocent = bed.get("/usual").await;
        assert_eq!(innocent.body, format!("{POD_A} 0"), "{path}");
        assert_eq!(bed.seen.take_paths(), ["/usual"], "{path}");
        assert_eq!(refused.status, 500, "{path}");
    }
}

/// The same by a picker; other pickers send requests to the same pods.
#[tokio::test(flavor = "multi_thread")]
async fn body_does_not_become_a_request_of_its_own_by_a_picker() {
    let mut bed = Bed::start(|_| {}).await;
    let (local, remote) = (bed.at(POD_A), bed.at(REMOTE_POD));
    let epps = [
        ("/pool", POD_A, bed.epp(EPP, local).await),
        ("/import", REMOTE_POD, bed.epp(REMOTE_EPP, remote).await),
    ];
    for (path, pod, epp) in &epps {
        bed.until(path, 200).await;
        for (name, value) in [
            ("transfer-encoding", "chunked"),
            ("transfer-encoding", "identity"),
            ("content-length", "3"),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
            ("trailer", "x-a"),
            ("expect", "100-continue"),
        ] {
            epp.set(Behaviour::PickAndSet(
                format!("{pod}:{}", bed.pods),
                name,
                value,
            ));
            bed.seen.take();
            let body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: any\r\n\r\n";
            let length = body.len();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: any\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
            );
            bed.exchange(&head, body).await;
            for request in bed.seen.take() {
                assert_eq!(request.path, *path, "{name}");
                let found = request.headers.get_all(name).iter();
                let found = found.filter(|found| *found == value).count();
                // Envoy's own header, exactly once.
                let wanted = usize::from(value == "chunked");
                assert_eq!(found, wanted, "{path} {name} {:?}", request.headers);
            }
        }
    }
}

/// In one rule with a local pool and an import, the import's hop may request that another cluster is tried. The pool's
/// model servers may not, else each could double its load, or end every request with 503 where it is the only one.
#[tokio::test(flavor = "multi_thread")]
async fn model_server_cannot_order_another_attempt() {
    let services = |world: &mut World| {
        let import_and = |path: &str, kind: &str, name: &str| {
            let mut unused = mk_ref("import", "llm", 1);
            unused.name = "idle".into();
            mk_rule(path, vec![mk_ref(kind, name, 1_000_000), unused])
        };
        // This import makes the rule a rule with hops, and gets almost no requests.
        let idle = world.imports[&key("llm")].clone();
        world.imports.insert(key("idle"), idle);
        let rules = vec![
            import_and("/mixed/pool", "pool", "llm"),
            import_and("/mixed/service", "service", "web"),
        ];
        add_route(world, mk_route("mixed", rules));
    };
    let mut bed = Bed::start(services).await;
    let pick = bed.at(POD_A);
    let epp = bed.epp(EPP, pick.clone()).await;
    let _remote = bed.epp(REMOTE_EPP, pick).await;
    bed.until("/mixed/pool", 200).await;
    bed.until("/mixed/service", 200).await;
    bed.seen.take();
    for backend in ["/mixed/pool", "/mixed/service"] {
        let path = format!("{backend}{FORGED_FAILOVER}");
        let asked = epp.asked();
        let answer = bed.post(&path, 100).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(bed.seen.take_paths(), [path.as_str()]);
        assert!(!answer.head.contains("x-isthmus"), "{answer:?}");
        assert!(epp.asked() <= asked + 1, "{backend}");
    }
}
