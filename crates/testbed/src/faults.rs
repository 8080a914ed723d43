//! Faults on demand: what a test does to a process, a pod or a link. Only a testbed's own clusters have these.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::TestbedError;
use crate::node::PodCell;
use crate::process::Service;
use crate::testbed::{Member, await_api_server};

/// A pod as its node sees it. Each call acts on the containers that run at that moment.
#[derive(Clone, Debug)]
pub struct PodFaults {
    pub(crate) cell: Arc<PodCell>,
}

/// An API server as a process.
#[derive(Clone, Copy)]
pub struct ApiServerFaults<'a> {
    pub(crate) member: &'a Member,
}

/// A restarted API server has everything in etcd; it only needs to start.
const RESTART_LIMIT: Duration = Duration::from_mins(1);

// === impl PodFaults ===

impl PodFaults {
    /// SIGKILL to every container; the node restarts them as the restart policy says.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// SIGKILL to every container, as a crash; the node restarts none of them until [`PodFaults::let_restart`].
    pub fn kill_and_hold(&self) {
        self.cell.hold(true);
        self.signal(Signal::SIGKILL);
    }

    /// SIGTERM to the first process of every container, as a kubelet sends it at the end of a pod; once they have ended, the
    /// node restarts none of them until [`PodFaults::let_restart`].
    pub fn terminate_and_hold(&self) {
        self.cell.hold(true);
        for group in self.cell.groups().into_values() {
            group.signal_leader(Signal::SIGTERM);
        }
    }

    /// Undoes the second half of [`PodFaults::kill_and_hold`] and [`PodFaults::terminate_and_hold`]: from now on the
    /// node restarts containers that have ended, by their restart policy.
    pub fn let_restart(&self) {
        self.cell.hold(false);
    }

    /// SIGSTOP: the processes keep their connections and answer nothing, until [`PodFaults::resume`].
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Packets to the pod vanish, probes' too, so that it also becomes unready; until [`PodFaults::heal`].
    ///
    /// # Errors
    /// When the network refuses.
    pub async fn blackhole(&self) -> Result<(), TestbedError> {
        match self.cell.network() {
            Some(network) => Ok(network.blackhole().await?),
            None => Ok(()),
        }
    }

    /// Undoes [`PodFaults::blackhole`].
    ///
    /// # Errors
    /// When the network refuses.
    pub async fn heal(&self) -> Result<(), TestbedError> {
        match self.cell.network() {
            Some(network) => Ok(network.heal().await?),
            None => Ok(()),
        }
    }

    fn signal(&self, signal: Signal) {
        for group in self.cell.groups().into_values() {
            group.signal(signal);
        }
    }
}

// === impl ApiServerFaults ===

impl ApiServerFaults<'_> {
    /// SIGSTOP: connections are accepted by the kernel and nothing answers, until [`ApiServerFaults::resume`].
    pub async fn pause(&self) {
        self.service().signal(Signal::SIGSTOP).await;
    }

    /// SIGCONT.
    pub async fn resume(&self) {
        self.service().signal(Signal::SIGCONT).await;
    }

    /// SIGKILL: connections are reset and refused, until [`ApiServerFaults::restart`].
    pub async fn kill(&self) {
        self.service().kill().await;
    }

    /// Starts it again, killing it before if it runs, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start or is not ready within a minute.
    pub async fn restart(&self) -> Result<(), TestbedError> {
        self.service()
            .restart()
            .await
            .map_err(|source| TestbedError::Start {
                name: format!("API server of {}", self.member.cluster.name()),
                program: "kube-apiserver".into(),
                source,
            })?;
        let member = self.member;
        await_api_server(&member.cluster, &member.api_server, RESTART_LIMIT).await?;
        member.node.reconnect();
        Ok(())
    }

    fn service(&self) -> &Service {
        &self.member.api_server
    }
}
