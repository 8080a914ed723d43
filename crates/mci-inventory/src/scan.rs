//! Reads the directory, again and again.

use std::{
    fs,
    hash::{Hash as _, Hasher as _},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, timeout},
};
use xxhash_rust::xxh3::Xxh3Default;
use zeroize::Zeroizing;

use crate::{
    kubeconfig::{Credentials, KubeconfigError, MAX_BYTES},
    listing::{Listing, Listings},
    reading::Reading,
    statements::{Statements, Text, is_no_kubeconfig, statement_files},
    tracker::{Found, Tracker, member_name},
};
use mci_model::index::origin::SourceKind;

/// Time between scans: a file that goes is noticed after two, so within 4 s.
const SCAN_PERIOD: Duration = Duration::from_secs(2);
/// A scan that takes longer is logged; it goes on, for nothing can end it.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest file with rights of a member, in bytes: 256 names of namespaces.
const MAX_STATEMENT: u64 = 16 * 1024;

/// Sends the directory's files whenever they change, until nobody receives them. Of a directory that cannot be read nothing
/// is sent: all members stay.
pub(super) async fn watch_directory(
    directory: PathBuf,
    reading: Reading,
    lists: mpsc::Sender<(SourceKind, Listings)>,
) {
    let mut tracker = Tracker::default();
    let scan = {
        let directory = directory.clone();
        move || {
            let (files, found) = read_directory(&directory, &tracker, &reading)?;
            Ok(tracker.scan(&files, found))
        }
    };
    let complain = |error: &io::Error| {
        if error.kind() == io::ErrorKind::TimedOut {
            tracing::warn!(directory = %directory.display(),
                "the kubeconfig directory is read slowly, or not at all: all members stay meanwhile");
        } else {
            tracing::warn!(directory = %directory.display(), %error,
                "cannot read the kubeconfig directory: all members stay");
        }
    };
    follow(scan, lists, complain).await;
}

/// Scans again and again, one scan at a time: on a dead network file system a scan takes for ever, and holds its thread
/// so long. Complains once of scans in a row that fail or take too long.
async fn follow<S>(
    mut scan: S,
    lists: mpsc::Sender<(SourceKind, Listings)>,
    complain: impl Fn(&io::Error),
) where
    S: FnMut() -> io::Result<Listings> + Send + 'static,
{
    let mut last: Option<Listings> = None;
    let mut ticks = interval(SCAN_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut slow, mut failing) = (false, false);
    loop {
        ticks.tick().await;
        let mut scanning = spawn_blocking(move || {
            let outcome = scan();
            (scan, outcome)
        });
        let in_time = timeout(SCAN_TIMEOUT, &mut scanning).await;
        let was_slow = std::mem::replace(&mut slow, in_time.is_err());
        let scanned = if let Ok(scanned) = in_time {
            scanned
        } else {
            if !was_slow {
                complain(&io::ErrorKind::TimedOut.into());
            }
            scanning.await
        };
        let outcome;
        (scan, outcome) = match scanned {
            Ok(scanned) => scanned,
            Err(error) => {
                tracing::error!(%error, "a scan of the kubeconfig directory failed");
                return;
            }
        };
        match outcome {
            Ok(listings) => {
                failing = false;
                if last.as_ref() == Some(&listings) {
                    continue;
                }
                last = Some(listings.clone());
                if lists.send((SourceKind::File, listings)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    complain(&error);
                }
            }
        }
    }
}

/// All files of a directory, sorted, and the credentials of those that are new to the tracker. May block for ever.
/// # Errors
/// When the directory cannot be read, or it is not known what an entry of it is; a file whose content cannot be read
/// is a refused member.
fn read_directory(
    directory: &Path,
    tracker: &Tracker,
    reading: &Reading,
) -> io::Result<(Vec<String>, Vec<Found>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(file) = entry.file_name().into_string() else {
            continue;
        };
        // a mounted Secret has its data in `..data`, and links to it: follow the links, skip the dots
        if is_no_kubeconfig(&file) {
            continue;
        }
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_file() => files.push(file),
            Ok(_) => {}
            // removed since it was listed, or a link to nothing; any other error is no proof that the file is gone
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    files.sort();
    let mut found = Vec::new();
    for file in &files {
        let content = read_file(&directory.join(file));
        let before = tracker.statements(file);
        let statements = read_statements(directory, member_name(file), &before);
        let hash = match &content {
            Ok(bytes) => hash_of(bytes, &statements),
            Err(error) => hash_of(error.to_string().as_bytes(), &statements),
        };
        if tracker.knows(file, hash) {
            continue;
        }
        let credentials = match content {
            Ok(bytes) => Credentials::parse(&bytes, reading.allow_plain_http),
            Err(error) => Err(KubeconfigError::Unreadable(error.kind())),
        };
        found.push(Found {
            file: file.clone(),
            hash,
            listing: Arc::new(Listing {
                member: member_name(file).to_owned(),
                origin: reading.plain(SourceKind::File, file, &statements),
                access: credentials.into(),
            }),
            statements,
        });
    }
    Ok((files, found))
}

/// Reads the files with a member's rights, beside its kubeconfig. A file that is missing states nothing once a second scan
/// does not find it either: some programs delete a file and write it anew.
fn read_statements(directory: &Path, member: &str, before: &Statements) -> Statements {
    let [pod_cidrs, export_namespaces] = statement_files(member);
    Statements {
        pod_cidrs: read_statement(directory, &pod_cidrs, before.pod_cidrs.as_ref()),
        export_namespaces: read_statement(
            directory,
            &export_namespaces,
            before.export_namespaces.as_ref(),
        ),
    }
}

fn read_statement(directory: &Path, file: &str, before: Option<&Text>) -> Option<Text> {
    match read_text(&directory.join(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let without_dot = file.trim_start_matches('.');
            let is_there = fs::metadata(directory.join(without_dot)).is_ok();
            if is_there {
                return Some(Err(format!(
                    "file {without_dot} is not read: name it {file}"
                )));
            }
            // what cannot be read leaves what was said before
            let missing = Err(format!("file {file} was there before this scan"));
            before.filter(|before| **before != missing).map(|_| missing)
        }
        text => Some(text.map_err(|error| error.to_string())),
    }
}

/// # Errors
/// When there is no such file, it cannot be read, is no text or too long.
fn read_text(path: &Path) -> io::Result<String> {
    let file = fs::File::open(path)?;
    let mut text = String::new();
    file.take(MAX_STATEMENT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_STATEMENT {
        let error = format!("it has more than {MAX_STATEMENT} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    Ok(text)
}

/// A hash of everything that a member's listing is made of.
fn hash_of(kubeconfig: &[u8], statements: &Statements) -> u64 {
    let mut hash = Xxh3Default::new();
    kubeconfig.hash(&mut hash);
    statements.hash(&mut hash);
    hash.finish()
}

/// At most one byte more than is allowed, so that what is too large shows without being read.
fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = fs::File::open(path)?;
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX) + 1;
    // of its final size from the start: growing would leave copies behind
    let size = file.metadata()?.len().min(limit);
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
