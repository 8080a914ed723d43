//! A member's contact.

use super::{
    Changes,
    member::{Coverage, Fault, Link, Member, Refusal, Silence},
    update::Kind,
};
use moment::Moment;

// === impl Member ===

impl Member {
    pub(super) fn set_link(&mut self, link: Link) {
        if self.link != Link::Removing {
            self.link = link;
        }
    }

    pub(super) fn live(&mut self) -> Changes {
        let changed = self.silence.is_some() || !self.in_contact();
        self.set_link(Link::Live);
        self.silence = None;
        self.met = true;
        self.withdrawn = false;
        self.withheld = false;
        if changed {
            Changes::all()
        } else {
            Changes::default()
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
