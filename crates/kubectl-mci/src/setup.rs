//! How the controller is run, by its Deployment: where its members come from, and what it takes for granted. Pure.

use crd::RoutingMode;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, PodSpec},
};

use crate::known::Granted;

/// What its flags say, as far as the plugin needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// The home cluster is a member of this name.
    pub(crate) self_name: Option<String>,
    /// The networks of its pods.
    pub(crate) self_pod_cidrs: Option<String>,
    /// The namespaces that it may export.
    pub(crate) self_export_namespaces: Option<String>,
    pub(crate) files: Files,
    /// Whether labelled Secrets are members.
    pub(crate) secrets: bool,
    /// Namespace of the ClusterProfiles that are members.
    pub(crate) profiles: Option<String>,
    /// None: it finds out by itself.
    pub(crate) clusterset: Option<String>,
    /// Of exports whose pool does not say.
    pub(crate) default_mode: RoutingMode,
    /// ServiceAccount by which it runs.
    pub(crate) account: Option<String>,
}

/// Kubeconfigs in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    None,
    /// Keys of this Secret, which is mounted there.
    Secret(String),
    /// From elsewhere: this directory.
    Elsewhere(String),
}

const CONTAINER: &str = "mci-controller";

// === impl Setup ===

impl Setup {
    pub(crate) fn of(deployment: &Deployment) -> Self {
        let spec = deployment.spec.as_ref();
        let nothing = PodSpec::default();
        let pod = spec.and_then(|spec| spec.template.spec.as_ref());
        let pod = pod.unwrap_or(&nothing);
        let named = pod.containers.iter().find(|one| one.name == CONTAINER);
        let nothing = Container::default();
        let container = named.or(pod.containers.first()).unwrap_or(&nothing);
        let value = |flag: &str| value_of(container, flag);
        let default_mode = match value("default-export-mode").as_deref() {
            Some("ParentMode") => RoutingMode::ParentMode,
            _ => RoutingMode::EndpointMode,
        };
        Self {
            self_name: value("self-name"),
            self_pod_cidrs: value("self-pod-cidrs"),
            self_export_namespaces: value("self-export-namespaces"),
            files: value("kubeconfig-dir").map_or(Files::None, |dir| files(pod, container, dir)),
            secrets: value("member-secrets").as_deref() != Some("false"),
            profiles: value("clusterprofile-namespace"),
            clusterset: value("clusterset"),
            default_mode,
            account: pod.service_account_name.clone(),
        }
    }

    /// The rights that it records of the home cluster as a member.
    pub(crate) fn self_granted(&self) -> Granted {
        let namespaces = self.self_export_namespaces.as_deref();
        Granted::of(self.self_pod_cidrs.as_deref(), namespaces)
    }
}

/// As `--flag=value`, `--flag value`, or the variable of that name; a flag goes before its variable.
fn value_of(container: &Container, flag: &str) -> Option<String> {
    let words = container.command.iter().chain(&container.args).flatten();
    let mut words = words.filter_map(|word| word.strip_prefix("--").or(Some(word)));
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().map(ToOwned::to_owned);
        }
        if let Some((name, value)) = word.split_once('=')
            && name == flag
        {
            return Some(value.to_owned());
        }
    }
    let variable = flag.replace('-', "_").to_uppercase();
    let mut variables = container.env.iter().flatten();
    let found = variables.find(|one| one.name == variable)?;
    found.value.clone().filter(|value| !value.is_empty())
}

/// What is mounted at the directory.
fn files(pod: &PodSpec, container: &Container, directory: String) -> Files {
    let at = |path: &str| path.trim_end_matches('/') == directory.trim_end_matches('/');
    let mut mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.find(|mount| at(&mount.mount_path));
    let volume = mount.and_then(|mount| {
        let mut volumes = pod.volumes.iter().flatten();
        volumes.find(|volume| volume.name == mount.name)
    });
    let secret = volume.and_then(|volume| volume.secret.as_ref()?.secret_name.clone());
    secret.map_or(Files::Elsewhere(directory), Files::Secret)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn mk_setup(pod: Value) -> Setup {
        let deployment = json!({"spec": {"selector": {}, "template": {"spec": pod}}});
        Setup::of(&serde_json::from_value(deployment).expect("a Deployment"))
    }

    #[test]
    fn the_chart_with_a_secret_of_members_is_understood() {
        let setup = mk_setup(json!({
            "serviceAccountName": "controller",
            "containers": [
                {"name": "proxy"},
                {"name": "mci-controller",
                    "args": ["--kubeconfig-dir=/members/", "--self-name", "hub", "--clusterset=prod", "--self-pod-cidrs=10.2.0.0/16"],
                    "volumeMounts": [{"name": "m", "mountPath": "/members"}]},
            ],
            "volumes": [{"name": "m", "secret": {"secretName": "fleet"}}],
        }));
        let expected = Setup {
            self_name: Some("hub".to_owned()),
            self_pod_cidrs: Some("10.2.0.0/16".to_owned()),
            self_export_namespaces: None,
            files: Files::Secret("fleet".to_owned()),
            secrets: true,
            profiles: None,
            clusterset: Some("prod".to_owned()),
            default_mode: RoutingMode::EndpointMode,
            account: Some("controller".to_owned()),
        };
        assert_eq!(setup, expected);
    }

    #[rstest]
    #[case(json!({"args": ["--default-export-mode=ParentMode"]}), RoutingMode::ParentMode)]
    #[case(json!({"env": [{"name": "DEFAULT_EXPORT_MODE", "value": "ParentMode"}]}), RoutingMode::ParentMode)]
    #[case(
        json!({"args": ["--default-export-mode", "EndpointMode"], "env": [{"name": "DEFAULT_EXPORT_MODE", "value": "ParentMode"}]}),
        RoutingMode::EndpointMode
    )]
    #[case(json!({}), RoutingMode::EndpointMode)]
    fn a_flag_goes_before_its_variable(#[case] container: Value, #[case] mode: RoutingMode) {
        let mut container = container;
        container["name"] = "mci-controller".into();
        let setup = mk_setup(json!({"containers": [container]}));
        assert_eq!(setup.default_mode, mode);
        assert_eq!(setup.files, Files::None);
    }

    #[test]
    fn a_directory_of_no_secret_is_elsewhere() {
        let args = json!(["--kubeconfig-dir=/members", "--member-secrets=false"]);
        let setup = mk_setup(json!({"containers": [{"name": "x", "args": args}]}));
        assert_eq!(setup.files, Files::Elsewhere("/members".to_owned()));
        assert!(!setup.secrets);
    }
}
