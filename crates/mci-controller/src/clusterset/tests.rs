use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, Response};
use kube::client::Body;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// What an API server answers, by path; anything else is not found.
type Answers = Vec<(&'static str, u16, Value)>;

/// A home whose server answers so, after it failed this many times.
fn mk_home(answers: Answers, failures: usize) -> Home {
    let asked = Arc::new(AtomicUsize::new(0));
    let answers = Arc::new(answers);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (asked, answers) = (asked.clone(), answers.clone());
        async move {
            let path = request.uri().path();
            let known = answers.iter().find(|(at, _, _)| *at == path);
            let (status, body) = match known {
                _ if asked.fetch_add(1, Ordering::SeqCst) < failures => (503, json!("busy")),
                Some((_, status, body)) => (*status, body.clone()),
                None => (404, json!("404 page not found")),
            };
            let body = Body::from(body.to_string().into_bytes());
            Response::builder().status(status).body(body)
        }
    });
    Home::for_tests(Client::new(service, "default"))
}

const NAMESPACE: &str = "/api/v1/namespaces/fleet";
const NEW: &str = "/apis/about.k8s.io/v1beta1/clusterproperties/clusterset.k8s.io";
const OLD: &str = "/apis/about.k8s.io/v1alpha1/clusterproperties/clusterset.k8s.io";

fn labelled(labels: Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "fleet", "labels": labels}})
}

fn property(value: &str) -> Value {
    json!({"kind": "ClusterProperty", "apiVersion": "about.k8s.io/v1beta1",
        "metadata": {"name": "clusterset.k8s.io"}, "spec": {"value": value}})
}

fn denied() -> Value {
    json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"})
}

#[rstest]
#[case::nobody(vec![], "default")]
#[case::label(vec![(NAMESPACE, 200, labelled(json!({"multicluster.x-k8s.io/clusterset": "a", "clusterset.multicluster.x-k8s.io": "b"}))), (NEW, 200, property("c"))], "a")]
#[case::other_label(vec![(NAMESPACE, 200, labelled(json!({"clusterset.multicluster.x-k8s.io": "b"})))], "b")]
#[case::property(vec![(NAMESPACE, 200, labelled(json!({}))), (NEW, 200, property("c"))], "c")]
#[case::old_property(vec![(OLD, 200, property("d"))], "d")]
#[case::denied(vec![(NEW, 403, denied())], "default")]
#[tokio::test(start_paused = true)]
async fn the_first_source_with_a_name_counts(#[case] answers: Answers, #[case] expected: &str) {
    let home = mk_home(answers, 0);
    let found = timeout(Duration::from_mins(5), discover(&home, Some("fleet"))).await;
    assert_eq!(found.expect("in time").expect("a name"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_not_taken_for_want_of_an_answer() {
    let home = mk_home(vec![(NEW, 200, property("prod"))], 5);
    let found = timeout(Duration::from_mins(5), discover(&home, None)).await;
    assert_eq!(found.expect("in time").expect("a name"), "prod");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_fits_no_label_is_refused() {
    let home = mk_home(vec![(NEW, 200, property("Prod 1"))], 0);
    let error = discover(&home, None).await.expect_err("refused");
    assert!(error.to_string().contains("Prod 1"), "{error}");
}
