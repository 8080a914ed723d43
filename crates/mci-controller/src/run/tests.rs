use std::{future::pending, path::Path};

use super::*;
use lease::Claim;
use mci_inventory::Sources;

/// Settings with the kubeconfigs of this directory as members.
pub(super) fn mk_settings(directory: &Path) -> Settings {
    Settings {
        sources: Sources {
            kubeconfig_dir: Some(directory.to_owned()),
            ..Sources::default()
        },
        home: crate::args::HomeSettings::default(),
        instance_from_home: true,
        clusterset_from_home: true,
        policy: crate::fixtures::mk_policy(),
        rules: crate::fixtures::mk_rules(),
        initial_sync_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(10),
        dry_run: false,
        admin_address: ([127, 0, 0, 1], 0).into(),
        docs_url: None,
    }
}

/// A controller over a directory, with its admin port.
struct Running {
    address: std::net::SocketAddr,
    shutdown: Shutdown,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Running {
    async fn start(directory: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let settings = Settings {
            admin_address: address,
            ..mk_settings(directory)
        };
        let shutdown = Shutdown::manual();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(settings, None, listener, shutdown.clone()));
        Self {
            address,
            shutdown,
            tasks,
        }
    }

    /// Status and body of a GET on the admin port.
    async fn get(&self, path: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.address)
            .await
            .expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), answer)
    }

    async fn wait_for(&self, path: &str, good: impl Fn(u16, &str) -> bool) -> String {
        let mut last = None;
        let poll = async {
            loop {
                let (status, body) = self.get(path).await;
                if good(status, &body) {
                    return body;
                }
                last = Some((status, body));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = timeout(Duration::from_secs(10), poll).await;
        found.unwrap_or_else(|_| panic!("{path} does not come to be so; last seen: {last:?}"))
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.shutdown.drain.cancel();
        let ended = timeout(Duration::from_secs(5), self.tasks.join_next()).await;
        ended.expect("ends").expect("a task").expect("no panic")
    }
}

#[tokio::test]
async fn an_empty_directory_is_a_clusterset_of_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::start(directory.path()).await;
    running.wait_for("/readyz", |status, _| status == 200).await;
    let loops = ["inventory: goes round", "world: goes round"];
    running
        .wait_for("/healthz", |status, body| {
            status == 200 && loops.iter().all(|one| body.contains(one))
        })
        .await;
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn garbage_in_the_directory_is_shown_and_harms_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("bad.yaml"), "]{ s3cr3t").expect("written");
    let dead = "current-context: it\n\
        contexts: [{name: it, context: {cluster: c, user: u}}]\n\
        clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n\
        users: [{name: u, user: {token: t0ps3cr3t}}]\n";
    std::fs::write(directory.path().join("dead.yaml"), dead).expect("written");
    let running = Running::start(directory.path()).await;
    // the gate opens although neither ever answers
    running.wait_for("/readyz", |status, _| status == 200).await;
    let page = running
        .wait_for("/debug/clusters", |_, body| body.contains("BadCredentials"))
        .await;
    assert!(page.contains(r#""name":"dead""#), "{page}");
    assert!(!page.contains("s3cr3t"), "{page}");
    let metrics = running
        .wait_for("/metrics", |_, body| {
            body.contains(r#"mci_member_state{cluster="bad",reason="BadCredentials"} 1"#)
        })
        .await;
    assert!(
        metrics.contains(r#"mci_member_up{cluster="dead"} 0"#),
        "{metrics}"
    );
    assert!(metrics.contains("mci_propagation_seconds"), "{metrics}");
    assert_eq!(running.get("/healthz").await.0, 200);
    assert_eq!(running.get("/debug/explain/ml/llm").await.0, 404);
    let (status, page) = running.get("/?pool=a%22b&page=x").await;
    assert_eq!(status, 200, "{page}");
    let nonce = page
        .split("<style nonce=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{}';",
        nonce.expect("a nonce")
    );
    for part in [
        policy.as_str(),
        "BadCredentials",
        "ConnectionLost",
        "value=\"a&#34;b\"",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    assert!(!page.contains("s3cr3t"), "{page}");
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn a_member_whose_file_goes_is_forgotten() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bad.yaml");
    std::fs::write(&path, "]{ garbage").expect("written");
    let running = Running::start(directory.path()).await;
    running
        .wait_for("/debug/clusters", |_, body| {
            body.contains(r#""name":"bad""#)
        })
        .await;
    std::fs::remove_file(&path).expect("removed");
    running
        .wait_for("/debug/clusters", |_, body| {
            !body.contains(r#""name":"bad""#)
        })
        .await;
    running.stop().await.expect("ends well");
}

/// The outcome of a controller whose lease is renewed by this task, and whose other tasks never end.
async fn end_beside(
    lease: impl Future<Output = ()> + Send + 'static,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut election = Election::kept_by(Claim::always(), lease);
    let mut tasks = JoinSet::new();
    tasks.spawn(pending());
    let work = async {
        shutdown.drain.cancelled().await;
        Ok(())
    };
    let mut work = Box::pin(work);
    let health = Health::new(&[]);
    let drain_timeout = Duration::from_secs(10);
    let ended = run_until_end(
        &mut work,
        &mut election,
        &mut tasks,
        shutdown,
        &health,
        drain_timeout,
    );
    let ended = timeout(Duration::from_mins(1), ended).await;
    ended.expect("it goes on without the lease's task")
}

#[tokio::test(start_paused = true)]
async fn a_lease_task_that_ended_ends_the_program() {
    let end = end_beside(async {}, &Shutdown::manual()).await;
    let error = end.expect_err("no success");
    assert_eq!(format!("{error:#}"), "the lease's task ended");
}

#[tokio::test(start_paused = true)]
async fn a_lease_task_that_panicked_ends_the_program() {
    let end = end_beside(async { panic!("on purpose") }, &Shutdown::manual()).await;
    let error = format!("{:#}", end.expect_err("no success"));
    assert!(
        error.starts_with("the lease's task failed: ") && error.contains("on purpose"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_lease_is_kept_up_the_program_ends_when_it_is_asked_to() {
    let shutdown = Shutdown::manual();
    let asked = shutdown.drain.clone();
    let mut later = JoinSet::new();
    later.spawn(async move {
        tokio::time::sleep(Duration::from_secs(30)).await;
        asked.cancel();
    });
    let started = tokio::time::Instant::now();
    let end = end_beside(pending(), &shutdown).await;
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(started.elapsed(), Duration::from_secs(30));
}
