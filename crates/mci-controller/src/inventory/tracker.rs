//! From scans of the directory to changes of the inventory. Pure.

use std::{collections::BTreeMap, time::Duration};

use super::kubeconfig::{Credentials, KubeconfigError};
use crate::{index::member::Refusal, name::ClusterName};
use moment::Moment;

/// A change of the inventory.
#[derive(Clone, Debug)]
pub(crate) enum InventoryEvent {
    /// A member with new credentials.
    Upsert(ClusterName, Box<Credentials>),
    /// A member whose credentials are not used; if it had others before, those stay in use.
    Refused(ClusterName, Refusal),
    Gone(ClusterName),
    /// Gone from the directory together with most others: held, for the fault may be ours.
    Withheld(ClusterName),
    /// One scan completed: everyone there is has been told.
    Scanned,
}

/// One file of a scan.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// File name, without the directory.
    pub(crate) file: String,
    pub(crate) hash: u64,
    /// Read only when the hash is new.
    pub(crate) credentials: Result<Credentials, KubeconfigError>,
}

/// What earlier scans told.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// How long members that vanished with most others are kept.
    removal_hold: Duration,
    members: BTreeMap<ClusterName, Tracked>,
    /// Files that are told of already: complaints are logged once per content.
    complained: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Tracked {
    file: String,
    hash: u64,
    misses: u32,
    /// Not removed before.
    held_until: Option<Moment>,
}

/// A file is gone when this many scans in a row lack it: a directory that is being replaced is no removal.
const MISSES: u32 = 2;

/// The member's name: the file's, without its extension.
pub(crate) fn member_name(file: &str) -> &str {
    match file.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => file,
    }
}

// === impl Tracker ===

impl Tracker {
    pub(crate) fn new(removal_hold: Duration) -> Self {
        Self {
            removal_hold,
            members: BTreeMap::new(),
            complained: BTreeMap::new(),
        }
    }

    /// Whether a file says what it said at the last scan, so that it need not be read again.
    pub(crate) fn knows(&self, file: &str, hash: u64) -> bool {
        self.complained.get(file) == Some(&hash)
            || ClusterName::new(member_name(file)).is_ok_and(|name| {
                let tracked = self.members.get(&name);
                tracked.is_some_and(|tracked| tracked.file == file && tracked.hash == hash)
            })
    }

    /// Takes in a complete scan: every file there is, with credentials where [`Tracker::knows`] said no.
    pub(crate) fn scan(
        &mut self,
        files: &[String],
        found: Vec<Found>,
        now: Moment,
    ) -> Vec<InventoryEvent> {
        let mut events = Vec::new();
        for one in found {
            events.extend(self.take(files, one));
        }
        self.complained.retain(|file, _| files.contains(file));
        for (name, tracked) in &mut self.members {
            if files.contains(&tracked.file) {
                tracked.misses = 0;
                tracked.held_until = None;
            } else {
                tracked.misses += 1;
                // another file that gives the same member may now do so: it is read again before this one is given up
                self.complained
                    .retain(|file, _| member_name(file) != name.as_str());
            }
        }
        events.extend(self.remove_missing(now));
        events.push(InventoryEvent::Scanned);
        events
    }

    /// Members missed often enough go; more than half of them (2 or more) at once are held first.
    fn remove_missing(&mut self, now: Moment) -> Vec<InventoryEvent> {
        let missing = |tracked: &Tracked| tracked.misses >= MISSES;
        let count = self.members.values().filter(|one| missing(one)).count();
        let suspicious = count >= 2 && count * 2 > self.members.len();
        let mut events = Vec::new();
        for (name, tracked) in &mut self.members {
            if suspicious && missing(tracked) && tracked.held_until.is_none() {
                tracing::warn!(member = %name, hold = ?self.removal_hold,
                    "its kubeconfig is gone together with most others: keeping the member for now");
                tracked.held_until = Some(now + self.removal_hold);
                events.push(InventoryEvent::Withheld(name.clone()));
            }
        }
        self.members.retain(|name, tracked| {
            let stays = !missing(tracked) || tracked.held_until.is_some_and(|until| now < until);
            if !stays {
                events.push(InventoryEvent::Gone(name.clone()));
            }
            stays
        });
        events
    }

    fn take(&mut self, files: &[String], found: Found) -> Option<InventoryEvent> {
        let Found {
            file,
            hash,
            credentials,
        } = found;
        let name = match ClusterName::new(member_name(&file)) {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(file, %error, "skipping a kubeconfig: its file name is no cluster name");
                self.complained.insert(file, hash);
                return None;
            }
        };
        let rival = self.members.get(&name);
        if let Some(rival) = rival.filter(|rival| rival.file != file && files.contains(&rival.file))
        {
            tracing::warn!(file, other = rival.file, member = %name, reason = Refusal::DuplicateCluster.reason(),
                "skipping a kubeconfig: another file gives the same member");
            self.complained.insert(file, hash);
            return None;
        }
        self.complained.remove(&file);
        let tracked = Tracked {
            file: file.clone(),
            hash,
            misses: 0,
            held_until: None,
        };
        self.members.insert(name.clone(), tracked);
        Some(match credentials {
            Ok(credentials) => InventoryEvent::Upsert(name, Box::new(credentials)),
            Err(error) => {
                let refusal = error.refusal();
                tracing::warn!(file, member = %name, reason = refusal.reason(), %error, "refusing a kubeconfig");
                InventoryEvent::Refused(name, refusal)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_mins(5);
    const NOW: Moment = Moment::from_millis(1_000);

    fn mk_found(file: &str, hash: u64) -> Found {
        Found {
            file: file.to_owned(),
            hash,
            credentials: Err(KubeconfigError::NoContext),
        }
    }

    fn told(events: &[InventoryEvent]) -> Vec<String> {
        events
            .iter()
            .filter_map(|event| match event {
                InventoryEvent::Upsert(name, _) => Some(format!("+{name}")),
                InventoryEvent::Refused(name, _) => Some(format!("!{name}")),
                InventoryEvent::Gone(name) => Some(format!("-{name}")),
                InventoryEvent::Withheld(name) => Some(format!("~{name}")),
                InventoryEvent::Scanned => None,
            })
            .collect()
    }

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_file_is_gone_after_two_scans_without_it() {
        let mut tracker = Tracker::new(HOLD);
        let all = files(&["east.yaml"]);
        assert_eq!(
            told(&tracker.scan(&all, vec![mk_found("east.yaml", 1)], NOW)),
            ["!east"]
        );
        assert!(tracker.knows("east.yaml", 1));
        assert_eq!(told(&tracker.scan(&[], Vec::new(), NOW)), [""; 0]);
        assert_eq!(told(&tracker.scan(&all, Vec::new(), NOW)), [""; 0]);
        assert_eq!(told(&tracker.scan(&[], Vec::new(), NOW)), [""; 0]);
        assert_eq!(told(&tracker.scan(&[], Vec::new(), NOW)), ["-east"]);
        assert!(!tracker.knows("east.yaml", 1));
    }

    #[test]
    fn a_file_with_a_bad_name_is_told_once() {
        let mut tracker = Tracker::new(HOLD);
        let all = files(&["Not A Name.yaml"]);
        let found = vec![mk_found("Not A Name.yaml", 1)];
        assert_eq!(told(&tracker.scan(&all, found, NOW)), [""; 0]);
        assert!(tracker.knows("Not A Name.yaml", 1));
        assert!(!tracker.knows("Not A Name.yaml", 2));
    }

    #[test]
    fn of_two_files_for_one_member_the_first_stays() {
        let mut tracker = Tracker::new(HOLD);
        let all = files(&["east.conf", "east.yaml"]);
        let found = vec![mk_found("east.conf", 1), mk_found("east.yaml", 2)];
        assert_eq!(told(&tracker.scan(&all, found, NOW)), ["!east"]);
        assert!(tracker.knows("east.conf", 1) && tracker.knows("east.yaml", 2));
    }

    #[test]
    fn a_second_file_for_a_member_takes_over_when_the_first_goes() {
        let mut tracker = Tracker::new(HOLD);
        let both = files(&["east.conf", "east.yaml"]);
        tracker.scan(&both, vec![mk_found("east.conf", 1)], NOW);
        tracker.scan(&both, vec![mk_found("east.yaml", 2)], NOW);
        assert!(tracker.knows("east.yaml", 2));
        let second = files(&["east.yaml"]);
        assert_eq!(told(&tracker.scan(&second, Vec::new(), NOW)), [""; 0]);
        assert!(!tracker.knows("east.yaml", 2), "it is read again");
        let found = vec![mk_found("east.yaml", 2)];
        assert_eq!(told(&tracker.scan(&second, found, NOW)), ["!east"]);
        for _ in 0..MISSES {
            assert_eq!(told(&tracker.scan(&second, Vec::new(), NOW)), [""; 0]);
        }
    }

    #[test]
    fn members_that_vanish_with_most_others_are_held() {
        let mut tracker = Tracker::new(HOLD);
        let all = files(&["a.yaml", "b.yaml", "c.yaml"]);
        let found = all.iter().map(|file| mk_found(file, 1)).collect();
        tracker.scan(&all, found, NOW);
        let one = files(&["a.yaml"]);
        assert_eq!(told(&tracker.scan(&one, Vec::new(), NOW)), [""; 0]);
        assert_eq!(told(&tracker.scan(&one, Vec::new(), NOW)), ["~b", "~c"]);
        // one comes back: the other is still held, and told of once
        let two = files(&["a.yaml", "b.yaml"]);
        assert_eq!(told(&tracker.scan(&two, Vec::new(), NOW)), [""; 0]);
        let later = NOW + HOLD;
        assert_eq!(told(&tracker.scan(&two, Vec::new(), later)), ["-c"]);
    }

    #[test]
    fn the_extension_is_no_part_of_the_name() {
        assert_eq!(member_name("east.yaml"), "east");
        assert_eq!(member_name("east"), "east");
        assert_eq!(member_name("a.b.yaml"), "a.b");
    }
}
