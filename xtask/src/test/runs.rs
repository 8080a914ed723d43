//! Runs of tests, one or several at a time: what they print is shown and read.

use std::{
    io::{BufRead, BufReader, PipeReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use super::{now, report::Report};
use crate::signals::Running;

/// A command that runs tests.
pub(crate) struct Run {
    /// Goes before each line, where several run at a time.
    pub(crate) name: String,
    /// Announces the test program, where the command does not by itself as `cargo test` does.
    pub(crate) heading: Option<String>,
    pub(crate) command: Command,
}

/// A run that is under way.
struct Going {
    name: String,
    child: Child,
    start: Instant,
    report: Report,
    _running: Running,
}

/// What a run prints.
enum Print {
    Line(Vec<u8>),
    End(std::io::Result<()>),
}

/// Lines that wait to be shown, of all runs.
const QUEUE: usize = 64;

/// Runs all, so many at a time, begun in their order, and shows on `out` what they print. Adds what each reported.
///
/// # Errors
/// When one of them ended otherwise than with success; what the others reported is in `reports` all the same. After the
/// end by a signal no other run is begun.
pub(crate) fn run_all(
    runs: Vec<Run>,
    at_once: usize,
    out: &mut impl Write,
    reports: &mut Vec<Report>,
) -> Result<()> {
    let names_shown = at_once > 1 && runs.len() > 1;
    let (sender, receiver) = sync_channel(QUEUE);
    let mut waiting = runs.into_iter();
    let mut going: Vec<Option<Going>> = Vec::new();
    let mut problems = Vec::new();
    for run in waiting.by_ref().take(at_once.max(1)) {
        begin(run, &mut going, &sender)?;
    }
    let mut under_way = going.len();
    let mut stopped = false;
    while under_way > 0 {
        let (index, print): (usize, Print) = receiver.recv().context("no run prints any more")?;
        let Some(run) = going.get_mut(index).and_then(Option::as_mut) else {
            continue;
        };
        match print {
            Print::Line(line) => {
                show(out, names_shown.then_some(&*run.name), &line).context("printing")?;
                let line = String::from_utf8_lossy(&line);
                run.report.read(&line, run.start.elapsed());
            }
            Print::End(read) => {
                read.context("reading what the tests print")?;
                under_way -= 1;
                let status = run.child.wait().context("waiting for the tests")?;
                let name = run.name.clone();
                if let Some(ended) = going[index].take() {
                    reports.push(ended.report);
                }
                if !status.success() {
                    problems.push(format!("{name}: the tests ended with {status}"));
                }
                stopped |= status.signal().is_some();
                if !stopped && let Some(next) = waiting.next() {
                    begin(next, &mut going, &sender)?;
                    under_way += 1;
                }
            }
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    Ok(())
}

fn begin(
    run: Run,
    going: &mut Vec<Option<Going>>,
    sender: &SyncSender<(usize, Print)>,
) -> Result<()> {
    let Run {
        name,
        heading,
        mut command,
    } = run;
    // cargo announces targets on one of the two streams, and they report on the other: in one they keep their order
    let (reader, writer) = std::io::pipe().context("a pipe for what the tests print")?;
    let child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("a second end of the pipe")?)
        .stderr(writer)
        .spawn()
        .context("starting the tests")?;
    // with it goes our own end of the pipe, which would keep it open
    drop(command);
    let index = going.len();
    let sender = sender.clone();
    thread::spawn(move || {
        let heading = heading.map(|line| (index, Print::Line(line.into_bytes())));
        if heading.is_none_or(|heading| sender.send(heading).is_ok()) {
            read(index, reader, &sender);
        }
    });
    going.push(Some(Going {
        _running: Running::new(&child),
        report: Report::new(&name),
        start: now(),
        name,
        child,
    }));
    Ok(())
}

/// Passes lines on until the pipe ends, or nobody wants them any more.
fn read(index: usize, reader: PipeReader, sender: &SyncSender<(usize, Print)>) {
    for line in BufReader::new(reader).split(b'\n') {
        let (print, last) = match line {
            Ok(line) => (Print::Line(line), false),
            Err(error) => (Print::End(Err(error)), true),
        };
        if sender.send((index, print)).is_err() || last {
            return;
        }
    }
    // where nobody waits for it, it is of no interest
    let _ = sender.send((index, Print::End(Ok(()))));
}

fn show(out: &mut impl Write, name: Option<&str>, line: &[u8]) -> std::io::Result<()> {
    if let Some(name) = name {
        write!(out, "{name:>12} | ")?;
    }
    out.write_all(line)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Run {
            name: name.to_owned(),
            heading: None,
            command,
        }
    }

    const PASSED: &str = "echo '     Running tests/one.rs (target/one)' >&2; echo 'test result: ok. 2 passed; 0 failed;'";

    /// Outcome, reports, and what was shown. Not on standard output, where a run of these tests is read itself.
    fn run(runs: Vec<Run>, at_once: usize) -> (Result<()>, Vec<Report>, String) {
        let (mut out, mut reports) = (Vec::new(), Vec::new());
        let outcome = run_all(runs, at_once, &mut out, &mut reports);
        (outcome, reports, String::from_utf8(out).unwrap())
    }

    #[test]
    fn both_streams_are_read_in_their_order() {
        let (outcome, reports, out) = run(vec![shell("one", PASSED)], 1);
        outcome.unwrap();
        assert_eq!(reports[0].tally().passed, 2);
        assert!(reports[0].idle().is_empty(), "{reports:?}");
        assert!(out.starts_with("     Running tests/one.rs"), "{out}");
    }

    #[test]
    fn a_heading_comes_before_what_the_command_prints() {
        let mut one = shell("one", "echo 'test result: ok. 2 passed; 0 failed;'");
        one.heading = Some("     Running tests/one.rs (one)".to_owned());
        let (outcome, reports, out) = run(vec![one], 1);
        outcome.unwrap();
        assert!(out.starts_with("     Running tests/one.rs"), "{out}");
        assert!(reports[0].idle().is_empty(), "{reports:?}");
    }

    #[test]
    fn one_that_fails_is_named_and_the_others_run() {
        let failing = "echo 'test result: FAILED. 1 passed; 1 failed;'; exit 101";
        let runs = vec![
            shell("one", PASSED),
            shell("two", failing),
            shell("three", PASSED),
        ];
        let (outcome, reports, out) = run(runs, 2);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("two") && !error.contains("three"), "{error}");
        let passed: usize = reports.iter().map(|report| report.tally().passed).sum();
        assert_eq!(passed, 5);
        assert!(
            out.contains("       three | test result: ok. 2 passed"),
            "{out}"
        );
    }

    #[test]
    fn no_more_than_asked_for_run_at_a_time_and_all_run() {
        let directory = std::env::temp_dir().join(format!("xtask-runs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let place = directory.display();
        // each holds one of two places until it ends, and fails where it finds none
        let script = format!(
            "for p in 1 2; do if mkdir {place}/$p; then sleep 0.05; rmdir {place}/$p; exit; fi; done; exit 1"
        );
        let runs = (0..5).map(|nth| shell(&nth.to_string(), &script)).collect();
        let (outcome, reports, out) = run(runs, 2);
        std::fs::remove_dir_all(&directory).unwrap();
        outcome.expect(&out);
        assert_eq!(reports.len(), 5);
    }

    #[test]
    fn after_a_signal_no_other_begins() {
        let runs = vec![shell("one", "kill -TERM $$"), shell("two", PASSED)];
        let (outcome, reports, _) = run(runs, 1);
        outcome.unwrap_err();
        assert_eq!(reports.len(), 1);
    }
}
