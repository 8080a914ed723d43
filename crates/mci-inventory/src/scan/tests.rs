use tokio::{
    task::JoinSet,
    time::{Instant, advance},
};

use super::*;
use crate::{
    deadline::{Seen, Time, in_time},
    listing::Access,
};
use mci_model::index::grant::Stated;

const GOOD: &str = "current-context: it\n\
    contexts: [{name: it, context: {cluster: c, user: u}}]\n\
    clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n\
    users: [{name: u, user: {token: x}}]\n";

/// A directory that is followed.
struct Bed {
    _directory: tempfile::TempDir,
    path: PathBuf,
    lists: mpsc::Receiver<(SourceKind, Listings)>,
    tasks: JoinSet<()>,
}

// === impl Bed ===

impl Bed {
    fn new(files: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("members");
        let (sender, lists) = mpsc::channel(16);
        let mut bed = Self {
            _directory: directory,
            path,
            lists,
            tasks: JoinSet::new(),
        };
        for file in files {
            bed.write(file, GOOD);
        }
        let scans = watch_directory(bed.path.clone(), Reading::default(), sender);
        bed.tasks.spawn(scans);
        bed
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::create_dir_all(&self.path).expect("made");
        std::fs::write(self.path.join(file), text).expect("written");
    }

    /// The files of the next list.
    async fn listed(&mut self, seen: &Seen) -> Vec<String> {
        let (_, listings) = self.lists.recv().await.expect("a list");
        seen.note(format!("listed: {:?}", listings.keys()));
        listings.keys().cloned().collect()
    }
}

fn mk_listings(member: &str) -> Listings {
    let listing = Listing {
        member: member.to_owned(),
        origin: Arc::default(),
        access: Access::Pending,
    };
    Listings::from([(format!("{member}.yaml"), Arc::new(listing))])
}

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
    assert!(again.is_empty(), "nothing changed, nothing is read again");
    write("east.yaml", &GOOD.replace("token: x", "token: y"));
    let (_, rotated) =
        read_directory(directory.path(), &tracker, &Reading::default()).expect("readable");
    assert_eq!(rotated.len(), 1);
}

#[test]
fn files_beside_a_kubeconfig_say_what_its_member_may() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("written");
    };
    write("east.yaml", GOOD);
    write(".east.pod-cidrs", "10.2.0.0/16\n");
    write(".east.export-namespaces", "llm,team-*");
    write(".north.pod-cidrs", "10.3.0.0/16");
    let mut tracker = Tracker::default();
    let read = |tracker: &Tracker| {
        read_directory(directory.path(), tracker, &Reading::default()).expect("readable")
    };
    let (files, found) = read(&tracker);
    assert_eq!(files, ["east.yaml"], "no member is called north");
    let origin = found[0].listing.origin.clone();
    let networks = origin.pod_cidrs.known().expect("networks");
    assert_eq!(networks[0].to_string(), "10.2.0.0/16");
    let namespaces = origin.export_namespaces.known().expect("namespaces");
    assert_eq!(namespaces.to_string(), "llm,team-*");
    tracker.scan(&files, found);
    assert!(read(&tracker).1.is_empty(), "nothing changed");
    // a change of one of these files is a change of the member
    write(".east.pod-cidrs", "everywhere");
    let (_, found) = read(&tracker);
    assert_eq!(found[0].listing.origin.pod_cidrs, Stated::Unreadable);
    assert_eq!(found[0].listing.origin.complaints.len(), 1);
    write(".east.pod-cidrs", &"x".repeat(20_000));
    let (_, found) = read(&tracker);
    let complaint = &found[0].listing.origin.complaints[0];
    assert!(complaint.contains("more than 16384 bytes"), "{complaint}");
    // a mistake in these files neither removes anything nor makes a member
    std::fs::remove_file(directory.path().join(".east.pod-cidrs")).expect("removed");
    write("east.pod-cidrs", "10.2.0.0/16");
    let (files, found) = read(&tracker);
    assert_eq!(files, ["east.yaml"]);
    assert_eq!(found[0].listing.origin.pod_cidrs, Stated::Unreadable);
    let complaint = &found[0].listing.origin.complaints[0];
    assert!(complaint.contains("name it .east.pod-cidrs"), "{complaint}");
}

#[test]
fn a_statement_is_gone_after_two_scans_without_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("written");
    };
    let mut tracker = Tracker::default();
    let mut namespaces = || {
        let read = read_directory(directory.path(), &tracker, &Reading::default());
        let (files, found) = read.expect("readable");
        let listings = tracker.scan(&files, found);
        let origin = &listings["east.yaml"].origin;
        (origin.export_namespaces.clone(), origin.complaints.len())
    };
    let file = ".east.export-namespaces";
    let known = Stated::Known("llm".parse().expect("a list"));
    // without a kubeconfig that can be used, too
    for kubeconfig in [GOOD, "]{ garbage"] {
        write("east.yaml", kubeconfig);
        write(file, "llm");
        assert_eq!(namespaces(), (known.clone(), 0));
        std::fs::remove_file(directory.path().join(file)).expect("removed");
        assert_eq!(namespaces(), (Stated::Unreadable, 1));
        write(file, "llm");
        assert_eq!(namespaces(), (known.clone(), 0));
        std::fs::remove_file(directory.path().join(file)).expect("removed");
        assert_eq!(namespaces(), (Stated::Unreadable, 1));
        assert_eq!(namespaces(), (Stated::Absent, 0));
        assert_eq!(namespaces(), (Stated::Absent, 0));
    }
}

#[test]
fn a_statement_beside_a_kubeconfig_that_cannot_be_read_is_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("written");
    };
    let mut tracker = Tracker::default();
    let mut networks = || {
        let (files, found) =
            read_directory(directory.path(), &tracker, &Reading::default()).expect("readable");
        let listings = tracker.scan(&files, found);
        let listing = &listings["east.yaml"];
        assert!(matches!(listing.access, Access::Refused(_)));
        listing
            .origin
            .pod_cidrs
            .known()
            .map(|all| all[0].to_string())
    };
    // a file of which nothing can be read, whoever asks
    std::os::unix::fs::symlink("/proc/self/mem", directory.path().join("east.yaml"))
        .expect("linked");
    for network in ["10.2.0.0/16", "10.3.0.0/16"] {
        write(".east.pod-cidrs", network);
        assert_eq!(networks().as_deref(), Some(network));
    }
}

#[test]
fn a_file_whose_kind_is_unknown_is_not_absent() {
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

#[test]
fn an_unreadable_directory_removes_nobody() {
    in_time(Time::Paused, |seen| async move {
        let mut bed = Bed::new(&["east.yaml"]);
        assert_eq!(bed.listed(&seen).await, ["east.yaml"]);
        std::fs::remove_dir_all(&bed.path).expect("removed");
        let more = timeout(Duration::from_mins(1), bed.lists.recv()).await;
        assert!(more.is_err(), "no member may go: {more:?}");
        // what was there before counts again, and the scans go on
        bed.write("east.yaml", GOOD);
        bed.write("west.yaml", GOOD);
        assert_eq!(bed.listed(&seen).await, ["east.yaml", "west.yaml"]);
    });
}

#[test]
fn scans_remember_what_was_there_and_report_only_what_changes() {
    in_time(Time::Paused, |seen| async move {
        let mut bed = Bed::new(&["east.yaml", "west.yaml"]);
        assert_eq!(bed.listed(&seen).await, ["east.yaml", "west.yaml"]);
        let west = bed.path.join("west.yaml");
        let start = Instant::now();
        std::fs::remove_file(&west).expect("removed");
        assert_eq!(bed.listed(&seen).await, ["east.yaml"]);
        let took = start.elapsed();
        let two = SCAN_PERIOD * 2;
        assert!(took >= two && took < two + SCAN_PERIOD, "{took:?}");
        bed.write("east.yaml", &GOOD.replace("token: x", "token: y"));
        assert_eq!(bed.listed(&seen).await, ["east.yaml"], "it was rotated");
        let more = timeout(Duration::from_mins(1), bed.lists.recv()).await;
        assert!(more.is_err(), "nothing changed: {more:?}");
    });
}

#[test]
fn a_scan_that_hangs_is_the_only_one_and_what_it_finds_in_the_end_counts() {
    in_time(Time::Paused, |seen| async move {
        let (begin, mut begun) = mpsc::channel(16);
        let (end, hung) = std::sync::mpsc::channel::<io::Result<Listings>>();
        let scan = move || {
            begin.blocking_send(()).expect("counted");
            // a test that fails ends it
            hung.recv().unwrap_or_else(|_| Ok(Listings::new()))
        };
        let (sender, mut lists) = mpsc::channel(16);
        let (complaints, mut complained) = mpsc::channel(16);
        let complain = move |error: &io::Error| {
            complaints.try_send(error.kind()).expect("read");
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(scan, sender, complain));
        begun.recv().await.expect("a scan");
        seen.note("the first scan");
        // time stands still while a scan goes on, unless it is moved
        let start = Instant::now();
        for _ in 0..100 {
            advance(SCAN_PERIOD).await;
            if start.elapsed() < SCAN_TIMEOUT {
                assert!(complained.try_recv().is_err(), "it may take so long");
            }
        }
        assert!(begun.try_recv().is_err(), "a second scan began");
        assert!(lists.try_recv().is_err(), "nothing is known yet");
        assert_eq!(complained.try_recv(), Ok(io::ErrorKind::TimedOut));
        assert!(complained.try_recv().is_err(), "once is enough");
        let found = mk_listings("east");
        end.send(Ok(found.clone())).expect("it waits");
        let (_, listings) = lists.recv().await.expect("a list");
        assert_eq!(listings, found);
        seen.note("what the first scan found");
        // the scans go on, with what the hung one left, and none is made up for
        let start = Instant::now();
        for _ in 0..2 {
            end.send(Err(io::ErrorKind::PermissionDenied.into()))
                .expect("it goes on");
        }
        end.send(Ok(Listings::new())).expect("it goes on");
        let (_, listings) = lists.recv().await.expect("a list");
        assert_eq!(listings, Listings::new());
        let took = start.elapsed();
        assert!(took >= SCAN_PERIOD * 2, "{took:?}");
        assert_eq!(complained.try_recv(), Ok(io::ErrorKind::PermissionDenied));
        assert!(complained.try_recv().is_err(), "once is enough");
    });
}

#[test]
fn the_end_of_a_scan_that_panics_is_seen() {
    in_time(Time::Paused, |_| async move {
        let (sender, _lists) = mpsc::channel(1);
        let scan = || panic!("as a library might");
        // the inventory ends with it, and the program
        follow(scan, sender, |_| {}).await;
    });
}
