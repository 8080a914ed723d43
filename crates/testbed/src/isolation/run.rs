//! The directory of one run: `logs` stays for reading, `state` goes when the run ends.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::EnterError;

/// Runs whose logs are kept, this one included: enough to compare a failure with the runs before it.
const KEPT_RUNS: usize = 5;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
}

// === impl RunDirectory ===

impl RunDirectory {
    /// Makes `<root>/<name>-<seconds>-<pid>` and removes what older runs left that are not running any more.
    pub(super) fn create(root: &Path, name: &str) -> Result<Self, EnterError> {
        let seconds = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO)
            .as_secs();
        let path = root.join(format!("{name}-{seconds}-{}", std::process::id()));
        let failed = |source| EnterError::Directory {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(path.join("logs")).map_err(failed)?;
        fs::create_dir_all(path.join("state")).map_err(failed)?;
        sweep(root, &path);
        Ok(Self { path })
    }

    pub(super) fn open(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Held by the outermost process as long as it lives; a run whose lock is free is over.
    pub(super) fn lock(&self) -> std::io::Result<File> {
        let mut file = File::create(self.path.join("lock"))?;
        file.lock()?;
        write!(file, "{}", std::process::id())?;
        Ok(file)
    }

    /// The process that holds the lock, as the machine numbers it; empty when there is none.
    pub(crate) fn owner(&self) -> String {
        fs::read_to_string(self.path.join("lock")).unwrap_or_default()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    pub(super) fn remove_state(&self) {
        // a leftover is found by the next run's sweep
        let _gone = fs::remove_dir_all(self.state());
    }
}

/// Removes the state of runs that were killed, and the logs of all but the newest. Best effort: another run may sweep too.
fn sweep(root: &Path, own: &Path) {
    let Ok(entries) = fs::read_dir(root) else {
        return;
    };
    let mut runs: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path != own && path.is_dir() && is_over(path))
        .map(|path| {
            let made = fs::metadata(&path).and_then(|data| data.modified());
            (made.unwrap_or(SystemTime::UNIX_EPOCH), path)
        })
        .collect();
    runs.sort();
    let surplus = (runs.len() + 1).saturating_sub(KEPT_RUNS);
    for (nth, (_, path)) in runs.iter().enumerate() {
        if nth < surplus {
            let _gone = fs::remove_dir_all(path);
        } else if !path.join("keep").exists() {
            let _gone = fs::remove_dir_all(path.join("state"));
        }
    }
}

/// A run without a lock file is being made this moment.
fn is_over(run: &Path) -> bool {
    File::open(run.join("lock")).is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_logs_are_bounded_and_a_running_run_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let running = RunDirectory::create(root.path(), "running").unwrap();
        let lock = running.lock().unwrap();
        for nth in 0..7 {
            let run = RunDirectory::create(root.path(), &format!("run{nth}")).unwrap();
            drop(run.lock().unwrap());
        }
        let newest = RunDirectory::create(root.path(), "newest").unwrap();
        drop(lock);

        let left = fs::read_dir(root.path()).unwrap().count();
        assert_eq!(
            left,
            KEPT_RUNS + 1,
            "the running one, the newest and the ones kept"
        );
        assert!(running.state().exists());
        assert!(newest.logs().exists());
    }

    #[test]
    fn state_of_a_killed_run_is_swept_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let killed = RunDirectory::create(root.path(), "killed").unwrap();
        drop(killed.lock().unwrap());
        assert!(killed.state().exists());

        RunDirectory::create(root.path(), "next").unwrap();

        assert!(!killed.state().exists());
        assert!(killed.logs().exists());
    }
}
