//! What the sources list, and what the inventory makes of it.

use std::{collections::BTreeMap, sync::Arc};

use crate::kubeconfig::{Credentials, KubeconfigError};
use mci_model::{
    index::{member::Refusal, origin::Origin, record::Record},
    name::ClusterName,
};

/// A change of the inventory, in the order in which it has to be applied.
#[derive(Clone, Debug)]
pub enum InventoryEvent {
    /// Which clusters the members were when a controller last ran; before anything else.
    Recorded(BTreeMap<ClusterName, Record>),
    /// A member, new or changed, and the object that names it.
    Upsert(ClusterName, Arc<Listing>),
    /// No object of any source names this member any more.
    Gone(ClusterName),
    /// Objects that name no member, all of them; sent when they change.
    Unused(Vec<Unused>),
    /// Every source has listed: every member there is has been sent. Once.
    Listed,
}

/// One object of a source: home, a file, a Secret or a ClusterProfile.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The member's name as the object gives it, not checked.
    pub member: String,
    /// Where it is, and what it states besides.
    pub origin: Arc<Origin>,
    /// How it lets us reach the member.
    pub access: Access,
}

/// How to reach a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    /// Checked and complete; not tried yet.
    Ready(Box<Credentials>),
    /// Issued before and in use; why there are no newer ones, though it is time for them.
    Kept(Box<Credentials>, Refused),
    /// Its credential plugin has not answered yet.
    Pending,
    /// Not used; credentials that it had before stay.
    Refused(Refused),
}

/// Why there are no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Metric label and condition reason.
    pub refusal: Refusal,
    /// For people; quotes nothing secret.
    pub detail: String,
}

/// All objects of one source, by their own names.
pub(crate) type Listings = BTreeMap<String, Arc<Listing>>;

/// An object that names no member: its name is taken, or is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Where it is.
    pub origin: Arc<Origin>,
    /// The name that it gives.
    pub member: String,
    /// Why it names none.
    pub refusal: Refusal,
    /// The same for people; quotes nothing secret.
    pub detail: String,
}

// === impl Access ===

impl Access {
    /// Not used, and why; `detail` is for people and must quote nothing secret.
    pub fn refused(refusal: Refusal, detail: impl ToString) -> Self {
        Self::Refused(Refused {
            refusal,
            detail: detail.to_string(),
        })
    }
}

impl From<Result<Credentials, KubeconfigError>> for Access {
    fn from(parsed: Result<Credentials, KubeconfigError>) -> Self {
        match parsed {
            Ok(credentials) => Self::Ready(Box::new(credentials)),
            Err(error) => Self::refused(error.refusal(), error),
        }
    }
}
