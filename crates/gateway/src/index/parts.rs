//! Our own infrastructure: what there is of it, and what that says of its Gateways.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use watch::Update;

use crate::feedback::Infra;
use crate::infra::{Part, controlling_gateway};
use crate::world::{Key, project};

use super::keep::keep;
use super::{Changes, Index};

impl Index {
    pub(super) fn services(&mut self, update: Update<Service>, odd: &BTreeSet<Key>) -> Changes {
        let mut changes = self.part(Part::Service, &update, odd, |o| &o.metadata);
        match &update {
            Update::Reset(list) => {
                // Whose the odd ones are is not known: then nothing is taken for lost.
                for infra in self.feedback.infra.values_mut().filter(|_| odd.is_empty()) {
                    infra.addresses.clear();
                    infra.ports.clear();
                }
                for service in list {
                    self.reached_by(service, false);
                }
                changes.world.all = true;
            }
            Update::Apply(service) => changes
                .world
                .reports
                .extend(self.reached_by(service, false)),
            Update::Delete(service) => changes.world.reports.extend(self.reached_by(service, true)),
            Update::Odd(_) | Update::OddDelete(_) | Update::Failed(_) => {}
        }
        self.feedback
            .infra
            .retain(|_, infra| *infra != Infra::default());
        let services = keep(
            &mut self.world.services,
            update,
            odd,
            |o| &o.metadata,
            project::service,
        );
        changes.add(self.own_networks(!services.is_empty()));
        changes.world.services.extend(services);
        changes
    }

    /// Notes where the Gateway that the Service leads to is reached, and returns that Gateway.
    fn reached_by(&mut self, service: &Service, gone: bool) -> Option<Key> {
        let gateway = gateway_of(&service.metadata);
        if gateway.is_some() {
            let key = project::key(&service.metadata);
            let infra = self.feedback.infra.entry(key).or_default();
            (infra.addresses, infra.ports) = if gone {
                (Vec::new(), BTreeSet::new())
            } else {
                (
                    project::service_addresses(service),
                    project::service_ports(service),
                )
            };
        }
        gateway
    }

    pub(super) fn deployments(
        &mut self,
        update: Update<Deployment>,
        odd: &BTreeSet<Key>,
    ) -> Changes {
        let mut changes = self.part(Part::Deployment, &update, odd, |o| &o.metadata);
        let (list, gone) = match &update {
            Update::Reset(list) => {
                changes.world.all = true;
                // Whose the odd ones are is not known: then nothing is taken for lost.
                for infra in self.feedback.infra.values_mut().filter(|_| odd.is_empty()) {
                    infra.available = 0;
                    infra.failure = None;
                }
                (&list[..], false)
            }
            Update::Apply(one) => (std::slice::from_ref(one), false),
            Update::Delete(one) => (std::slice::from_ref(one), true),
            Update::Odd(_) | Update::OddDelete(_) | Update::Failed(_) => (&[][..], false),
        };
        for one in list {
            if let Some(gateway) = gateway_of(&one.metadata) {
                let key = project::key(&one.metadata);
                let infra = self.feedback.infra.entry(key).or_default();
                (infra.available, infra.failure) = if gone {
                    (0, None)
                } else {
                    (project::available(one), project::replica_failure(one))
                };
                changes.world.reports.insert(gateway);
            }
        }
        self.feedback
            .infra
            .retain(|_, infra| *infra != Infra::default());
        changes
    }

    /// Live infrastructure of one kind.
    pub(super) fn part<K: serde::Serialize>(
        &mut self,
        part: Part,
        update: &Update<K>,
        odd: &BTreeSet<Key>,
        meta: impl Fn(&K) -> &ObjectMeta,
    ) -> Changes {
        let json = |object: &K| serde_json::to_value(object).unwrap_or(Value::Null);
        let ours = |object: &K| gateway_of(meta(object)).is_some();
        let id = |object: &K| (part, project::key(meta(object)));
        let changed = match update {
            Update::Reset(list) => {
                self.parts
                    .retain(|(kind, key), _| *kind != part || odd.contains(key));
                let parts = list.iter().filter(|object| ours(object));
                self.parts
                    .extend(parts.map(|object| (id(object), json(object))));
                true
            }
            Update::Apply(object) if ours(object) => {
                self.parts.insert(id(object), json(object));
                true
            }
            Update::Apply(object) | Update::Delete(object) => {
                self.parts.remove(&id(object)).is_some()
            }
            Update::Odd(_) | Update::OddDelete(_) | Update::Failed(_) => false,
        };
        Changes {
            parts: changed,
            ..Changes::default()
        }
    }
}

/// The Gateway that the object serves: the one that controls it, if it is of our infrastructure. Its
/// name as a label may be cut.
fn gateway_of(meta: &ObjectMeta) -> Option<Key> {
    let labels = meta.labels.as_ref()?;
    let ours = labels.get(crd::annotations::MANAGED_BY)? == crate::infra::MANAGED_BY;
    let owner = controlling_gateway(meta).filter(|_| ours)?;
    Some(Key::new(meta.namespace.as_ref()?, &owner.name))
}
