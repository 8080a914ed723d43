//! One program: started, waited for, started again.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::TestbedError;
use crate::mounts::Mounts;
use crate::process::{ProcessSpec, Service};
use crate::requests::Requests;
use crate::testbed::await_service;

/// Programs start in a second; a busy machine of two cores takes several.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Starts a program in the directory of the files.
pub(super) fn start(
    name: &str,
    program: PathBuf,
    flags: Vec<String>,
    files: &Path,
    logs: &Path,
) -> Result<Service, TestbedError> {
    let spec = ProcessSpec {
        program: program.clone(),
        arguments: flags.into_iter().map(OsString::from).collect(),
        environment: Vec::new(),
        directory: files.to_owned(),
        namespace: None,
        mounts: Mounts::default(),
        log: logs.join(format!("{name}.log")),
    };
    Service::start(spec).map_err(|source| TestbedError::Start {
        name: name.to_owned(),
        program,
        source,
    })
}

/// Waits until a program answers 200.
pub(super) async fn answers(
    service: &Service,
    what: &str,
    at: Option<SocketAddr>,
    path: &str,
) -> Result<(), TestbedError> {
    let requests = Requests::new(at.map(url).unwrap_or_default());
    await_service(what, service, READY_LIMIT, async || {
        match requests.get(path).await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(format!("{path}: {}: {}", answer.status, answer.text())),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

pub(super) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

pub(super) fn url(at: SocketAddr) -> String {
    format!("http://{at}")
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(ToOwned::to_owned).collect()
}

/// Starts a program again, and waits until it is ready.
pub(super) async fn restart(service: &Service, name: &str, port: u16) -> Result<(), TestbedError> {
    again(service, name).await?;
    answers(service, name, Some(local(port)), "/readyz").await
}

/// Starts a program again.
pub(super) async fn again(service: &Service, name: &str) -> Result<(), TestbedError> {
    let restarted = service.restart().await;
    restarted.map_err(|source| TestbedError::Start {
        name: name.to_owned(),
        program: PathBuf::from(name),
        source,
    })
}
