//! The pods of a selector that is given, without an InferencePool.

use kube::Client;

use crate::{
    ports::TargetPorts,
    selected::{Selected, Target},
    selector::LabelSelector,
    update::{Discovery, Outbox, Steps, Updates, updates},
};

/// Follows the pods that match a selector. The API server applies it, so only pods that match are sent.
pub struct SelectorDiscovery {
    /// Reads pods of the namespace.
    pub client: Client,
    /// The pods' namespace.
    pub namespace: String,
    /// Which pods.
    pub selector: LabelSelector,
    /// Where they serve.
    pub ports: TargetPorts,
}

struct Follower(Selected);

// === impl SelectorDiscovery ===

impl Discovery for SelectorDiscovery {
    fn updates(self: Box<Self>) -> Updates {
        let Self {
            client,
            namespace,
            selector,
            ports,
        } = *self;
        let target = Target {
            selector: selector.to_string(),
            ports: ports.into_vec(),
        };
        let mut pods = Selected::new(client, namespace);
        // nothing is published before a list
        pods.select(target, &mut Outbox::new());
        updates(Follower(pods))
    }
}

// === impl Follower ===

impl Steps for Follower {
    async fn step(&mut self, out: &mut Outbox) {
        let event = self.0.next().await;
        self.0.on(event, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{Running, mk_pod};

    fn start(selector: &str) -> Running {
        Running::start(|client| SelectorDiscovery {
            client,
            namespace: "ns".to_owned(),
            selector: selector.parse().expect("a selector"),
            ports: "8000,8001".parse().expect("ports"),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn members_are_the_pods_of_the_selector_on_each_port() {
        let mut running = start("app in (llm, chat),!canary");
        let key = "app in (llm, chat),!canary";
        running.api.asked(key).await;
        assert!(!running.is_known(), "the pods are not known yet");
        running.api.set(key, &[mk_pod("a", "10.0.0.1")]);
        running.until(&["10.0.0.1:8000", "10.0.0.1:8001"]).await;
        running
            .api
            .event(key, "DELETED", mk_pod("a", "10.0.0.1"))
            .await;
        running.until(&[]).await;
        assert!(running.is_known(), "no pods are as good as any");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_gone_costs_no_member() {
        let mut running = start("app=llm");
        running.api.set("app=llm", &[mk_pod("a", "10.0.0.1")]);
        running.until(&["10.0.0.1:8000", "10.0.0.1:8001"]).await;
        running.api.go_down();
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        running.until(&["10.0.0.1:8000", "10.0.0.1:8001"]).await;
        running.api.come_back();
        running
            .api
            .event("app=llm", "DELETED", mk_pod("a", "10.0.0.1"))
            .await;
        running.until(&[]).await;
    }
}
