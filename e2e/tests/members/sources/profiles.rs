//! ClusterProfiles, with credentials of a plugin: a shell script in the controller's pod.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::{ObjectMeta, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Cluster, isthmus};
use tokio::time::Instant;

use super::{
    GONE, SOON, clients, delete_binding, end_token, entry_of, home_secrets, member_is, rebuilt,
    restore, set_files, token, told, with_token,
};
use e2e::{
    apart::Apart,
    environment::{Environment, Way},
};

use crate::entries::{sample, stays};

const DEFINITION: &str = include_str!("clusterprofiles.yaml");
const PROVIDERS: &str = include_str!("providers.json");
const PLUGIN: &str = include_str!("token.sh");

const CRD: &str = "crd/clusterprofiles.multicluster.x-k8s.io";
/// ConfigMap of the provider file and the plugin.
const PLUGINS: &str = "isthmus-plugins";
/// Secret of the tokens that the plugin prints.
const TOKENS: &str = "isthmus-tokens";
/// On the namespace of the ClusterProfiles: which ClusterSet it is.
const CLUSTERSET: &str = "multicluster.x-k8s.io/clusterset";
/// What tokens of east are bound to.
const BINDINGS: [&str; 3] = ["first-token", "second-token", "third-token"];
/// Of every credential. Four fifths of it, after which there is to be a new one, are 3 s less: enough for a busy machine.
const LIFE: Duration = Duration::from_secs(15);

pub(crate) async fn a_cluster_profile_is_a_member_by_its_plugins_credentials(
    environment: &Environment,
) -> Result<()> {
    environment.settle_with(Way::Quick).await?;
    let apart = Apart::new();
    let outcome = async {
        let [first, second, third] = BINDINGS;
        let first_token = token(&environment.east, first).await?;
        run_with_plugin(environment, &first_token).await?;
        what_cannot_be_used_is_told(environment).await?;

        let asked = Instant::now();
        put_profile(environment, "fleet-east", &reachable(environment, "east")?).await?;
        told(environment, "clusterprofile/fleet-east", "Active", "east").await?;
        let found = clients(environment).await.map_err(anyhow::Error::msg)?;
        let second_token = token(&environment.east, second).await?;
        set_token(environment, Some(&second_token)).await?;
        exchanges(environment, &apart).await?;
        rebuilt(environment, found, 1).await?;
        let renewed = asked.elapsed();
        eprintln!("renewed after {:.1} s", renewed.as_secs_f64());
        ensure!(renewed < LIFE, "renewed after {renewed:?}");

        let before = sample(&environment.west).await?;
        let kubeconfig = environment.members()["east"].clone();
        end_token(
            &environment.east,
            first,
            &with_token(&kubeconfig, &first_token)?,
        )
        .await?;
        works_on(environment, &apart).await?;

        set_token(environment, None).await?;
        // until the next renewal nobody asks the plugin
        member_is(
            environment,
            "east",
            "going on by old credentials",
            LIFE * 2,
            |row| {
                let why = row["unusableCredentials"].as_str().unwrap_or_default();
                why.contains("/bin/sh failed (exit code") && row["active"]["reason"] == "Active"
            },
        )
        .await?;
        let third_token = token(&environment.east, third).await?;
        set_token(environment, Some(&third_token)).await?;
        rebuilt(environment, found, 2).await?;
        end_token(
            &environment.east,
            second,
            &with_token(&kubeconfig, &second_token)?,
        )
        .await?;
        rebuilt(environment, found, 2).await?;
        stays(environment, &before).await?;

        let delete = [
            "delete",
            "clusterprofile/fleet-east",
            "-n",
            isthmus::NAMESPACE,
        ];
        environment.west.kubectl(&delete).await?;
        environment.no_import(GONE).await
    }
    .await;
    restore(environment, &apart).await?;
    clear(environment).await?;
    outcome
}

/// The members are west, as a file, and ClusterProfiles; which ClusterSet it is the controller finds by itself.
async fn run_with_plugin(environment: &Environment, token: &str) -> Result<()> {
    let west = &environment.west;
    set_files(environment, &["west"]).await?;
    environment.no_import(GONE).await?;
    west.apply_yaml(DEFINITION).await?;
    label_namespace(west, "=default").await?;
    let plugins = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PLUGINS, "namespace": isthmus::NAMESPACE},
        "data": {"providers.json": PROVIDERS, "token.sh": PLUGIN},
    });
    west.apply_yaml(&plugins.to_string()).await?;
    set_token(environment, Some(token)).await?;
    let change = |pod: &mut Value| {
        let container = &mut pod["containers"][0];
        if let Some(flags) = container["args"].as_array_mut() {
            flags.retain(|flag| flag != "--clusterset=default");
        }
        add(
            &mut container["args"],
            json!(format!("--clusterprofile-namespace={}", isthmus::NAMESPACE)),
        );
        add(
            &mut container["args"],
            json!("--clusterprofile-provider-file=/var/run/isthmus/plugins/providers.json"),
        );
        add(
            &mut container["volumeMounts"],
            json!({"name": "plugins", "mountPath": "/var/run/isthmus/plugins"}),
        );
        add(
            &mut container["volumeMounts"],
            json!({"name": "tokens", "mountPath": "/var/run/isthmus/tokens"}),
        );
        add(
            &mut pod["volumes"],
            json!({"name": "plugins", "configMap": {"name": PLUGINS}}),
        );
        add(
            &mut pod["volumes"],
            json!({"name": "tokens", "secret": {"secretName": TOKENS}}),
        );
    };
    Ok(isthmus::change_controller(west, change).await?)
}

/// A provider that the file does not have, and a cluster that the plugin has no token of.
async fn what_cannot_be_used_is_told(environment: &Environment) -> Result<()> {
    let mut unknown = reachable(environment, "south")?;
    unknown["accessProviders"][0]["name"] = json!("of-others");
    // else the entry of the old name is one that the file has
    unknown["credentialProviders"] = json!([]);
    put_profile(environment, "fleet-south", &unknown).await?;
    let south = "clusterprofile/fleet-south";
    told(
        environment,
        south,
        "NoAccessProvider",
        "names none of files",
    )
    .await?;
    put_profile(
        environment,
        "fleet-north",
        &reachable(environment, "north")?,
    )
    .await?;
    let north = "clusterprofile/fleet-north";
    told(
        environment,
        north,
        "BadCredentials",
        "/bin/sh failed (exit code",
    )
    .await?;
    member_is(environment, "west", "unaffected", SOON, |row| {
        row["active"]["reason"] == "Active"
    })
    .await
}

/// Both ways: the sample from east, and another pool from west.
async fn exchanges(environment: &Environment, apart: &Apart) -> Result<()> {
    environment.serving().await?;
    entry_of(environment, "east").await?;
    apart.add_namespace(&environment.east).await?;
    apart.add_pool(&environment.west).await?;
    apart.imported(&environment.east, "west").await?;
    Ok(())
}

/// What is new is seen, and what is to be written is written.
async fn works_on(environment: &Environment, apart: &Apart) -> Result<()> {
    apart.delete_pool(&environment.west).await?;
    apart.no_import(&environment.east).await?;
    apart.add_pool(&environment.east).await?;
    apart.imported(&environment.west, "east").await?;
    Ok(())
}

/// The status of the profile of a cluster of this name, which is east.
fn reachable(environment: &Environment, name: &str) -> Result<Value> {
    let kubeconfig: Value = serde_json::from_str(&environment.members()["east"])?;
    let mut cluster = kubeconfig["clusters"][0]["cluster"].clone();
    cluster["extensions"] = json!([
        {"name": "client.authentication.k8s.io/exec", "extension": {"clusterName": name}},
    ]);
    let mut elsewhere = cluster.clone();
    elsewhere["server"] = json!("https://192.0.2.1:6443");
    Ok(json!({
        "properties": [
            {"name": "cluster.clusterset.k8s.io", "value": name},
            {"name": "isthmus.dev/pod-cidrs", "value": isthmus::POD_CIDRS},
        ],
        "accessProviders": [{"name": "files", "cluster": cluster}],
        // by the list's old name: the new one's entry of the same name wins
        "credentialProviders": [{"name": "files", "cluster": elsewhere}],
    }))
}

/// A profile as a fleet manager writes it: the object, then its status.
async fn put_profile(environment: &Environment, name: &str, status: &Value) -> Result<()> {
    let profile = json!({
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": name, "namespace": isthmus::NAMESPACE},
        "spec": {"displayName": name, "clusterManager": {"name": "testbed"}},
    });
    environment.west.apply_yaml(&profile.to_string()).await?;
    let patch = json!({"status": status}).to_string();
    let object = format!("clusterprofile/{name}");
    let patch = [
        "patch",
        &object,
        "-n",
        isthmus::NAMESPACE,
        "--subresource=status",
        "--type=merge",
        "--patch",
        &patch,
    ];
    environment.west.kubectl(&patch).await?;
    Ok(())
}

/// What the plugin has of east from now on.
async fn set_token(environment: &Environment, token: Option<&str>) -> Result<()> {
    let file = |token| ByteString(format!("{token} {}\n", LIFE.as_secs()).into_bytes());
    let files = token.map(|token| ("east".to_owned(), file(token)));
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(TOKENS.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(files.into_iter().collect()),
        ..Secret::default()
    };
    let params = PatchParams::apply("testbed").force();
    home_secrets(environment)
        .patch(TOKENS, &params, &Patch::Apply(secret))
        .await?;
    Ok(())
}

async fn label_namespace(cluster: &Cluster, value: &str) -> Result<()> {
    let label = format!("{CLUSTERSET}{value}");
    let command = [
        "label",
        "--overwrite",
        "namespace",
        isthmus::NAMESPACE,
        &label,
    ];
    cluster.kubectl(&command).await?;
    Ok(())
}

async fn clear(environment: &Environment) -> Result<()> {
    let west = &environment.west;
    let (configmap, secret) = (format!("configmap/{PLUGINS}"), format!("secret/{TOKENS}"));
    for object in [CRD, &configmap, &secret] {
        let delete = [
            "delete",
            object,
            "-n",
            isthmus::NAMESPACE,
            "--ignore-not-found",
        ];
        west.kubectl(&delete).await?;
    }
    label_namespace(west, "-").await?;
    for object in BINDINGS {
        delete_binding(&environment.east, object).await?;
    }
    Ok(())
}

fn add(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}
