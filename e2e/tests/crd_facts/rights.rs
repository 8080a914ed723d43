//! What rights the requests need that the controller sends.

use anyhow::{Result, ensure};
use http::header::CONTENT_TYPE;
use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ObjectList, PostParams},
};
use serde_json::{Value, json};
use testbed::eventually;

use crate::server::{IMPORT_CRD, SOON, Server, refusal};

/// Grants rights to the user of this name.
async fn grant(server: &Server, user: &str, rule: Value) -> Result<()> {
    let client = server.cluster.client();
    let role = json!({"metadata": {"name": user}, "rules": [rule]});
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = serde_json::from_value(role)?;
    roles.create(&PostParams::default(), &role).await?;
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client);
    let binding = serde_json::from_value(binding)?;
    bindings.create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// K9: an apply of an import that is not there asks for the right to create it besides the right to patch.
pub(crate) async fn an_apply_that_creates_needs_create_and_patch(server: &Server) -> Result<()> {
    let rule = |verbs: &[&str]| {
        json!({"apiGroups": [crd::annotations::IMPORT_GROUP], "resources": [crd::annotations::IMPORT_PLURAL],
            "verbs": verbs})
    };
    grant(server, "patcher", rule(&["patch"])).await?;
    grant(server, "creator", rule(&["create"])).await?;
    grant(server, "both", rule(&["create", "patch"])).await?;
    let client = server.cluster.client();
    let apply = async |user: &str| {
        let path = format!(
            "/apis/{}/namespaces/default/{}/by-{user}?fieldManager={user}",
            crd::import::API_VERSION,
            crd::annotations::IMPORT_PLURAL
        );
        let import = crd::InferencePoolImport::new("default", &format!("by-{user}"));
        let request = http::Request::patch(path)
            .header("Impersonate-User", user)
            .header(CONTENT_TYPE, "application/apply-patch+yaml")
            .body(serde_json::to_vec(&import).map_err(kube::Error::SerdeError)?)
            .map_err(kube::Error::HttpError)?;
        client.request::<crd::InferencePoolImport>(request).await
    };
    eventually("who has both creates it", SOON, async || {
        apply("both")
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await?;
    for (user, lacks) in [("patcher", "cannot create"), ("creator", "cannot patch")] {
        eventually("it is told what is lacking", SOON, async || {
            match refusal(apply(user).await) {
                Ok(status) if status.code == 403 && status.message.contains(lacks) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
    }
    Ok(())
}

/// K11: who may read one CRD alone lists it by a field selector, and nothing else.
pub(crate) async fn a_crd_is_read_by_its_name_alone(server: &Server) -> Result<()> {
    let rule = json!({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
        "resourceNames": [IMPORT_CRD], "verbs": ["get", "list", "watch"]});
    grant(server, "one-crd", rule).await?;
    let client = server.cluster.client();
    let list = async |query: &str| {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions{query}");
        let request = http::Request::get(path).header("Impersonate-User", "one-crd");
        let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
        client
            .request::<ObjectList<CustomResourceDefinition>>(request)
            .await
    };
    let named = format!("?fieldSelector=metadata.name%3D{IMPORT_CRD}");
    eventually("the one is listed", SOON, async || {
        let listed = list(&named).await.map_err(|error| error.to_string())?;
        if listed.items.len() == 1 {
            Ok(())
        } else {
            Err(format!("{} CRDs", listed.items.len()))
        }
    })
    .await?;
    let refused = refusal(list("").await)?;
    ensure!(refused.code == 403, "{refused:?}");
    Ok(())
}
