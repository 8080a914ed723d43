//! The environment, command and arguments of a container, as a kubelet makes them. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};
use kube::ResourceExt as _;

/// What is known of a pod beyond its specification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) pod_ip: IpAddr,
    pub(crate) host_ip: IpAddr,
    pub(crate) node_name: &'a str,
}

/// The objects of the pod's namespace that it may refer to.
pub(crate) trait Lookup {
    fn secret(&self, name: &str) -> Option<Arc<Secret>>;
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>>;
}

/// Why an environment cannot be made; the container waits until it can.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvironmentError {
    #[error("{kind} \"{name}\" not found")]
    NoObject { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {name}")]
    NoKey {
        kind: &'static str,
        name: String,
        key: String,
    },
    #[error("env {0}: only fieldRef, secretKeyRef and configMapKeyRef are supported here")]
    UnsupportedSource(String),
    #[error("fieldRef {0}: this field is not supported here")]
    UnsupportedField(String),
    #[error("{kind} {name}, key {key}: not UTF-8")]
    NotText {
        kind: &'static str,
        name: String,
        key: String,
    },
}

// === impl Facts ===

impl Facts<'_> {
    /// The value of a `fieldRef`.
    pub(crate) fn field(&self, path: &str) -> Result<String, EnvironmentError> {
        let metadata = &self.pod.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let spec = self.pod.spec.as_ref();
        let entry = |map: &Option<BTreeMap<String, String>>, name: &str| {
            map.as_ref()
                .and_then(|map| map.get(name))
                .cloned()
                .unwrap_or_default()
        };
        Ok(match path {
            "metadata.name" => text(&metadata.name),
            "metadata.namespace" => text(&metadata.namespace),
            "metadata.uid" => text(&metadata.uid),
            "spec.nodeName" => self.node_name.to_owned(),
            "spec.serviceAccountName" => spec
                .map(|spec| text(&spec.service_account_name))
                .unwrap_or_default(),
            "status.podIP" | "status.podIPs" => self.pod_ip.to_string(),
            "status.hostIP" | "status.hostIPs" => self.host_ip.to_string(),
            "metadata.labels" => lines(self.pod.labels()),
            "metadata.annotations" => lines(self.pod.annotations()),
            _ => match subscript(path) {
                Some(("metadata.labels", name)) => entry(&metadata.labels, name),
                Some(("metadata.annotations", name)) => entry(&metadata.annotations, name),
                _ => return Err(EnvironmentError::UnsupportedField(path.to_owned())),
            },
        })
    }
}

/// `base` first, then `envFrom`, then `env`; later entries win, and may refer to earlier ones by `$(NAME)`.
pub(crate) fn make_environment(
    container: &Container,
    facts: Facts<'_>,
    lookup: &impl Lookup,
    base: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut environment = base;
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.config_map_ref {
            let found = lookup.config_map(&reference.name);
            if found.is_none() && reference.optional != Some(true) {
                return Err(no_object("configmap", &reference.name));
            }
            let data = found
                .and_then(|object| object.data.clone())
                .unwrap_or_default();
            environment.extend(
                data.into_iter()
                    .map(|(key, value)| (format!("{prefix}{key}"), value)),
            );
        }
        if let Some(reference) = &from.secret_ref {
            let found = lookup.secret(&reference.name);
            if found.is_none() && reference.optional != Some(true) {
                return Err(no_object("secret", &reference.name));
            }
            for (key, value) in found
                .and_then(|object| object.data.clone())
                .unwrap_or_default()
            {
                let value = text("secret", &reference.name, &key, value.0)?;
                environment.insert(format!("{prefix}{key}"), value);
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            Some(source) => from_source(&variable.name, source, facts, lookup)?,
            None => Some(expand(
                variable.value.as_deref().unwrap_or_default(),
                &environment,
            )),
        };
        if let Some(value) = value {
            environment.insert(variable.name.clone(), value);
        }
    }
    Ok(environment)
}

/// The variables of Kubernetes' service links: `EPP_SERVICE_HOST`, `EPP_PORT=tcp://…` and so on.
pub(crate) fn make_service_links<'a>(
    services: impl Iterator<Item = &'a Service>,
) -> BTreeMap<String, String> {
    let mut links = BTreeMap::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let Some(address) = spec
            .cluster_ip
            .as_deref()
            .filter(|ip| !ip.is_empty() && *ip != "None")
        else {
            continue;
        };
        let name = service.name_any().to_uppercase().replace('-', "_");
        for (nth, port) in spec.ports.iter().flatten().enumerate() {
            let number = port.port;
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{address}:{number}", protocol.to_lowercase());
            if nth == 0 {
                links.insert(format!("{name}_SERVICE_HOST"), address.to_owned());
                links.insert(format!("{name}_SERVICE_PORT"), number.to_string());
                links.insert(format!("{name}_PORT"), url.clone());
            }
            if let Some(port_name) = &port.name {
                let port_name = port_name.to_uppercase().replace('-', "_");
                links.insert(
                    format!("{name}_SERVICE_PORT_{port_name}"),
                    number.to_string(),
                );
            }
            let prefix = format!("{name}_PORT_{number}_{protocol}");
            links.insert(format!("{prefix}_PROTO"), protocol.to_lowercase());
            links.insert(format!("{prefix}_PORT"), number.to_string());
            links.insert(format!("{prefix}_ADDR"), address.to_owned());
            links.insert(prefix, url);
        }
    }
    links
}

/// Replaces `$(NAME)` by the variable's value; an unknown name stays as it is, `$$` is a plain `$`.
pub(crate) fn expand(text: &str, environment: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let reference = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'));
        if let Some((name, after)) = reference {
            match environment.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

/// None for an optional reference that leads nowhere.
fn from_source(
    variable: &str,
    source: &EnvVarSource,
    facts: Facts<'_>,
    lookup: &impl Lookup,
) -> Result<Option<String>, EnvironmentError> {
    if let Some(field) = &source.field_ref {
        return facts.field(&field.field_path).map(Some);
    }
    let (kind, name, key, optional, value) = if let Some(reference) = &source.secret_key_ref {
        let found = lookup.secret(&reference.name);
        let value = found.as_ref().map(|object| {
            let value = object
                .data
                .as_ref()
                .and_then(|data| data.get(&reference.key));
            value.map(|value| value.0.clone())
        });
        (
            "secret",
            &reference.name,
            &reference.key,
            reference.optional,
            value,
        )
    } else if let Some(reference) = &source.config_map_key_ref {
        let found = lookup.config_map(&reference.name);
        let value = found.as_ref().map(|object| {
            let value = object
                .data
                .as_ref()
                .and_then(|data| data.get(&reference.key));
            value.map(|value| value.clone().into_bytes())
        });
        (
            "configmap",
            &reference.name,
            &reference.key,
            reference.optional,
            value,
        )
    } else {
        return Err(EnvironmentError::UnsupportedSource(variable.to_owned()));
    };
    match value {
        Some(Some(value)) => text(kind, name, key, value).map(Some),
        _ if optional == Some(true) => Ok(None),
        None => Err(no_object(kind, name)),
        Some(None) => Err(EnvironmentError::NoKey {
            kind,
            name: name.clone(),
            key: key.clone(),
        }),
    }
}

fn no_object(kind: &'static str, name: &str) -> EnvironmentError {
    EnvironmentError::NoObject {
        kind,
        name: name.to_owned(),
    }
}

fn text(
    kind: &'static str,
    name: &str,
    key: &str,
    value: Vec<u8>,
) -> Result<String, EnvironmentError> {
    String::from_utf8(value).map_err(|_| EnvironmentError::NotText {
        kind,
        name: name.to_owned(),
        key: key.to_owned(),
    })
}

/// `metadata.labels['app']` → `metadata.labels` and `app`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

fn lines(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map
        .iter()
        .map(|(name, value)| format!("{name}={value:?}"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests;
