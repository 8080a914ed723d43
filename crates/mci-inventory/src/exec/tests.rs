use std::path::{Path, PathBuf};

use super::*;
use crate::{
    deadline::{Seen, Time, in_time},
    provider::ProviderFile,
};

/// A plugin with this body, and the plan to run it.
struct Plugin {
    directory: tempfile::TempDir,
    plan: ExecPlan,
}

fn mk(body: &str) -> Plugin {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("plugin");
    // the shell reads it: a file that is run itself must be open for writing nowhere, and the process that another test
    // just starts may have got it from us open
    std::fs::write(&path, format!("{body}\n")).expect("written");
    let file = serde_json::json!({"providers": [{"name": "p", "execConfig": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": [path, "one"],
        "env": [{"name": "DIR", "value": directory.path()}], "provideClusterInfo": true,
    }}]});
    let file = ProviderFile::parse(file.to_string().as_bytes()).expect("a file");
    let status = serde_json::from_value(serde_json::json!({"accessProviders": [
        {"name": "p", "cluster": {"server": "https://192.0.2.1"}},
    ]}))
    .expect("a status");
    let plan = file.plan(&status, false, false).expect("a plan");
    Plugin { directory, plan }
}

fn answer(status: &str) -> String {
    format!(
        r#"echo '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}'"#
    )
}

fn mk_runner(limit: Duration) -> Runner {
    Runner {
        limit,
        ..Runner::new(false)
    }
}

/// Waits for the end of a process of which a plugin wrote the id.
async fn until_gone_by(path: PathBuf, seen: &Seen) {
    let pid = std::fs::read_to_string(&path).expect("a pid");
    until_gone(pid.trim(), seen).await;
}

async fn until_gone(pid: &str, seen: &Seen) {
    let process = format!("/proc/{pid}");
    let dead = || {
        // a zombie is dead, too: its parent is the init of a machine that may not reap
        let status = std::fs::read_to_string(Path::new(&process).join("status"));
        status.map_or(true, |text| text.contains("State:\tZ"))
    };
    let waiting = async {
        while !dead() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = timeout(Duration::from_secs(10), waiting).await;
    waited.unwrap_or_else(|_| panic!("process {pid} lives"));
    seen.note(format!("gone: {pid}"));
}

#[test]
fn a_plugin_gets_what_it_needs_and_nothing_else() {
    in_time(Time::Real, |_| async move {
        let plugin = mk(&format!(
            "env > $DIR/env; echo \"$@\" > $DIR/args\n{}",
            answer(r#"{"token":"t"}"#)
        ));
        let (credentials, life) = mk_runner(LIMIT).run(&plugin.plan).await.expect("issued");
        assert_eq!(credentials.server(), "https://192.0.2.1/");
        assert_eq!(life, None);
        let read = |name: &str| {
            std::fs::read_to_string(plugin.directory.path().join(name)).expect("written")
        };
        assert_eq!(read("args"), "one\n");
        let env = read("env");
        let mut names: Vec<&str> = env
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0))
            .collect();
        names.sort_unstable();
        // the shell sets what it always sets
        names.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
        let mut expected = vec!["DIR", "HOME", INFO, "PATH"];
        expected.retain(|name| *name != "HOME" || std::env::var_os("HOME").is_some());
        assert_eq!(names, expected);
        assert!(
            env.contains(r#""interactive":false"#) && env.contains("192.0.2.1"),
            "{env}"
        );
    });
}

#[test]
fn a_plugin_that_hangs_is_killed_with_all_that_it_started_and_holds_up_nobody() {
    in_time(Time::Real, |seen| async move {
        let hung = mk("sleep 60 & echo $! > $DIR/child; echo $$ > $DIR/self; wait");
        let good = mk(&answer(r#"{"token":"t"}"#));
        let runner = mk_runner(Duration::from_secs(3));
        let started = Instant::now();
        let hanging = runner.run(&hung.plan);
        let others = async {
            let issued = runner.run(&good.plan).await;
            (issued.map(drop), started.elapsed())
        };
        let (outcome, (issued, after)) = tokio::join!(hanging, others);
        let error = outcome.expect_err("killed");
        assert!(matches!(error, ExecError::Timeout(..)), "{error}");
        assert!(
            issued.is_ok() && after < Duration::from_secs(3),
            "{issued:?} after {after:?}"
        );
        assert!(started.elapsed() < Duration::from_secs(10));
        for name in ["child", "self"] {
            until_gone_by(hung.directory.path().join(name), &seen).await;
        }
        assert_eq!(LIMIT, Duration::from_secs(10));
    });
}

#[test]
fn what_a_good_plugin_leaves_behind_is_ended_as_well() {
    in_time(Time::Real, |seen| async move {
        let plugin = mk(&format!(
            "sleep 60 >/dev/null & echo $! > $DIR/child\n{}",
            answer(r#"{"token":"t"}"#)
        ));
        assert!(mk_runner(LIMIT).run(&plugin.plan).await.is_ok());
        until_gone_by(plugin.directory.path().join("child"), &seen).await;
    });
}

#[test]
fn too_much_output_ends_the_plugin() {
    in_time(Time::Real, |seen| async move {
        let plugin = mk("echo $$ > $DIR/self; head -c 10485760 /dev/zero; sleep 60");
        let error = mk_runner(LIMIT)
            .run(&plugin.plan)
            .await
            .expect_err("refused");
        assert!(matches!(error, ExecError::TooLarge(_)), "{error}");
        until_gone_by(plugin.directory.path().join("self"), &seen).await;
    });
}

#[test]
fn what_a_plugin_prints_is_in_no_error() {
    in_time(Time::Real, |_| async move {
        let bodies = [
            "echo s3cr3t".to_owned(),
            "echo s3cr3t; echo s3cr3t >&2; exit 3".to_owned(),
            "kill -9 $$".to_owned(),
            answer(r#"{"token":"s3cr3t","expirationTimestamp":"2001-01-01T00:00:00Z"}"#),
            answer(r#"{"clientCertificateData":"s3cr3t"}"#),
        ];
        for body in bodies {
            let plugin = mk(&body);
            let error = mk_runner(LIMIT)
                .run(&plugin.plan)
                .await
                .expect_err("refused");
            assert!(
                !format!("{error} {error:?}").contains("s3cr3t"),
                "{error:?}"
            );
        }
    });
}

#[test]
fn a_program_that_is_not_there_is_named() {
    in_time(Time::Real, |_| async move {
        let mut plugin = mk("");
        plugin.plan.command = "/nonexistent/plugin".to_owned();
        let error = mk_runner(LIMIT)
            .run(&plugin.plan)
            .await
            .expect_err("refused");
        assert!(error.to_string().contains("/nonexistent/plugin"), "{error}");
    });
}

#[test]
fn eight_run_at_once() {
    in_time(Time::Real, |_| async move {
        let runner = mk_runner(LIMIT);
        let counted = mk(
            "mkdir $DIR/$$; ls $DIR | grep -c '^[0-9]*$' >> $DIR/seen; sleep 0.2; rmdir $DIR/$$",
        );
        let runs = (0..12).map(|_| runner.run(&counted.plan));
        futures::future::join_all(runs).await;
        let seen = std::fs::read_to_string(counted.directory.path().join("seen")).expect("written");
        let counts: Vec<usize> = seen.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(counts.len(), 12);
        let most = counts.iter().max().copied();
        assert!(most > Some(1) && most <= Some(AT_ONCE), "{counts:?}");
    });
}

#[test]
fn a_start_that_hangs_ends_in_time_and_what_it_starts_in_the_end_is_killed() {
    in_time(Time::Real, |seen| async move {
        let plugin = mk("sleep 60");
        let runner = mk_runner(Duration::from_millis(200));
        // a file system that does not answer, until the test goes on or fails
        let (gate, closed) = std::sync::mpsc::channel::<()>();
        let (report, started) = tokio::sync::oneshot::channel();
        let late = move |command: &mut Command| {
            let _ = closed.recv();
            let child = command.spawn()?;
            // the test may have failed since
            let _ = report.send(child.id());
            Ok(child)
        };
        let run = timeout(Duration::from_secs(5), runner.run_by(&plugin.plan, late)).await;
        let error = run.expect("in time").expect_err("hangs");
        seen.note(error.to_string());
        assert!(matches!(error, ExecError::Hung(..)), "{error}");
        assert_eq!(runner.slots.available_permits(), AT_ONCE - 1);
        drop(gate);
        let pid = started.await.expect("started").expect("lives");
        seen.note(format!("started: {pid}"));
        let all = runner
            .slots
            .acquire_many(u32::try_from(AT_ONCE).expect("few"));
        let all = timeout(Duration::from_secs(10), all).await;
        assert!(all.is_ok(), "the place stays taken");
        until_gone(&pid.to_string(), &seen).await;
    });
}

#[test]
fn the_start_counts_towards_the_limit() {
    in_time(Time::Paused, |seen| async move {
        let plugin = mk("sleep 60");
        let limit = Duration::from_secs(4);
        // a start in progress holds the clock until the test has moved it
        let (gate, closed) = std::sync::mpsc::channel::<()>();
        let (report, begun) = tokio::sync::oneshot::channel();
        let slow = move |command: &mut Command| {
            let _ = report.send(());
            let _ = closed.recv();
            command.spawn()
        };
        let half = async move {
            begun.await.expect("started");
            tokio::time::advance(limit / 2).await;
            drop(gate);
        };
        let started = Instant::now();
        let runner = mk_runner(limit);
        let (outcome, ()) = tokio::join!(runner.run_by(&plugin.plan, slow), half);
        let error = outcome.expect_err("too late");
        seen.note(error.to_string());
        assert!(matches!(error, ExecError::Timeout(..)), "{error}");
        let took = started.elapsed();
        // the program's end is awaited as well, for a second at most
        let latest = limit + Duration::from_secs(1);
        assert!((limit..=latest).contains(&took), "{took:?}");
    });
}

#[test]
fn a_run_that_is_given_up_ends_all_that_it_started() {
    in_time(Time::Real, |seen| async move {
        let plugin = mk("sleep 60 & echo $$ $! > $DIR/new; mv $DIR/new $DIR/all; wait");
        let runner = mk_runner(LIMIT);
        let path = plugin.directory.path().join("all");
        let begun = async {
            while !path.exists() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            outcome = runner.run(&plugin.plan) => panic!("{:?}", outcome.map(drop)),
            () = begun => {}
        }
        let all = std::fs::read_to_string(&path).expect("written");
        seen.note(format!("started: {all}"));
        for pid in all.split_whitespace() {
            until_gone(pid, &seen).await;
        }
        assert_eq!(runner.slots.available_permits(), AT_ONCE);
    });
}

#[test]
fn a_plugin_that_waits_too_long_for_a_place_is_not_run() {
    in_time(Time::Real, |seen| async move {
        let plugin = mk(&answer(r#"{"token":"t"}"#));
        let runner = Runner {
            patience: Duration::from_millis(100),
            ..mk_runner(LIMIT)
        };
        let all = runner.slots.clone();
        let all = all.acquire_many_owned(u32::try_from(AT_ONCE).expect("few"));
        let all = all.await.expect("free");
        seen.note("all places are taken");
        let error = runner.run(&plugin.plan).await.expect_err("no place");
        assert!(matches!(error, ExecError::Busy(..)), "{error}");
        seen.note(error.to_string());
        drop(all);
        assert!(runner.run(&plugin.plan).await.is_ok());
    });
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_for_a_place_is_logged_once_for_all_that_wait() {
    let runner = Runner::new(false);
    let take_all = || async {
        let all = u32::try_from(AT_ONCE).expect("few");
        runner.slots.clone().acquire_many_owned(all).await
    };
    let warnings = std::cell::RefCell::new(Vec::new());
    let wait = || runner.place(|held| warnings.borrow_mut().push((held, Instant::now())));
    for round in 1..=2 {
        let all = take_all().await.expect("free");
        let began = Instant::now();
        let free = async {
            sleep(NOTABLE_WAIT * 3).await;
            drop(all);
        };
        let (one, two, ()) = tokio::join!(wait(), wait(), free);
        assert!(one.is_some() && two.is_some());
        assert_eq!(warnings.borrow().len(), round);
        let last = warnings.borrow().last().copied();
        assert_eq!(last, Some((AT_ONCE, began + NOTABLE_WAIT)));
        drop((one, two));
        // what goes on is the same wait, until a plugin finds a place soon
        assert!(wait().await.is_some());
    }
    let all = take_all().await;
    let began = Instant::now();
    assert!(wait().await.is_none());
    assert_eq!(began.elapsed(), PATIENCE);
    drop(all);
}
