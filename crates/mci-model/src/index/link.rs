//! A member's contact.

use std::time::Duration;

use super::{
    Changes,
    member::{Coverage, FLIP_DELAY, Fault, Link, Member, Reach, Refusal, Silence},
    update::Kind,
};
use moment::Moment;

/// Whether a member can be reached.
#[derive(Clone, Debug)]
pub struct Contact {
    /// State of the connection.
    pub link: Link,
    /// Since when it has not been [`Link::Live`], and why; none while in contact.
    pub silence: Option<Silence>,
    /// Was in contact since the program's start.
    pub met: bool,
}

// === impl Member ===

impl Member {
    pub(super) fn live(&mut self) -> Changes {
        let changed = self.contact.restore();
        self.withdrawn = false;
        self.withheld = false;
        if changed {
            Changes::all()
        } else {
            Changes::default()
        }
    }

    pub(super) fn not_served(&mut self, kind: Kind) -> Changes {
        let coverage = self.coverage_mut(kind.into());
        if *coverage != Coverage::Never {
            return match kind {
                Kind::Pools => self.pools.doubt_crd(),
                _ => Changes::default(),
            };
        }
        *coverage = Coverage::NotServed;
        Changes::all()
    }
}

// === impl Contact ===

impl Contact {
    /// Before the first contact; the silence begins at `now`.
    pub(super) fn new(now: Moment) -> Self {
        Self {
            link: Link::Connecting,
            silence: Some(Silence {
                since: now,
                fault: Fault::ConnectionLost,
            }),
            met: false,
        }
    }

    /// Whether its connection works; a single failed probe does not end contact.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Live | Link::Suspect)
    }

    /// Whether contact was lost; not for a member that was never in contact.
    pub fn is_lost(&self) -> bool {
        match self.link {
            Link::Lost => true,
            Link::Connecting | Link::Syncing => self.met && self.silence.is_some(),
            Link::Live | Link::Suspect | Link::Refused(_) | Link::Removing => false,
        }
    }

    /// Contact by the length of the silence alone; see `World::reach`.
    pub(super) fn reach(&self, now: Moment, stale_after: Duration) -> Reach {
        let Some(Silence { since, fault }) = self.silence else {
            return Reach::Reachable;
        };
        let age = now.since(since);
        if age >= stale_after {
            Reach::Stale(fault)
        } else if self.met && age < FLIP_DELAY {
            Reach::Reachable
        } else {
            Reach::Lost(fault)
        }
    }

    /// The connection works. Returns whether that is new.
    pub(super) fn restore(&mut self) -> bool {
        let changed = self.silence.is_some() || !self.is_up();
        self.set_link(Link::Live);
        self.silence = None;
        self.met = true;
        changed
    }

    pub(super) fn set_link(&mut self, link: Link) {
        if self.link != Link::Removing {
            self.link = link;
        }
    }

    /// Lost contact proves nothing: what is known stays.
    pub(super) fn lost(&mut self, fault: Fault, now: Moment) -> Changes {
        self.set_link(Link::Lost);
        let since = self.silence.map_or(now, |silence| silence.since);
        let silence = Some(Silence { since, fault });
        if self.silence == silence {
            return Changes::default();
        }
        self.silence = silence;
        Changes::all()
    }

    pub(super) fn refuse(&mut self, refusal: Refusal, now: Moment) -> Changes {
        let fault = match refusal {
            Refusal::BadCredentials | Refusal::InsecureCredentials | Refusal::NoAccessProvider => {
                Fault::AuthFailed
            }
            Refusal::DuplicateCluster | Refusal::IdentityChanged | Refusal::ClusterSetMismatch => {
                Fault::ConnectionLost
            }
        };
        let changes = self.lost(fault, now);
        self.set_link(Link::Refused(refusal));
        changes
    }
}
