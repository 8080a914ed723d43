//! Reads the directory, again and again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    sync::mpsc,
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
/// A directory on a dead network file system must not hold the task for ever.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// Tells the directory's files until nobody listens. An unreadable directory tells nothing: all members stay.
pub(super) async fn watch_directory(
    directory: PathBuf,
    reading: Reading,
    told: mpsc::Sender<(SourceKind, Listings)>,
) {
    let mut tracker = Tracker::default();
    let mut last: Option<Listings> = None;
    let mut ticks = interval(SCAN_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let scan = read_directory(&directory, &tracker, &reading);
        let outcome = timeout(SCAN_TIMEOUT, scan)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match outcome {
            Ok((files, found)) => {
                failing = false;
                let listings = tracker.scan(&files, found);
                if last.as_ref() == Some(&listings) {
                    continue;
                }
                last = Some(listings.clone());
                if told.send((SourceKind::File, listings)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if !failing {
                    tracing::warn!(directory = %directory.display(), %error,
                        "cannot read the kubeconfig directory: all members stay");
                }
                failing = true;
            }
        }
    }
}

/// All files of a directory, sorted, and the credentials of those that are new to the tracker.
/// # Errors
/// When the directory cannot be read, or it cannot be told what an entry of it is; a file whose content cannot be read
/// is a refused member.
async fn read_directory(
    directory: &Path,
    tracker: &Tracker,
    reading: &Reading,
) -> io::Result<(Vec<String>, Vec<Found>)> {
    let mut files = Vec::new();
    let mut entries = tokio::fs::read_dir(directory).await?;
    while let Some(entry) = entries.next_entry().await? {
        let Ok(file) = entry.file_name().into_string() else {
            continue;
        };
        // a mounted Secret has its data in `..data`, and links to it: follow the links, skip the dots
        if file.starts_with('.') {
            continue;
        }
        match tokio::fs::metadata(entry.path()).await {
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
        let content = read_file(&directory.join(file)).await;
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
async fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = tokio::fs::File::open(path).await?;
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX) + 1;
    // of its final size from the start: growing would leave copies behind
    let size = file.metadata().await?.len().min(limit);
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
    file.take(limit).read_to_end(&mut bytes).await?;
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

    #[tokio::test]
    async fn one_bad_file_leaves_the_others_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).expect("written");
        };
        write("east.yaml", GOOD);
        write("west.yaml", "]{ garbage");
        write(".hidden", GOOD);
        std::fs::create_dir(directory.path().join("folder")).expect("made");
        let mut tracker = Tracker::default();
        let (files, found) = read_directory(directory.path(), &tracker, &Reading::default())
            .await
            .expect("readable");
        assert_eq!(files, ["east.yaml", "west.yaml"]);
        let good: Vec<bool> = found
            .iter()
            .map(|one| matches!(one.listing.access, Access::Ready(_)))
            .collect();
        assert_eq!(good, [true, false]);
        tracker.scan(&files, found);
        let (_, again) = read_directory(directory.path(), &tracker, &Reading::default())
            .await
            .expect("readable");
        assert!(again.is_empty(), "nothing changed, nothing is told");
        write("east.yaml", &GOOD.replace("token: x", "token: y"));
        let (_, rotated) = read_directory(directory.path(), &tracker, &Reading::default())
            .await
            .expect("readable");
        assert_eq!(rotated.len(), 1);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_looked_at_is_not_absent() {
        let directory = tempfile::tempdir().expect("a directory");
        let link = directory.path().join("east.yaml");
        let tracker = Tracker::default();
        // a link to nothing is no file; a link in a circle is an error of the file system
        std::os::unix::fs::symlink(directory.path().join("nothing"), &link).expect("linked");
        let read = read_directory(directory.path(), &tracker, &Reading::default()).await;
        assert_eq!(read.expect("readable").0, [""; 0]);
        std::fs::remove_file(&link).expect("removed");
        std::os::unix::fs::symlink(&link, &link).expect("linked");
        let read = read_directory(directory.path(), &tracker, &Reading::default()).await;
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
}
