//! The pods of the present selector, followed; those of the one before stay until the new ones are listed.

use std::collections::BTreeSet;

use ::watch::{Config, Update as Change};
use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use scheduling::Member;
use tracing::info;

use crate::{
    pods::{IgnoredPorts, Pods, TakenAddress},
    update::{Kind, Outbox, Update},
};

/// Which pods, and where they serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// In the API server's words.
    pub(crate) selector: String,
    /// In the order of their ranks; at most 8.
    pub(crate) ports: Vec<u16>,
}

/// The members that pods of one namespace are.
pub(crate) struct Selected {
    client: Client,
    namespace: String,
    /// Listed: its pods are the members.
    current: Option<PodWatch>,
    /// The watch of a changed selector, until it has listed.
    next: Option<PodWatch>,
    published: Option<Vec<Member>>,
    /// Annotations that were reported and still stand.
    ignored: BTreeSet<IgnoredPorts>,
    /// Shared addresses that were reported and are still shared.
    taken: BTreeSet<TakenAddress>,
}

/// A change of the pods of one watch.
pub(crate) enum Event {
    Current(Change<Pod>),
    Next(Change<Pod>),
}

struct PodWatch {
    /// The target as it was while it last had this selector: ports go with the pods they were given for.
    target: Target,
    changes: BoxStream<'static, Change<Pod>>,
    pods: Pods,
}

// === impl Selected ===

impl Selected {
    /// No pods yet.
    pub(crate) fn new(client: Client, namespace: String) -> Self {
        Self {
            client,
            namespace,
            current: None,
            next: None,
            published: None,
            ignored: BTreeSet::new(),
            taken: BTreeSet::new(),
        }
    }

    /// Of the pods.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Follows these pods from now on.
    pub(crate) fn select(&mut self, target: Target, out: &mut Outbox) {
        let selects = |pods: &&mut PodWatch| pods.target.selector == target.selector;
        if let Some(pods) = self.current.as_mut().filter(selects) {
            pods.target = target;
            self.next = None;
        } else if let Some(pods) = self.next.as_mut().filter(selects) {
            pods.target = target;
        } else {
            info!(selector = %target.selector, "watching the pods");
            self.next = Some(PodWatch::open(&self.client, &self.namespace, target));
        }
        self.publish(out);
    }

    /// Follows no pods from now on.
    pub(crate) fn clear(&mut self) {
        self.current = None;
        self.next = None;
        self.published = None;
        self.ignored.clear();
        self.taken.clear();
    }

    /// The next change; none is lost when this is given up.
    pub(crate) async fn next(&mut self) -> Event {
        tokio::select! {
            Some(change) = next_change(&mut self.current) => Event::Current(change),
            Some(change) = next_change(&mut self.next) => Event::Next(change),
            else => std::future::pending().await,
        }
    }

    /// Takes a change. The next watch takes over with its first complete list.
    pub(crate) fn on(&mut self, event: Event, out: &mut Outbox) {
        let (pods, change, is_next) = match event {
            Event::Current(change) => (&mut self.current, change, false),
            Event::Next(change) => (&mut self.next, change, true),
        };
        let Some(pods) = pods else { return };
        let listed = matches!(change, Change::Reset(_));
        out.extend(trouble(Kind::Pod, &change));
        pods.pods.on(change);
        if listed {
            out.push_back(Update::Listed(Kind::Pod));
        }
        if listed && is_next {
            self.current = self.next.take();
        }
        self.publish(out);
    }

    /// Hands the members on, if they changed.
    fn publish(&mut self, out: &mut Outbox) {
        let Some(pods) = &self.current else { return };
        let ports = &pods.target.ports;
        let ignored = pods.pods.ignored_ports(ports);
        let new = ignored.difference(&self.ignored);
        out.extend(new.map(|IgnoredPorts { pod, text }| Update::Odd {
            kind: Kind::Pod,
            name: pod.clone(),
            error: format!(
                "active ports {text:?} name no port of {ports:?}: all of these are used"
            ),
        }));
        self.ignored = ignored;
        let taken = pods.pods.taken_addresses(ports);
        let new = taken.difference(&self.taken);
        out.extend(new.map(|TakenAddress { pod, by, address }| Update::Odd {
            kind: Kind::Pod,
            name: pod.clone(),
            error: format!(
                "{address} is an address of the pod {by} too, and counts as that pod's alone: give pods on one host's \
                 network ports of their own, and name those in the annotation llm-d.ai/active-ports"
            ),
        }));
        self.taken = taken;
        let members = pods.pods.list(&self.namespace, ports);
        if self.published.as_ref() != Some(&members) {
            self.published = Some(members.clone());
            out.push_back(Update::Members(members));
        }
    }
}

// === impl PodWatch ===

impl PodWatch {
    fn open(client: &Client, namespace: &str, target: Target) -> Self {
        let api = Api::namespaced(client.clone(), namespace);
        let config = Config::default().labels(&target.selector);
        Self {
            target,
            changes: ::watch::objects(api, config).boxed(),
            pods: Pods::default(),
        }
    }
}

async fn next_change(pods: &mut Option<PodWatch>) -> Option<Change<Pod>> {
    pods.as_mut()?.changes.next().await
}

/// What a change of a watch has to report, whatever the kind.
pub(crate) fn trouble<K>(kind: Kind, change: &Change<K>) -> Option<Update> {
    match change {
        Change::Odd(odd) => Some(Update::Odd {
            kind,
            name: odd.name.clone(),
            error: format!("it cannot be read, its last state stays: {}", odd.error),
        }),
        Change::Failed(failure) => Some(Update::Failed {
            kind,
            reason: failure.reason(),
            error: failure.message.clone(),
        }),
        Change::Reset(_) | Change::Apply(_) | Change::Delete(_) | Change::OddDelete(_) => None,
    }
}
