//! What a member grants the controller: `config/rbac/member.yaml`, which is the only place that says so. Pure.

use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize as _;
use serde_json::Value;

const MANIFEST: &str = include_str!("../../../config/rbac/member.yaml");

/// The objects of the manifest, and what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct MemberRights {
    /// In the order in which they are applied.
    pub(crate) objects: Vec<Value>,
    /// The account that the controller's token is of.
    pub(crate) account: Account,
    /// What it may do.
    pub(crate) rights: Vec<Right>,
}

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Who asks, as access reviews call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
}

/// One verb on one resource, in all namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub(crate) group: String,
    pub(crate) resource: String,
    /// Empty: the resource itself.
    pub(crate) subresource: String,
    /// Empty: all of them.
    pub(crate) name: String,
    pub(crate) verb: String,
}

/// How the name of a ServiceAccount as a user begins.
const USER_PREFIX: &str = "system:serviceaccount:";
const VERSION_LABEL: &str = "app.kubernetes.io/version";

// === impl MemberRights ===

impl MemberRights {
    pub(crate) fn read() -> anyhow::Result<Self> {
        Self::parse(MANIFEST).context("config/rbac/member.yaml, as this program was built with it")
    }

    fn parse(manifest: &str) -> anyhow::Result<Self> {
        let mut objects = Vec::new();
        for document in serde_yaml::Deserializer::from_str(manifest) {
            let mut object = Value::deserialize(document)?;
            // who applies the next version of the manifest is to find no conflict
            if let Some(labels) = object.pointer_mut("/metadata/labels") {
                labels.as_object_mut().map(|it| it.remove(VERSION_LABEL));
            }
            if !object.is_null() {
                objects.push(object);
            }
        }
        let of_kind =
            |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let account = of_kind("ServiceAccount")
            .next()
            .context("no ServiceAccount")?;
        let text = |field: &str| {
            account["metadata"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let account = Account {
            namespace: text("namespace"),
            name: text("name"),
        };
        let mut rights = Vec::new();
        for role in of_kind("ClusterRole") {
            let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone())?;
            rights.extend(rules.into_iter().flat_map(expand));
        }
        Ok(Self {
            objects,
            account,
            rights,
        })
    }

    /// The namespace of the account; it is made where it is missing, and never deleted.
    pub(crate) fn is_namespace(object: &Value) -> bool {
        object["kind"] == "Namespace"
    }
}

// === impl Account ===

impl Account {
    /// As access reviews call it, with the groups that every ServiceAccount is in.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            user: format!("{USER_PREFIX}{}:{}", self.namespace, self.name),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", self.namespace),
                "system:authenticated".to_owned(),
            ],
        }
    }

    /// The account of this user; none where it is another user.
    pub(crate) fn of_user(user: &str) -> Option<Self> {
        let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Right ===

impl Right {
    /// `inferencepools/status.inference.networking.k8s.io`.
    pub(crate) fn object(&self) -> String {
        let mut text = self.resource.clone();
        for (separator, part) in [
            ('/', &self.subresource),
            ('.', &self.group),
            (' ', &self.name),
        ] {
            if !part.is_empty() {
                text.push(separator);
                text.push_str(part);
            }
        }
        text
    }
}

fn expand(rule: PolicyRule) -> Vec<Right> {
    let names = rule.resource_names.filter(|names| !names.is_empty());
    let names = names.unwrap_or_else(|| vec![String::new()]);
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            for name in &names {
                rights.extend(rule.verbs.iter().map(|verb| Right {
                    group: group.clone(),
                    resource: resource.to_owned(),
                    subresource: subresource.to_owned(),
                    name: name.clone(),
                    verb: verb.clone(),
                }));
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_an_account_its_rights_and_no_secrets() {
        let rights = MemberRights::read().expect("the manifest");
        let kinds: Vec<&str> = rights
            .objects
            .iter()
            .filter_map(|one| one["kind"].as_str())
            .collect();
        for kind in ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        assert_eq!(
            rights.account.subject().user,
            "system:serviceaccount:isthmus-system:isthmus-mci-controller"
        );
        assert!(rights.rights.len() > 20);
        let odd = rights
            .rights
            .iter()
            .find(|right| right.resource == "secrets" || right.verb == "*");
        assert_eq!(odd, None);
    }

    #[test]
    fn rules_are_rights_one_by_one() {
        let rule = PolicyRule {
            api_groups: Some(vec!["g".to_owned()]),
            resources: Some(vec!["pools/status".to_owned()]),
            resource_names: Some(vec!["a".to_owned(), "b".to_owned()]),
            verbs: vec!["get".to_owned(), "patch".to_owned()],
            ..PolicyRule::default()
        };
        let rights = expand(rule);
        let texts: Vec<String> = rights
            .iter()
            .map(|right| format!("{} {}", right.verb, right.object()))
            .collect();
        assert_eq!(
            texts,
            [
                "get pools/status.g a",
                "patch pools/status.g a",
                "get pools/status.g b",
                "patch pools/status.g b"
            ]
        );
    }
}
