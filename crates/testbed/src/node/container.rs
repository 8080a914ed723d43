//! One container: started as its pod says, probed, restarted when it ends, stopped when the pod is.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::NodeContext;
use super::environment::{expand, make_environment, make_service_links};
use super::names;
use super::pod::PodCell;
use super::probe::{Probes, Report};
use super::status::{End, State};
use crate::addresses::API_SERVER_PORT;
use crate::mounts::Mounts;
use crate::network::PodNetwork;
use crate::process::{ProcessSpec, Running};

/// Wait after the first end; doubled for each further one. A kubelet waits 10 s, which no test should.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
/// Longest wait; a run of twice this length resets the backoff.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Until a container that could not be started is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Everything one container needs to run.
pub(crate) struct ContainerTask {
    pub(crate) context: Arc<NodeContext>,
    pub(crate) pod: Arc<Pod>,
    pub(crate) container: Container,
    pub(crate) network: PodNetwork,
    /// The pod's own directory.
    pub(crate) directory: PathBuf,
    pub(crate) cell: Arc<PodCell>,
    /// Some: stop, and be gone by then.
    pub(crate) stop: watch::Receiver<Option<Instant>>,
}

/// Why a container waits instead of running.
struct Waiting {
    reason: &'static str,
    message: String,
}

// === impl ContainerTask ===

impl ContainerTask {
    /// Runs the container until the pod is stopped or its restart policy says that it is over.
    pub(crate) async fn run(mut self) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let (running, probes) = match self.start() {
                Ok(started) => started,
                Err(Waiting { reason, message }) => {
                    self.set(State::Waiting { reason, message });
                    if self.stopped_within(RETRY).await {
                        return;
                    }
                    continue;
                }
            };
            let since = Timestamp::now();
            let started = Instant::now();
            self.set(State::Running { since });
            let (status, message) = self.attend(running, &probes).await;
            let end = End {
                code: status.map_or(128, exit_code),
                signal: status.and_then(|status| status.signal()),
                message,
                since,
                at: Timestamp::now(),
            };
            let over = self.stop.borrow().is_some() || !self.restarts(end.code);
            self.set(State::Ended(end.clone()));
            if over {
                return;
            }
            if started.elapsed() > LONGEST_BACKOFF * 2 {
                backoff = FIRST_BACKOFF;
            }
            let name = &self.container.name;
            self.cell.change(name, |view| {
                view.last = Some(end);
                view.state = State::Waiting {
                    reason: "CrashLoopBackOff",
                    message: format!("back-off {backoff:?} restarting container {name}"),
                };
            });
            if self.stopped_within(backoff).await || self.stopped_while_held().await {
                return;
            }
            self.cell
                .change(&self.container.name, |view| view.restarts += 1);
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    fn set(&self, state: State) {
        let runs = matches!(state, State::Running { .. });
        self.cell.change(&self.container.name, |view| {
            view.state = state;
            if !runs {
                view.started = false;
                view.ready = false;
            }
        });
    }

    fn restarts(&self, code: i32) -> bool {
        let policy = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref());
        match policy {
            Some("Never") => false,
            Some("OnFailure") => code != 0,
            _ => true,
        }
    }

    async fn stopped_within(&mut self, limit: Duration) -> bool {
        tokio::select! {
            _ = self.stop.wait_for(Option::is_some) => true,
            () = sleep(limit) => false,
        }
    }

    /// Waits until a fault that keeps the container down is over; whether the pod is stopped before that.
    async fn stopped_while_held(&mut self) -> bool {
        tokio::select! {
            _ = self.stop.wait_for(Option::is_some) => true,
            () = self.cell.may_restart() => false,
        }
    }

    fn start(&self) -> Result<(Running, Probes), Waiting> {
        let failed = |reason: &'static str| {
            move |error: String| Waiting {
                reason,
                message: error,
            }
        };
        let image = self.container.image.as_deref().unwrap_or_default();
        let entrypoint = self.context.images.find(image).ok_or_else(|| {
            let known = self.context.images.names();
            failed("ImagePullBackOff")(format!(
                "image {image:?} stands for no program here; known: {known}"
            ))
        })?;
        if let Some(feature) = unsupported(&self.pod, &self.container) {
            let message = format!("{feature}: not supported by the testbed's node");
            return Err(failed("Unsupported")(message));
        }
        let probes = if entrypoint.idle {
            Probes::default()
        } else {
            Probes::of(&self.container)
                .map_err(|error| failed("UnsupportedProbe")(error.to_string()))?
        };
        let mounts = if entrypoint.idle {
            Mounts::of_container(&names::file(&self.context.state))
        } else {
            self.mounts().map_err(failed("UnsupportedMount"))?
        };
        let environment = self
            .environment()
            .map_err(failed("CreateContainerConfigError"))?;
        let words = |words: &Option<Vec<String>>| -> Vec<String> {
            words
                .iter()
                .flatten()
                .map(|word| expand(word, &environment))
                .collect()
        };
        let (program, arguments) = entrypoint.command_line(
            &words(&self.container.command),
            &words(&self.container.args),
        );
        let directory = self.directory.join("work").join(&self.container.name);
        std::fs::create_dir_all(&directory)
            .map_err(|error| failed("CreateContainerError")(error.to_string()))?;
        let spec = ProcessSpec {
            program,
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: environment
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            directory,
            namespace: Some(self.network.namespace.clone()),
            mounts,
            log: self
                .context
                .pod_logs(&self.pod)
                .join(format!("{}.log", self.container.name)),
        };
        let running = spec.start().map_err(|error| {
            failed("StartError")(format!("{}: {error}", spec.program.display()))
        })?;
        self.cell.started(&self.container.name, running.group());
        Ok((running, probes))
    }

    fn mounts(&self) -> Result<Mounts, String> {
        let mut mounts = Mounts::of_container(&names::file(&self.context.state));
        for mount in self.container.volume_mounts.iter().flatten() {
            let mut source = self.directory.join("volumes").join(&mount.name);
            if let Some(path) = &mount.sub_path {
                source.push(path);
            }
            mounts
                .insert(mount.mount_path.as_ref(), source)
                .map_err(|error| format!("volume {}: {error}", mount.name))?;
        }
        Ok(mounts)
    }

    fn environment(&self) -> Result<BTreeMap<String, String>, String> {
        let namespace = self.pod.namespace().unwrap_or_default();
        let mut base = BTreeMap::new();
        let spec = self.pod.spec.as_ref();
        if spec.and_then(|spec| spec.enable_service_links) != Some(false) {
            let services = self.context.services.all();
            let own = services
                .iter()
                .filter(|service| service.namespace().as_ref() == Some(&namespace));
            base.extend(make_service_links(own.map(|service| &**service)));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let api_server = self.context.network.addresses.api_server();
        base.extend(
            [
                ("PATH", path.to_string_lossy().into_owned()),
                ("HOME", "/".to_owned()),
                ("HOSTNAME", self.pod.name_any()),
                ("KUBERNETES_SERVICE_HOST", api_server.to_string()),
                ("KUBERNETES_SERVICE_PORT", API_SERVER_PORT.to_string()),
                ("KUBERNETES_SERVICE_PORT_HTTPS", API_SERVER_PORT.to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let facts = self.context.facts(&self.pod, self.network.address.into());
        let lookup = self.context.lookup(&namespace);
        make_environment(&self.container, facts, &lookup, base).map_err(|error| error.to_string())
    }

    /// Waits for the end of a run, and brings it about when the pod is stopped or a probe says so.
    async fn attend(
        &mut self,
        mut running: Running,
        probes: &Probes,
    ) -> (Option<ExitStatus>, Option<String>) {
        let (cell, name) = (&self.cell, &self.container.name);
        let report = |report| match report {
            Report::Started => cell.change(name, |view| view.started = true),
            Report::Ready(ready) => cell.change(name, |view| view.ready = ready),
        };
        let unhealthy = tokio::select! {
            status = running.ended() => return (status.ok(), None),
            why = probes.run(self.network.address.into(), report) => Some(why),
            _ = self.stop.wait_for(Option::is_some) => None,
        };
        let asked = *self.stop.borrow();
        let deadline = asked.unwrap_or_else(|| Instant::now() + grace_period(&self.pod));
        let group = running.group();
        let stopping = async {
            if asked.is_some() {
                sleep_until((Instant::now() + self.pre_stop_sleep()).min(deadline)).await;
            }
            group.signal_leader(Signal::SIGTERM);
            sleep_until(deadline).await;
        };
        tokio::select! {
            status = running.ended() => return (status.ok(), unhealthy),
            never = probes.watch_readiness(self.network.address.into(), report) => match never {},
            () = stopping => {}
        }
        group.signal(Signal::SIGKILL);
        (running.ended().await.ok(), unhealthy)
    }

    fn pre_stop_sleep(&self) -> Duration {
        let hook = self
            .container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        let seconds = hook
            .and_then(|hook| hook.sleep.as_ref())
            .map_or(0, |sleep| sleep.seconds);
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    }
}

/// How long the pod's containers may take to end after SIGTERM.
pub(crate) fn grace_period(pod: &Pod) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let own = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    Duration::from_secs(
        asked
            .or(own)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(30),
    )
}

/// What the pod asks for and would silently not get.
fn unsupported(pod: &Pod, container: &Container) -> Option<&'static str> {
    let init = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_deref());
    let hooks = container.lifecycle.as_ref();
    let pre_stop = hooks.and_then(|hooks| hooks.pre_stop.as_ref());
    if init.is_some_and(|init| !init.is_empty()) {
        Some("initContainers")
    } else if hooks.is_some_and(|hooks| hooks.post_start.is_some()) {
        Some("lifecycle.postStart")
    } else if pre_stop.is_some_and(|hook| hook.sleep.is_none()) {
        Some("lifecycle.preStop other than sleep")
    } else {
        None
    }
}

/// 128 + n after signal n, as a shell and a container runtime have it.
fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
