//! Reads the directory, again and again.

use std::{
    fs,
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
use xxhash_rust::xxh3::xxh3_64;
use zeroize::Zeroizing;

use super::{
    kubeconfig::{Credentials, KubeconfigError, MAX_BYTES},
    listing::{Listing, Listings},
    reading::Reading,
    tracker::{Found, Tracker, member_name},
};
use crate::index::origin::SourceKind;

/// Time between scans: a file that goes is noticed after two, so within 4 s.
const SCAN_PERIOD: Duration = Duration::from_secs(2);
/// A scan that takes longer is told of; it goes on, for nothing can end it.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// Tells the directory's files until nobody listens. An unreadable directory tells nothing: all members stay.
pub(super) async fn watch_directory(
    directory: PathBuf,
    reading: Reading,
    told: mpsc::Sender<(SourceKind, Listings)>,
) {
    let mut tracker = Tracker::default();
    let scan = {
        let directory = directory.clone();
        move || {
            let (files, found) = read_directory(&directory, &tracker, &reading)?;
            Ok(tracker.scan(&files, found))
        }
    };
    follow(&directory, scan, told).await;
}

/// Scans again and again, one scan at a time: on a dead network file system a scan takes for ever, and holds its thread
/// so long.
async fn follow<S>(directory: &Path, mut scan: S, told: mpsc::Sender<(SourceKind, Listings)>)
where
    S: FnMut() -> io::Result<Listings> + Send + 'static,
{
    let mut last: Option<Listings> = None;
    let mut ticks = interval(SCAN_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let mut scanning = spawn_blocking(move || {
            let outcome = scan();
            (scan, outcome)
        });
        let scanned = if let Ok(scanned) = timeout(SCAN_TIMEOUT, &mut scanning).await {
            scanned
        } else {
            warn_once(&mut failing, directory, &io::ErrorKind::TimedOut.into());
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
                if told.send((SourceKind::File, listings)).await.is_err() {
                    return;
                }
            }
            Err(error) => warn_once(&mut failing, directory, &error),
        }
    }
}

fn warn_once(failing: &mut bool, directory: &Path, error: &io::Error) {
    if !std::mem::replace(failing, true) {
        tracing::warn!(directory = %directory.display(), %error,
            "cannot read the kubeconfig directory: all members stay");
    }
}

/// All files of a directory, sorted, and the credentials of those that are new to the tracker. May block for ever.
/// # Errors
/// When the directory cannot be read, or it cannot be told what an entry of it is; a file whose content cannot be read
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
        if file.starts_with('.') {
            continue;
        }
        match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_file() => files.push(file),
            Ok(_) => {}
            // removed since it was listed, or a link to nothing; any other error says nothing of the file
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    files.sort();
    let mut found = Vec::new();
    for file in &files {
        let content = read_file(&directory.join(file));
        let hash = match &content {
            Ok(bytes) => xxh3_64(bytes),
            Err(_) => 0,
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
                origin: reading.plain(SourceKind::File, file),
                access: credentials.into(),
            }),
        });
    }
    Ok((files, found))
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
mod tests {
    use super::*;
    use crate::inventory::listing::Access;

    const GOOD: &str = "current-context: it\n\
        contexts: [{name: it, context: {cluster: c, user: u}}]\n\
        clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n\
        users: [{name: u, user: {token: x}}]\n";

    #[test]
    fn one_bad_file_leaves_the_others_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).expect("written");
        };
        write("east.yaml", GOOD);
        write("west.yaml", "]{ garbage");
        write(".hidden", GOOD);
        std::fs::create_dir(directory.path().join("folder")).expect("made");
        let mut tracker = Tracker::default();
        let (files, found) =
            read_directory(directory.path(), &tracker, &Reading::default()).expect("readable");
        assert_eq!(files, ["east.yaml", "west.yaml"]);
        let good: Vec<bool> = found
            .iter()
            .map(|one| matches!(one.listing.access, Access::Ready(_)))
            .collect();
        assert_eq!(good, [true, false]);
        tracker.scan(&files, found);
        let (_, again) =
            read_directory(directory.path(), &tracker, &Reading::default()).expect("readable");
        assert!(again.is_empty(), "nothing changed, nothing is told");
        write("east.yaml", &GOOD.replace("token: x", "token: y"));
        let (_, rotated) =
            read_directory(directory.path(), &tracker, &Reading::default()).expect("readable");
        assert_eq!(rotated.len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_is_not_absent() {
        let directory = tempfile::tempdir().expect("a directory");
        let link = directory.path().join("east.yaml");
        let tracker = Tracker::default();
        // a link to nothing is no file; a link in a circle is an error of the file system
        std::os::unix::fs::symlink(directory.path().join("nothing"), &link).expect("linked");
        let read = read_directory(directory.path(), &tracker, &Reading::default());
        assert_eq!(read.expect("readable").0, [""; 0]);
        std::fs::remove_file(&link).expect("removed");
        std::os::unix::fs::symlink(&link, &link).expect("linked");
        let read = read_directory(directory.path(), &tracker, &Reading::default());
        assert!(read.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_directory_removes_nobody() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("members");
        std::fs::create_dir(&path).expect("made");
        std::fs::write(path.join("east.yaml"), GOOD).expect("written");
        let (sender, mut told) = mpsc::channel(16);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(watch_directory(path.clone(), Reading::default(), sender));
        let (_, listings) = told.recv().await.expect("a list");
        assert_eq!(listings.len(), 1);
        std::fs::remove_dir_all(&path).expect("removed");
        let more = timeout(Duration::from_mins(1), told.recv()).await;
        assert!(more.is_err(), "no member may go");
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_that_hangs_is_the_only_one_and_what_it_finds_in_the_end_counts() {
        let (begin, mut begun) = mpsc::channel(16);
        let (end, hung) = std::sync::mpsc::channel::<io::Result<Listings>>();
        let scan = move || {
            begin.blocking_send(()).expect("counted");
            hung.recv().unwrap_or_else(|_| Ok(Listings::new()))
        };
        let (sender, mut told) = mpsc::channel(16);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { follow(Path::new("/members"), scan, sender).await });
        begun.recv().await.expect("a scan");
        // time stands still while a scan goes on, unless it is moved
        for _ in 0..100 {
            tokio::time::advance(SCAN_PERIOD).await;
        }
        assert!(begun.try_recv().is_err(), "a second scan began");
        assert!(told.try_recv().is_err(), "nothing is known yet");
        let listing = Listing {
            member: "east".to_owned(),
            origin: Arc::default(),
            access: Access::Pending,
        };
        let found = Listings::from([("east.yaml".to_owned(), Arc::new(listing))]);
        end.send(Ok(found.clone())).expect("it waits");
        let (_, listings) = told.recv().await.expect("a list");
        assert_eq!(listings, found);
        // the scans go on, with what the hung one left
        end.send(Err(io::ErrorKind::PermissionDenied.into()))
            .expect("it goes on");
        end.send(Ok(Listings::new())).expect("it goes on");
        let (_, listings) = told.recv().await.expect("a list");
        assert_eq!(listings, Listings::new());
    }
}
