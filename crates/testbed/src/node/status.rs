//! The status of a pod, made from what its containers do. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// What one container does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerView {
    pub(crate) state: State,
    /// How the run before this one ended.
    pub(crate) last: Option<End>,
    pub(crate) restarts: i32,
    /// Its startup probe has passed, or it has none.
    pub(crate) started: bool,
    pub(crate) ready: bool,
}

/// See [`ContainerView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting {
        reason: &'static str,
        message: String,
    },
    Running {
        since: Timestamp,
    },
    Ended(End),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) message: Option<String>,
    pub(crate) since: Timestamp,
    pub(crate) at: Timestamp,
}

/// The pod as the node sees it.
#[derive(Clone, Debug)]
pub(crate) struct PodView {
    pub(crate) containers: BTreeMap<String, ContainerView>,
    pub(crate) pod_ip: Option<IpAddr>,
    pub(crate) host_ip: IpAddr,
    /// It is being deleted; as on a real node, it is ready for as long as its probes say so.
    pub(crate) terminating: bool,
    pub(crate) started: Timestamp,
}

// === impl ContainerView ===

impl ContainerView {
    pub(crate) fn creating() -> Self {
        Self {
            state: State::Waiting {
                reason: "ContainerCreating",
                message: String::new(),
            },
            last: None,
            restarts: 0,
            started: false,
            ready: false,
        }
    }

    fn status(&self, name: &str, image: &str, uid: &str) -> ContainerStatus {
        ContainerStatus {
            name: name.to_owned(),
            image: image.to_owned(),
            image_id: image.to_owned(),
            container_id: Some(format!("testbed://{uid}/{name}/{}", self.restarts)),
            restart_count: self.restarts,
            ready: self.ready,
            started: Some(self.started),
            state: Some(self.state.status()),
            last_state: self.last.as_ref().map(|end| ContainerState {
                terminated: Some(end.status()),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        }
    }
}

// === impl State ===

impl State {
    fn status(&self) -> ContainerState {
        match self {
            Self::Waiting { reason, message } => ContainerState {
                waiting: Some(ContainerStateWaiting {
                    reason: Some((*reason).to_owned()),
                    message: (!message.is_empty()).then(|| message.clone()),
                }),
                ..ContainerState::default()
            },
            Self::Running { since } => ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: Some(Time(*since)),
                }),
                ..ContainerState::default()
            },
            Self::Ended(end) => ContainerState {
                terminated: Some(end.status()),
                ..ContainerState::default()
            },
        }
    }
}

// === impl End ===

impl End {
    fn status(&self) -> ContainerStateTerminated {
        ContainerStateTerminated {
            exit_code: self.code,
            signal: self.signal,
            message: self.message.clone(),
            reason: Some(if self.code == 0 { "Completed" } else { "Error" }.to_owned()),
            started_at: Some(Time(self.since)),
            finished_at: Some(Time(self.at)),
            ..ContainerStateTerminated::default()
        }
    }
}

// === impl PodView ===

impl PodView {
    /// The pod's status; a condition whose status is that of `pod` keeps its transition time.
    pub(crate) fn status(&self, pod: &Pod, now: Timestamp) -> PodStatus {
        let spec = pod.spec.as_ref();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let containers = spec
            .map(|spec| spec.containers.as_slice())
            .unwrap_or_default();
        let statuses = containers
            .iter()
            .filter_map(|container| {
                let view = self.containers.get(&container.name)?;
                let image = container.image.as_deref().unwrap_or_default();
                Some(view.status(&container.name, image, uid))
            })
            .collect();
        PodStatus {
            phase: Some(
                self.phase(spec.and_then(|spec| spec.restart_policy.as_deref()))
                    .to_owned(),
            ),
            conditions: Some(self.conditions(pod, now)),
            container_statuses: Some(statuses),
            host_ip: Some(self.host_ip.to_string()),
            host_ips: Some(vec![HostIP {
                ip: self.host_ip.to_string(),
            }]),
            pod_ip: self.pod_ip.map(|ip| ip.to_string()),
            pod_ips: self.pod_ip.map(|ip| vec![PodIP { ip: ip.to_string() }]),
            start_time: Some(Time(self.started)),
            qos_class: pod
                .status
                .as_ref()
                .and_then(|status| status.qos_class.clone()),
            ..PodStatus::default()
        }
    }

    fn phase(&self, restart_policy: Option<&str>) -> &'static str {
        let views = || self.containers.values();
        let restarts = |end: &End| match restart_policy {
            Some("Never") => false,
            Some("OnFailure") => end.code != 0,
            _ => true,
        };
        let over = |view: &ContainerView| match &view.state {
            State::Ended(end) => self.terminating || !restarts(end),
            State::Waiting { .. } | State::Running { .. } => false,
        };
        let failed =
            |view: &ContainerView| matches!(&view.state, State::Ended(end) if end.code != 0);
        let never_ran = |view: &ContainerView| {
            matches!(view.state, State::Waiting { .. }) && view.last.is_none()
        };
        if views().any(never_ran) {
            "Pending"
        } else if views().all(over) {
            if views().any(failed) {
                "Failed"
            } else {
                "Succeeded"
            }
        } else {
            "Running"
        }
    }

    fn conditions(&self, pod: &Pod, now: Timestamp) -> Vec<PodCondition> {
        let unready: Vec<&str> = self
            .containers
            .iter()
            .filter(|(_, view)| !view.ready)
            .map(|(name, _)| name.as_str())
            .collect();
        let ready = unready.is_empty();
        let why =
            (!ready).then(|| format!("containers with unready status: [{}]", unready.join(" ")));
        let networked = self.pod_ip.is_some();
        let wanted = [
            ("PodReadyToStartContainers", networked, None),
            ("Initialized", true, None),
            ("Ready", ready, why.clone()),
            ("ContainersReady", ready, why),
            ("PodScheduled", true, None),
        ];
        let live = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        wanted
            .into_iter()
            .map(|(kind, holds, message)| {
                let status = if holds { "True" } else { "False" };
                let before = live
                    .unwrap_or_default()
                    .iter()
                    .find(|condition| condition.type_ == kind);
                let since = before.filter(|condition| condition.status == status);
                let since = since.and_then(|condition| condition.last_transition_time.clone());
                PodCondition {
                    type_: kind.to_owned(),
                    status: status.to_owned(),
                    reason: message.is_some().then(|| "ContainersNotReady".to_owned()),
                    message,
                    last_transition_time: Some(since.unwrap_or(Time(now))),
                    observed_generation: pod.metadata.generation,
                    ..PodCondition::default()
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const THEN: Timestamp = Timestamp::UNIX_EPOCH;

    fn mk_view(state: State, ready: bool) -> PodView {
        let view = ContainerView {
            state,
            ready,
            started: ready,
            ..ContainerView::creating()
        };
        PodView {
            containers: BTreeMap::from([("c".to_owned(), view)]),
            pod_ip: Some([10, 1, 0, 2].into()),
            host_ip: [10, 1, 255, 2].into(),
            terminating: false,
            started: THEN,
        }
    }

    fn mk_pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": status,
        }))
        .unwrap()
    }

    fn ready_of(status: &PodStatus) -> &PodCondition {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        conditions
            .iter()
            .find(|condition| condition.type_ == "Ready")
            .unwrap()
    }

    fn mk_end(code: i32) -> State {
        State::Ended(End {
            code,
            signal: None,
            message: None,
            since: THEN,
            at: THEN,
        })
    }

    #[test]
    fn a_running_ready_container_makes_a_ready_pod() {
        let status = mk_view(State::Running { since: THEN }, true).status(&mk_pod(json!({})), THEN);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(ready_of(&status).status, "True");
        assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.2"));
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_as_ready_as_its_containers() {
        for ready in [true, false] {
            let mut view = mk_view(State::Running { since: THEN }, ready);
            view.terminating = true;
            let status = view.status(&mk_pod(json!({})), THEN);
            let expected = if ready { "True" } else { "False" };
            assert_eq!(ready_of(&status).status, expected);
            assert_eq!(status.container_statuses.unwrap()[0].ready, ready);
        }
    }

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let earlier: Timestamp = "2020-01-01T00:00:00Z".parse().unwrap();
        let live = mk_pod(json!({"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]}));
        let now: Timestamp = "2021-01-01T00:00:00Z".parse().unwrap();

        let same = mk_view(State::Running { since: THEN }, true).status(&live, now);
        assert_eq!(ready_of(&same).last_transition_time, Some(Time(earlier)));
        let other = mk_view(State::Running { since: THEN }, false).status(&live, now);
        assert_eq!(ready_of(&other).last_transition_time, Some(Time(now)));
    }

    #[test]
    fn phase_follows_containers_and_restart_policy() {
        let waiting = State::Waiting {
            reason: "ImagePullBackOff",
            message: String::new(),
        };
        assert_eq!(mk_view(waiting, false).phase(None), "Pending");
        assert_eq!(mk_view(mk_end(1), false).phase(Some("Always")), "Running");
        assert_eq!(mk_view(mk_end(1), false).phase(Some("Never")), "Failed");
        assert_eq!(
            mk_view(mk_end(0), false).phase(Some("OnFailure")),
            "Succeeded"
        );
        assert_eq!(
            mk_view(mk_end(1), false).phase(Some("OnFailure")),
            "Running"
        );
    }
}
