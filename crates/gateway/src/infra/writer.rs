//! Applies infrastructure by server-side apply, but not over what is another's.

use std::future::Future;
use std::pin::Pin;

use foreign_text::{MAX_MESSAGE, clipped};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams,
    Preconditions,
};
use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use crate::metrics::{WriteMetrics, WriteResult};
use crate::pki;
use crate::world::Key;

use super::credentials::Credentials;
use super::problems::{Problem, Problems, Why};
use super::{Change, MANAGED_BY, Owner, Part, controlling_gateway, is_made_by};

/// A write that is under way.
type Writing = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// What all writes share.
#[derive(Clone)]
struct Writer {
    client: Client,
    manager: String,
    metrics: WriteMetrics,
    problems: Problems,
    credentials: Option<Credentials>,
}

/// One write per call, of the whole object as we want it, or its deletion; it fails over an object that the Gateway does not
/// control. Secrets are wanted only where there are `credentials`.
pub(crate) fn make_writer(
    client: Client,
    manager: String,
    metrics: WriteMetrics,
    problems: Problems,
    credentials: Option<Credentials>,
) -> impl Fn((Part, Key), Change) -> Writing {
    let writer = Writer {
        client,
        manager,
        metrics,
        problems,
        credentials,
    };
    move |id, change| {
        let writer = writer.clone();
        Box::pin(async move {
            match change {
                Change::Apply(body) => writer.apply(id, body).await,
                Change::Delete(owner) => {
                    if id.0 == Part::ServiceAccount && writer.credentials.is_some() {
                        // nothing watches the Secret: the last object that does stays until it is gone
                        let secret = (Part::ClientSecret, id.1.clone());
                        writer.clone().delete(secret, &owner).await?;
                    }
                    writer.delete(id, &owner).await
                }
            }
        })
    }
}

impl Writer {
    fn api(&self, (part, key): &(Part, Key)) -> Api<DynamicObject> {
        let (api_version, kind) = part.api();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), &key.namespace, &resource)
    }

    async fn apply(self, id: (Part, Key), body: Value) -> Result<(), String> {
        let api = self.api(&id);
        let Self {
            client,
            manager,
            metrics,
            problems,
            credentials,
        } = self;
        let (part, key) = id.clone();
        let kind = part.api().1;
        let gateway = gateway_of(&key, &body);
        let (there, secret) = if part == Part::ClientSecret {
            let secrets: Api<Secret> = Api::namespaced(client, &key.namespace);
            let there = secrets.get_opt(&key.name).await;
            let there = there.map_err(|error| noted(&problems, &id, &gateway, &error))?;
            (there.as_ref().map(|object| object.metadata.clone()), there)
        } else {
            let there = api.get_metadata_opt(&key.name).await;
            let there = there.map_err(|error| error.to_string())?;
            (there.map(|object| object.metadata), None)
        };
        let is_foreign = there.is_some_and(|meta| !is_of(&meta, &gateway));
        if is_foreign && part == Part::DisruptionBudget {
            problems.forget(&id);
            return Ok(()); // one that somebody made serves as well
        }
        if is_foreign {
            let why = Why::Taken;
            problems.note(id, Problem { gateway, why });
            metrics.count(kind, WriteResult::Failed);
            return Err(format!("{kind} {key} exists and is another's"));
        }
        let mut wanted = None;
        let mut body = body;
        if let Some(credentials) = credentials.filter(|_| part == Part::ClientSecret) {
            let filled = credentials.fill(&gateway, &body, secret.as_ref(), pki::now());
            let filled = filled.map_err(|error| format!("{kind} {key}: {error}"))?;
            let Some(full) = filled else {
                problems.forget(&id);
                credentials.note_good(key, body, Instant::now());
                metrics.count(kind, WriteResult::Unneeded);
                return Ok(());
            };
            let bare = std::mem::replace(&mut body, full);
            wanted = Some((credentials, bare));
        }
        // Fields that others set on what is the Gateway's are ours to say.
        let params = PatchParams::apply(&manager).force();
        let result = api.patch(&key.name, &params, &Patch::Apply(&body)).await;
        let counted = match &result {
            Ok(_) => {
                problems.forget(&id);
                if let Some((credentials, bare)) = wanted {
                    credentials.note_good(key, bare, Instant::now());
                }
                WriteResult::Written
            }
            Err(error) => {
                noted(&problems, &id, &gateway, error);
                WriteResult::Failed
            }
        };
        metrics.count(kind, counted);
        result.map(drop).map_err(|error| error.to_string())
    }

    /// Deletes the object as it was looked at, if this controller made it for this very Gateway. A Deployment is there until
    /// its pods are gone.
    async fn delete(self, id: (Part, Key), owner: &Owner) -> Result<(), String> {
        let gateway = &owner.gateway;
        let (api, (part, key)) = (self.api(&id), &id);
        let kind = part.api().1;
        let there = api.get_metadata_opt(&key.name).await;
        let there = there.map_err(|error| noted(&self.problems, &id, gateway, &error))?;
        let ours = there.filter(|object| is_ours(&object.metadata, owner));
        let Some(meta) = ours.map(|object| object.metadata) else {
            self.problems.forget(&id);
            self.metrics.count(kind, WriteResult::Unneeded);
            return Ok(());
        };
        let preconditions = Preconditions {
            uid: meta.uid,
            resource_version: meta.resource_version,
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..match part {
                Part::Deployment => DeleteParams::foreground(),
                _ => DeleteParams::background(),
            }
        };
        let result = api.delete(&key.name, &params).await;
        let (counted, result) = match result {
            Ok(_) => {
                info!(kind, %key, %gateway, "deleted what is not wanted any more");
                (WriteResult::Written, Ok(()))
            }
            Err(kube::Error::Api(status)) if status.code == 404 => (WriteResult::Gone, Ok(())),
            Err(error) => {
                let error = noted(&self.problems, &id, gateway, &error);
                (WriteResult::Failed, Err(error))
            }
        };
        if result.is_ok() {
            self.problems.forget(&id);
        }
        self.metrics.count(kind, counted);
        result
    }
}

/// The error as text; one that has to do with the object itself is reported.
fn noted(problems: &Problems, id: &(Part, Key), gateway: &Key, error: &kube::Error) -> String {
    if let Some(message) = refusal(error) {
        let why = Why::Refused(message);
        let gateway = gateway.clone();
        problems.note(id.clone(), Problem { gateway, why });
    }
    error.to_string()
}

/// What the API server has against the object itself; another time it would say the same.
fn refusal(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422) => {
            Some(clipped(status.message.clone(), MAX_MESSAGE))
        }
        _ => None,
    }
}

/// The Gateway that the object to be applied names as its controller.
fn gateway_of(key: &Key, body: &Value) -> Key {
    let name = body.pointer("/metadata/ownerReferences/0/name");
    Key::new(
        &key.namespace,
        name.and_then(Value::as_str).unwrap_or_default(),
    )
}

/// A Gateway that was made anew takes over what its namesake left.
fn is_of(meta: &ObjectMeta, gateway: &Key) -> bool {
    controlling_gateway(meta).is_some_and(|owner| owner.name == gateway.name)
}

/// The Gateway controls it, and this controller made it.
fn is_ours(meta: &ObjectMeta, owner: &Owner) -> bool {
    let labels = meta.labels.as_ref();
    let by = labels.and_then(|labels| labels.get(crd::annotations::MANAGED_BY));
    by.is_some_and(|by| by == MANAGED_BY)
        && is_made_by(meta, &owner.controller)
        && controlling_gateway(meta)
            .is_some_and(|is| is.name == owner.gateway.name && is.uid == owner.uid)
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixture::CONTROLLER;
    use crate::infra::problems::Reports;
    use crate::pki::Authority;

    fn mk_meta(kind: &str, name: &str, controller: bool) -> ObjectMeta {
        let meta = json!({ "ownerReferences": [{
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "name": name,
            "uid": "u",
            "controller": controller,
        }] });
        serde_json::from_value(meta).unwrap()
    }

    #[test]
    fn only_what_the_gateway_controls_is_written_over() {
        let gateway = Key::new("ns", "gw");
        assert!(is_of(&mk_meta("Gateway", "gw", true), &gateway));
        for foreign in [
            ObjectMeta::default(),
            mk_meta("Gateway", "other", true),
            mk_meta("Gateway", "gw", false),
            mk_meta("ReplicaSet", "gw", true),
        ] {
            assert!(!is_of(&foreign, &gateway), "{foreign:?}");
        }
        let body = json!({ "metadata": mk_meta("Gateway", "gw", true) });
        assert_eq!(gateway_of(&Key::new("ns", "gw-isthmus"), &body), gateway);
    }

    type Server = tower_test::mock::Handle<Request<Body>, Response<Body>>;

    /// Writes an object of the Gateway `gw`, with a server that answers so; the requests that it got.
    async fn write(
        part: Part,
        answers: Vec<(u16, Value)>,
    ) -> (Result<(), String>, Vec<String>, Reports) {
        write_after(Problems::default(), part, None, answers).await
    }

    /// The same, where these problems are noted already.
    async fn write_after(
        problems: Problems,
        part: Part,
        change: Option<Change>,
        answers: Vec<(u16, Value)>,
    ) -> (Result<(), String>, Vec<String>, Reports) {
        let (service, mut server): (_, Server) = tower_test::mock::pair();
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = WriteMetrics::register(&mut registry, "infra");
        let client = Client::new(service, "default");
        let credentials = Credentials::new("west", Authority::make(pki::now()).unwrap().0);
        let manager = "isthmus".to_owned();
        let write = make_writer(
            client,
            manager,
            metrics,
            problems.clone(),
            Some(credentials),
        );
        let body = json!({ "metadata": mk_meta("Gateway", "gw", true) });
        let change = change.unwrap_or(Change::Apply(body));
        let writing = write((part, Key::new("ns", "gw-isthmus")), change);
        let answering = async {
            let mut seen = Vec::new();
            for (status, answer) in answers {
                let (request, send) = server.next_request().await.unwrap();
                let (head, body) = request.into_parts();
                let mut line = format!("{} {}", head.method, head.uri.path());
                if head.method == http::Method::DELETE {
                    let body = body.collect_bytes().await.unwrap();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    line = format!("{line} {body}");
                }
                seen.push(line);
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                send.send_response(response);
            }
            seen
        };
        let both = async { tokio::join!(writing, answering) };
        let both = tokio::time::timeout(std::time::Duration::from_secs(10), both).await;
        let (result, seen) = both.expect("as many requests as answers");
        drop(write);
        assert!(server.next_request().await.is_none(), "another request");
        (result, seen, problems.reports())
    }

    fn mk_failure(code: u16, reason: &str) -> (u16, Value) {
        let failure = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
        (code, failure)
    }

    /// Only a look at it, no write; and whether it is a problem.
    #[rstest]
    #[case::service(Part::Service, "/api/v1/namespaces/ns/services/gw-isthmus", true)]
    #[case::budget(
        Part::DisruptionBudget,
        "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/gw-isthmus",
        false
    )]
    #[case::secret(Part::ClientSecret, "/api/v1/namespaces/ns/secrets/gw-isthmus", true)]
    #[tokio::test]
    async fn object_without_our_owner_is_looked_at_and_left(
        #[case] part: Part,
        #[case] path: &str,
        #[case] is_problem: bool,
    ) {
        // of a Secret all is read, of the others the metadata
        let (api_version, kind) = match part {
            Part::ClientSecret => part.api(),
            _ => ("meta.k8s.io/v1", "PartialObjectMetadata"),
        };
        let theirs = json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"namespace": "ns", "name": "gw-isthmus"},
        });
        let (result, seen, reports) = write(part, vec![(200, theirs)]).await;
        assert_eq!(seen, [format!("GET {path}")]);
        assert_eq!(result.is_err(), is_problem, "{result:?}");
        assert_eq!(reports.taken.len(), usize::from(is_problem));
    }

    /// Ours was refused, and then somebody made one.
    #[tokio::test]
    async fn budget_of_somebody_else_ends_the_refusal_of_ours() {
        let problems = Problems::default();
        let gateway = Key::new("ns", "gw");
        let why = Why::Refused("quota".to_owned());
        let id = (Part::DisruptionBudget, Key::new("ns", "gw-isthmus"));
        problems.note(id, Problem { gateway, why });
        let theirs = json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadata",
            "metadata": {"namespace": "ns", "name": "gw-isthmus"},
        });
        let answers = vec![(200, theirs)];
        let (_, _, reports) = write_after(problems, Part::DisruptionBudget, None, answers).await;
        assert_eq!(reports, Reports::default());
    }

    /// What is there, with this label and made by this controller.
    fn mk_there(meta: ObjectMeta, label: &str, controller: Option<&str>) -> Value {
        let mut meta = serde_json::to_value(meta).unwrap();
        meta["name"] = json!("gw-isthmus");
        meta["uid"] = json!("u-1");
        meta["resourceVersion"] = json!("7");
        meta["labels"] = json!({"app.kubernetes.io/managed-by": label});
        if let Some(controller) = controller {
            meta["annotations"] = json!({"isthmus.dev/gateway-controller": controller});
        }
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": meta})
    }

    fn mk_delete() -> Change {
        Change::Delete(Owner {
            gateway: Key::new("ns", "gw"),
            uid: "u".to_owned(),
            controller: CONTROLLER.to_owned(),
        })
    }

    fn mk_anew() -> ObjectMeta {
        let mut meta = mk_meta("Gateway", "gw", true);
        meta.owner_references.as_mut().unwrap()[0].uid = "anew".to_owned();
        meta
    }

    /// Label, controller and owner of what is there, and whether it is deleted.
    #[rstest]
    #[case::ours(MANAGED_BY, Some(CONTROLLER), mk_meta("Gateway", "gw", true), true)]
    #[case::without_our_label("helm", Some(CONTROLLER), mk_meta("Gateway", "gw", true), false)]
    #[case::of_another_controller(MANAGED_BY, Some("a/b"), mk_meta("Gateway", "gw", true), false)]
    #[case::of_an_earlier_version(MANAGED_BY, None, mk_meta("Gateway", "gw", true), false)]
    #[case::of_another_gateway(
        MANAGED_BY,
        Some(CONTROLLER),
        mk_meta("Gateway", "other", true),
        false
    )]
    #[case::of_a_gateway_made_anew(MANAGED_BY, Some(CONTROLLER), mk_anew(), false)]
    #[case::of_nobody(MANAGED_BY, Some(CONTROLLER), ObjectMeta::default(), false)]
    #[tokio::test]
    async fn only_what_we_made_for_the_gateway_is_deleted(
        #[case] label: &str,
        #[case] controller: Option<&str>,
        #[case] meta: ObjectMeta,
        #[case] is_deleted: bool,
    ) {
        let there = mk_there(meta, label, controller);
        let mut answers = vec![(200, there)];
        if is_deleted {
            answers.push((200, json!({"kind": "Status", "status": "Success"})));
        }
        let (result, seen, _) = write_after(
            Problems::default(),
            Part::Service,
            Some(mk_delete()),
            answers,
        )
        .await;
        assert_eq!(result, Ok(()));
        let deleted = r#"DELETE /api/v1/namespaces/ns/services/gw-isthmus {"preconditions":{"resourceVersion":"7","uid":"u-1"},"propagationPolicy":"Background"}"#;
        assert_eq!(
            seen.get(1).map(String::as_str),
            is_deleted.then_some(deleted)
        );
    }

    fn mk_ours() -> (u16, Value) {
        let meta = mk_meta("Gateway", "gw", true);
        (200, mk_there(meta, MANAGED_BY, Some(CONTROLLER)))
    }

    /// So that it is known for how long they serve on.
    #[tokio::test]
    async fn deployment_is_there_until_its_pods_are_gone() {
        let answers = vec![
            mk_ours(),
            (200, json!({"kind": "Status", "status": "Success"})),
        ];
        let (_, seen, _) = write_after(
            Problems::default(),
            Part::Deployment,
            Some(mk_delete()),
            answers,
        )
        .await;
        assert!(
            seen[1].contains(r#""propagationPolicy":"Foreground""#),
            "{seen:?}"
        );
    }

    /// Nothing watches the Secret: without the account, nothing would be left by which it is known.
    #[tokio::test]
    async fn account_goes_after_the_secret() {
        let secret = "/api/v1/namespaces/ns/secrets/gw-isthmus";
        let account = "/api/v1/namespaces/ns/serviceaccounts/gw-isthmus";
        let success = || (200, json!({"kind": "Status", "status": "Success"}));
        let delete = async |answers: Vec<(u16, Value)>| {
            let problems = Problems::default();
            let (result, seen, reports) =
                write_after(problems, Part::ServiceAccount, Some(mk_delete()), answers).await;
            let lines = seen.iter().map(|line| {
                let mut words = line.split(' ');
                format!("{} {}", words.next().unwrap(), words.next().unwrap())
            });
            (result, lines.collect::<Vec<_>>(), reports)
        };
        let ours = || [mk_ours(), success()];
        let answers = ours().into_iter().chain([mk_ours(), success()]);
        let (result, seen, _) = delete(answers.collect()).await;
        assert_eq!(result, Ok(()));
        let wanted = [
            ("GET", secret),
            ("DELETE", secret),
            ("GET", account),
            ("DELETE", account),
        ];
        assert_eq!(
            seen,
            wanted.map(|(method, path)| format!("{method} {path}"))
        );
        let answers = vec![mk_ours(), mk_failure(409, "Conflict")];
        let (result, seen, _) = delete(answers).await;
        assert!(result.is_err() && seen.len() == 2, "{result:?} {seen:?}");
    }

    /// Such as in a namespace that the rights are not for any more.
    #[rstest]
    #[case::get(vec![mk_failure(403, "Forbidden")])]
    #[case::delete(vec![mk_ours(), mk_failure(403, "Forbidden")])]
    #[tokio::test]
    async fn what_may_not_be_deleted_is_reported(#[case] answers: Vec<(u16, Value)>) {
        let (result, _, reports) = write_after(
            Problems::default(),
            Part::Service,
            Some(mk_delete()),
            answers,
        )
        .await;
        assert!(result.is_err());
        let refused = reports.refused.get(&Key::new("ns", "gw"));
        assert!(
            refused.is_some_and(|text| text.contains("Forbidden")),
            "{refused:?}"
        );
    }

    /// The API server quotes the value that it rejects.
    #[tokio::test]
    async fn a_refusal_of_any_length_is_reported_in_few_words() {
        let long = "x".repeat(3_000_000);
        let answers = vec![mk_failure(404, "NotFound"), mk_failure(422, &long)];
        let (_, _, reports) = write(Part::Deployment, answers).await;
        let refused = &reports.refused[&Key::new("ns", "gw")];
        assert!(refused.len() < 2 * MAX_MESSAGE, "{} bytes", refused.len());
    }

    /// A conflict is not: the next try may go through.
    #[rstest]
    #[case::invalid(422, "Invalid", true)]
    #[case::forbidden(403, "Forbidden", true)]
    #[case::conflict(409, "Conflict", false)]
    #[tokio::test]
    async fn what_the_api_server_has_against_an_object_is_reported(
        #[case] code: u16,
        #[case] reason: &str,
        #[case] is_reported: bool,
    ) {
        let answers = vec![mk_failure(404, "NotFound"), mk_failure(code, reason)];
        let (result, seen, reports) = write(Part::Service, answers).await;
        assert!(seen[1].starts_with("PATCH"), "{seen:?}");
        assert!(result.is_err());
        let refused = reports.refused.get(&Key::new("ns", "gw"));
        assert_eq!(refused.is_some(), is_reported, "{reports:?}");
    }
}
