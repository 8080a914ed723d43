//! The process of one Envoy.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::infra::bootstrap;

use super::bed::{LIMIT, free_port};
use super::credentials::Credentials;

/// One Envoy, which ends with this value.
pub(super) struct Envoy {
    pub(super) child: Child,
    /// Where it answers probes.
    pub(super) ready: u16,
    _directory: tempfile::TempDir,
}

// === impl Envoy ===

impl Envoy {
    pub(super) async fn start(
        binary: &std::path::Path,
        ads: SocketAddr,
        credentials: Option<&Credentials>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let files = credentials.map(Credentials::path);
        let mut config = bootstrap::make(&ads.ip().to_string(), ads.port(), files.as_deref());
        // Several run at once on this machine: no fixed ports.
        let (admin, ready) = (free_port().await, free_port().await);
        let port = "/address/socket_address/port_value";
        let hosts = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint";
        for (path, value) in [
            (format!("/admin{port}"), admin),
            (format!("/static_resources/clusters/1{hosts}{port}"), admin),
            (format!("/static_resources/listeners/0{port}"), ready),
        ] {
            *config.pointer_mut(&path).unwrap() = value.into();
        }
        let log = directory.path().join("envoy.log");
        let child = Command::new(binary)
            .args([
                "--use-dynamic-base-id",
                "--concurrency",
                "1",
                "--log-level",
                "warning",
            ])
            .args([
                "--service-node",
                "test",
                "--service-cluster",
                "ns/gw",
                "--config-yaml",
            ])
            .arg(config.to_string())
            .arg("--log-path")
            .arg(log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            ready,
            _directory: directory,
        }
    }

    pub(super) async fn probe(&self) -> Option<u16> {
        let exchange = self.page("/ready");
        let answer = timeout(Duration::from_secs(1), exchange).await.ok()??;
        answer.split(' ').nth(1)?.parse().ok()
    }

    /// The value of a statistic, by its name with its labels.
    pub(super) async fn statistic(&self, name: &str) -> Option<u64> {
        let exchange = self.page("/stats/prometheus");
        let answer = timeout(LIMIT, exchange).await.ok()??;
        let (_, mut rest) = answer.split_once("\r\n\r\n")?;
        let mut page = String::new();
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).ok()?;
            page.push_str(after.get(..size)?);
            rest = after.get(size + 2..)?;
        }
        let mut values = page.lines().filter_map(|line| line.strip_prefix(name));
        values.next()?.trim().parse().ok()
    }

    /// What it answers on the port for probes and scrapes. Its main thread makes these pages.
    async fn page(&self, path: &str) -> Option<String> {
        let ready = (Ipv4Addr::LOCALHOST, self.ready);
        let mut stream = TcpStream::connect(ready).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: any\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        String::from_utf8(answer).ok()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
