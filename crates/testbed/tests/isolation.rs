#![cfg(test)]
//! Nothing is left behind, however the program ends. Run with arguments, it is the program that ends.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

/// The first argument of the program under test; the directory and the way to end follow.
const INNER: &str = "inner";
/// Entering and leaving take some tens of milliseconds where the machine has nothing else to do.
const LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, root, ending] = &*arguments
        && first == INNER
    {
        return inner(Path::new(root), ending);
    }
    let trials = [
        (
            "success_leaves_nothing",
            trial("return", None, Expected::Code(0)),
        ),
        (
            "panic_leaves_nothing",
            trial("panic", None, Expected::Code(101)),
        ),
        (
            "interrupt_leaves_nothing",
            trial("wait", Some("-INT"), Expected::Code(130)),
        ),
        (
            "termination_leaves_nothing",
            trial("wait", Some("-TERM"), Expected::Code(143)),
        ),
        (
            "hangup_leaves_nothing",
            trial("wait", Some("-HUP"), Expected::Code(129)),
        ),
        (
            "kill_leaves_no_process",
            trial("wait", Some("-KILL"), Expected::Signal(9)),
        ),
    ];
    let trials = trials.map(|(name, trial)| Trial::test(name, trial));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// How the outermost process must end.
#[derive(Clone, Copy)]
enum Expected {
    Code(i32),
    Signal(i32),
}

#[expect(clippy::zombie_processes, reason = "left behind on purpose")]
/// Enters, starts a process that would run for ever, and ends in one way or another.
fn inner(root: &Path, ending: &str) -> ExitCode {
    testbed::enter_as("inner", root).expect("namespaces are allowed where this test runs");
    assert_eq!(std::process::id(), 2, "this is the only child of PID 1");
    let marker = root.join("marker");
    std::fs::write(&marker, "").expect("the directory is ours");
    let mut child = Command::new("tail");
    child
        .arg("-f")
        .arg(&marker)
        .process_group(0)
        .stdout(Stdio::null());
    child.spawn().expect("tail exists");
    std::fs::write(root.join("up"), "").expect("the directory is ours");
    match ending {
        "return" => ExitCode::SUCCESS,
        "panic" => panic!("as asked"),
        _ => loop {
            std::thread::park();
        },
    }
}

fn trial(
    ending: &'static str,
    signal: Option<&'static str>,
    expected: Expected,
) -> impl FnOnce() -> Result<(), Failed> + Send + 'static {
    move || {
        let root = tempfile::tempdir()?;
        let mut outer = Command::new(std::env::current_exe()?)
            .arg(INNER)
            .arg(root.path())
            .arg(ending)
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(signal) = signal {
            let up = root.path().join("up");
            until("the program is up", || {
                let ended = outer.try_wait()?;
                done(up.exists(), format!("not yet; its end: {ended:?}"))
            })?;
            let marker = root.path().join("marker");
            until("its process runs", || {
                let running = running(&marker);
                done(!running.is_empty(), "no such process")
            })?;
            Command::new("kill")
                .arg(signal)
                .arg(outer.id().to_string())
                .status()?;
        }
        let status = ended(&mut outer)?;
        match expected {
            Expected::Code(code) => assert_eq!(status.code(), Some(code)),
            Expected::Signal(signal) => assert_eq!(status.signal(), Some(signal)),
        }
        let marker = root.path().join("marker");
        until("no process is left", || {
            let running = running(&marker);
            done(running.is_empty(), format!("{running:?}"))
        })?;
        let run = run_directory(root.path()).ok_or("no run directory")?;
        assert!(run.join("logs").exists(), "logs are kept");
        if let Expected::Code(_) = expected {
            assert!(!run.join("state").exists(), "state is removed");
        }
        Ok(())
    }
}

fn ended(outer: &mut Child) -> Result<ExitStatus, Failed> {
    until("the program ends", || {
        let status = outer.try_wait()?;
        status.ok_or_else(|| "it runs".into())
    })
}

/// Looks again and again; the error of the last look is in that of the whole.
fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, Failed>) -> Result<T, Failed> {
    let mut left = LIMIT;
    loop {
        match (look(), left.checked_sub(PAUSE)) {
            (Ok(seen), _) => return Ok(seen),
            (Err(seen), None) => {
                let seen = seen.message().unwrap_or_default();
                return Err(format!("{what}: not within {LIMIT:?}; last seen: {seen}").into());
            }
            (Err(_), Some(rest)) => left = rest,
        }
        std::thread::sleep(PAUSE);
    }
}

/// `seen` unless it is done.
fn done(done: bool, seen: impl Into<Failed>) -> Result<(), Failed> {
    if done { Ok(()) } else { Err(seen.into()) }
}

/// Command lines of the processes of this machine that have `path` among their arguments, those inside included.
fn running(path: &Path) -> Vec<String> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .filter(|line| line.split(|byte| *byte == 0).any(|word| word == wanted))
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .collect()
}

fn run_directory(root: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(root).ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|path| path.join("logs").exists())
}
