//! What a cluster's DNS does: names of Services lead to their addresses, by a file that containers see as `/etc/hosts`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use tokio::time::sleep;

use super::NodeContext;

/// Changes of Services that come together are written together.
const SETTLE: Duration = Duration::from_millis(20);

/// Where a node keeps the file.
pub(super) fn file(state: &Path) -> PathBuf {
    state.join("hosts")
}

/// Makes the file, which must be there before a container begins.
pub(super) fn make(state: &Path) -> io::Result<()> {
    std::fs::create_dir_all(state)?;
    write(&file(state), &text(&[]))
}

/// Writes the file whenever Services change; never ends.
pub(super) async fn follow(context: Arc<NodeContext>) {
    let mut changes = context.services.subscribe();
    loop {
        changes.borrow_and_update();
        let text = text(&context.services.all());
        if let Err(error) = write(&file(&context.state), &text) {
            tracing::warn!(%error, "names of Services not written");
        }
        // the store lives as long as the context does
        if changes.changed().await.is_err() {
            return;
        }
        sleep(SETTLE).await;
    }
}

/// In place, for what containers see is this file and not its name; and never shorter than it is to be, so that a reader
/// finds each name in it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

fn text(services: &[Arc<Service>]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    for service in services {
        let address = service
            .spec
            .as_ref()
            .and_then(|spec| spec.cluster_ip.as_deref());
        // a headless one has no address of its own
        let Some(address) = address.filter(|address| !address.is_empty() && *address != "None")
        else {
            continue;
        };
        let (name, namespace) = (service.name_any(), service.namespace().unwrap_or_default());
        let name = format!("{name}.{namespace}");
        text.extend([address, " ", &name, " ", &name, ".svc ", &name]);
        text.push_str(".svc.cluster.local\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_with_an_address_have_their_names() {
        let service = |name: &str, address: &str| {
            let object = json!({
                "metadata": {"name": name, "namespace": "llm"}, "spec": {"clusterIP": address},
            });
            Arc::new(serde_json::from_value(object).unwrap())
        };
        let text = text(&[service("router", "10.1.128.7"), service("peers", "None")]);
        assert_eq!(
            text,
            "127.0.0.1 localhost\n10.1.128.7 router.llm router.llm.svc router.llm.svc.cluster.local\n"
        );
    }

    #[test]
    fn a_shorter_text_leaves_nothing_of_the_longer_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        for text in ["one\ntwo\n", "one\n"] {
            write(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
