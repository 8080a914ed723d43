//! What the sources say, and what the inventory makes of it.

use std::{collections::BTreeMap, sync::Arc};

use super::kubeconfig::{Credentials, KubeconfigError};
use crate::{
    index::{member::Refusal, origin::Origin, record::Record},
    name::ClusterName,
};

/// A change of the inventory.
#[derive(Clone, Debug)]
pub(crate) enum InventoryEvent {
    /// Which clusters the members were when a controller last ran; before anything else.
    Recorded(BTreeMap<ClusterName, Record>),
    /// A member, new or changed.
    Upsert(ClusterName, Arc<Listing>),
    Gone(ClusterName),
    /// Objects that name no member, all of them; told when they change.
    Unused(Vec<Unused>),
    /// Every source has listed: every member there is has been told.
    Listed,
}

/// One object of a source: home, a file, a Secret or a ClusterProfile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listing {
    /// The member's name as the object gives it, not checked.
    pub(crate) member: String,
    pub(crate) origin: Arc<Origin>,
    pub(crate) access: Access,
}

/// How to reach a member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Access {
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
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    /// For people; quotes nothing secret.
    pub(crate) detail: String,
}

/// All objects of one source, by their own names.
pub(crate) type Listings = BTreeMap<String, Arc<Listing>>;

/// An object that names no member: its name is taken, or is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unused {
    pub(crate) origin: Arc<Origin>,
    /// The name that it gives.
    pub(crate) member: String,
    pub(crate) refusal: Refusal,
    /// For people.
    pub(crate) detail: String,
}

// === impl Access ===

impl Access {
    pub(crate) fn refused(refusal: Refusal, detail: impl ToString) -> Self {
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
