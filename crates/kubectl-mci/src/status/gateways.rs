//! The conditions that gateways report for an import, in their own entries of its status. Pure.

use crd::{
    Condition, ControllerParent, InferencePoolImport, annotations::GATEWAY_CONTROLLER, conditions,
};
use kube::ResourceExt;
use serde::Serialize;

use super::Hole;

/// Conditions of a parent that show whether the import gets requests; the data plane's own comes first.
const TELLING: [&str; 3] = [
    conditions::PROGRAMMED,
    conditions::RESOLVED_REFS,
    conditions::ACCEPTED,
];

/// The conditions that one Gateway reports for an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct GatewayView {
    /// The cluster of the Gateway and of the import.
    pub(crate) cluster: String,
    /// `NAMESPACE/NAME`, and the name of the controller where it is not Isthmus.
    pub(crate) gateway: String,
    /// `True`, `False` or `Unknown`; absent if the Gateway does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) programmed: Option<String>,
    /// The reason of the first condition that is False, else of `Programmed`.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The conditions that each Gateway reports for an import in a cluster.
pub(crate) fn gateways(cluster: &str, import: &InferencePoolImport) -> Vec<GatewayView> {
    let views = parents(import).map(|(controller, parent)| {
        let programmed = conditions::find(&parent.conditions, conditions::PROGRAMMED);
        let telling = false_ones(parent).next().or(programmed);
        GatewayView {
            cluster: cluster.to_owned(),
            gateway: name(import, controller, parent),
            programmed: programmed.map(|condition| condition.status.clone()),
            reason: telling.map_or_else(String::new, |condition| condition.reason.clone()),
            message: telling.map_or_else(String::new, |condition| condition.message.clone()),
        }
    });
    views.collect()
}

/// A problem for each condition of a Gateway that is False.
pub(super) fn holes(import: &InferencePoolImport) -> Vec<Hole> {
    let holes = parents(import).flat_map(|(controller, parent)| {
        let gateway = name(import, controller, parent);
        false_ones(parent).map(move |condition| Hole {
            from: None,
            gateway: Some(gateway.clone()),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
    });
    holes.collect()
}

fn false_ones(parent: &ControllerParent) -> impl Iterator<Item = &Condition> {
    let found = TELLING.iter();
    let found = found.filter_map(|type_| conditions::find(&parent.conditions, type_));
    found.filter(|condition| condition.status == "False")
}

fn parents(import: &InferencePoolImport) -> impl Iterator<Item = (&str, &ControllerParent)> {
    let controllers = import.status.iter().flat_map(|status| &status.controllers);
    controllers.flat_map(|controller| {
        let parents = controller.parents.iter();
        parents.map(|parent| {
            let by = parent.controller_name.as_deref();
            (by.unwrap_or(&controller.name), parent)
        })
    })
}

fn name(import: &InferencePoolImport, controller: &str, parent: &ControllerParent) -> String {
    let reference = &parent.parent_ref;
    let own = import.namespace().unwrap_or_default();
    let namespace = reference.namespace.as_ref().unwrap_or(&own);
    let name = format!("{namespace}/{}", reference.name);
    if controller == GATEWAY_CONTROLLER {
        name
    } else {
        format!("{name} of {controller}")
    }
}
