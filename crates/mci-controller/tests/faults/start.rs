//! Starts that write nothing, and starts that fail.

use std::{net::TcpListener, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use apiserver_sim::{Call, Server};
use tokio::{process::Command, time::timeout};

use crate::bed::{Bed, NS, SOON, check, stays, until, until_async};

/// Shortens the wait for members that cannot be used.
const QUICK_START: [&str; 2] = ["--initial-sync-timeout", "2s"];

/// Writes into any of the clusters, of any kind.
fn writes(bed: &Bed) -> Vec<Call> {
    let calls = bed.servers().flat_map(Server::calls);
    calls.filter(Call::is_write).collect()
}

pub(crate) async fn r35_a_dry_run_decides_everything_and_writes_nothing() -> Result<()> {
    let mut bed = Bed::new(&["a", "b", "home"])?;
    bed.settle("home")?;
    // one cluster under two names, which is reported at home
    bed.admit_as("z", "a")?;
    bed.server("a").export(NS, "llm");
    bed.flags(&["--dry-run", QUICK_START[0], QUICK_START[1]]);
    bed.start().await?;
    until_async(
        "the import in b is due and was described",
        SOON,
        async || {
            let page = bed.explained("llm").await?;
            let importers = page["importers"].as_array().context("a list")?;
            let row = importers.iter().find(|one| one["cluster"] == "b");
            let b = row.context("b is missing")?;
            // a described write is treated like one that the server refused
            ensure!(
                b["state"] == "Pending" && b["lastError"] == "schema",
                "{page}"
            );
            let trace = page["trace"].as_array().context("a trace")?;
            ensure!(trace.iter().any(|rule| rule["rule"] == "dry-run"), "{page}");
            Ok(())
        },
    )
    .await?;
    // Exported and events have a second to settle, the members' identities are recorded each second
    stays("silence", Duration::from_secs(4), || {
        let seen = writes(&bed);
        check(seen.is_empty(), || format!("{seen:?}"))
    })
    .await?;
    bed.stop().await?;
    let seen = writes(&bed);
    ensure!(seen.is_empty(), "at the end: {seen:?}");

    // without --dry-run there is something to write of each kind
    bed.flags(&QUICK_START);
    bed.start().await?;
    for (server, resource) in [
        ("home", "leases"),
        ("home", "configmaps"),
        ("home", "events"),
        ("b", "inferencepoolimports"),
        ("a", "inferencepools"),
        ("a", "events"),
    ] {
        let what = format!("{resource} are written in {server}");
        until(&what, SOON, || {
            let count = bed.server(server).writes(resource);
            check(count > 0, || format!("{:?}", bed.server(server).calls()))
        })
        .await?;
    }
    Ok(())
}

/// The exit code and standard error of the program with these flags and no environment.
async fn outcome(arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mci-controller"));
    program.env_clear().args(arguments).kill_on_drop(true);
    program.stdin(Stdio::null()).stdout(Stdio::null());
    let output = timeout(SOON, program.output()).await;
    let ended = output.with_context(|| format!("{arguments:?} runs on"))??;
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    Ok((ended.status.code(), stderr))
}

pub(crate) async fn a_start_that_cannot_work_ends_with_64_before_a_port_is_bound() -> Result<()> {
    // in use: a program that gets as far as binding it fails differently
    let taken = TcpListener::bind("127.0.0.1:0").context("a port")?;
    let address = taken.local_addr().context("bound")?.to_string();
    let bed = Bed::new(&["home"])?;
    let directory = tempfile::tempdir().context("a directory")?;
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (members, home, providers) = (path(""), path("home"), path("providers"));
    std::fs::write(&home, bed.server("home").kubeconfig()).context("a kubeconfig")?;
    let provider = r#"{"providers": [{"name": "x", "execConfig": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/x"}}]}"#;
    std::fs::write(&providers, provider).context("a provider file")?;
    let (alone, missing) = ("--leader-elect=false", "/nonexistent/file");
    let fleet = ["--clusterprofile-namespace", "fleet"];
    let file = "--clusterprofile-provider-file";
    let cases: [(&[&str], i32, &str); 11] = [
        (&[], 64, "--leader-elect without a home cluster"),
        (&[alone], 64, "no source of members"),
        (
            &["--home-kubeconfig", &home, "--member-secrets=false"],
            64,
            "no source of members",
        ),
        (
            &[alone, "--self-name", "hub"],
            64,
            "--self-name: expected a home cluster",
        ),
        (
            &[alone, fleet[0], fleet[1], file, &providers],
            64,
            "--clusterprofile-namespace: expected a home cluster",
        ),
        (
            &[alone, fleet[0], fleet[1], file, missing],
            64,
            "--clusterprofile-provider-file /nonexistent/file",
        ),
        (
            &["--kubeconfig-dir", &members],
            64,
            "--leader-elect without a home cluster",
        ),
        (
            &["--home-kubeconfig", missing],
            64,
            "--home-kubeconfig /nonexistent/file",
        ),
        (
            &["--kubeconfig-dir", &members, alone, "--stale-after", "soon"],
            64,
            "soon",
        ),
        // a valid configuration fails at the port, without a home as well
        (
            &["--kubeconfig-dir", &members, alone],
            1,
            "cannot listen on --admin-address",
        ),
        (
            &["--kubeconfig-dir", &members, "--dry-run"],
            1,
            "cannot listen on --admin-address",
        ),
    ];
    for (arguments, code, expected) in cases {
        let arguments = [arguments, &["--admin-address", &address]].concat();
        let (ended, stderr) = outcome(&arguments).await?;
        ensure!(
            ended == Some(code) && stderr.contains(expected),
            "{arguments:?} ended with {ended:?}, not {code}: {stderr}"
        );
    }
    Ok(())
}
