//! Who the members of a ClusterSet are, and how they are reached.
//!
//! It owns the sources of members, their credentials and the clients made of them. It must not know what a member
//! exports, nor what is written into it.
//!
//! ```text
//!  home itself        ┐
//!  kubeconfig files   │ complete lists        ┌ each name one object
//!  labelled Secrets   ├──────────────► roster ┴────► InventoryEvent ─► the program
//!  ClusterProfiles    ┘                                    └ Credentials ─► client::Ways ─► member
//!     └ credential plugins
//! ```
//! A source that cannot be read reports nothing: all its members stay. Nothing is judged before the identities that an
//! earlier run wrote have been read.

pub mod client;
mod credential;
#[cfg(test)]
mod deadline;
mod exec;
mod home;
mod identities;
mod inventory;
mod kubeconfig;
mod listing;
mod objects;
mod profiles;
mod provider;
mod reading;
mod renewals;
mod roster;
mod scan;
mod secrets;
mod sources;
mod statements;
mod tracker;

pub use self::{
    home::{Home, lease_name},
    identities::{Identities, Records, identities_name},
    inventory::{Inventory, Reissue},
    kubeconfig::{Credentials, KubeconfigError},
    listing::{Access, InventoryEvent, Listing, Refused, Unused},
    provider::{ProviderFile, ProviderFileError},
    reading::{MAX_ENTRY_LABELS, Reading},
    secrets::{KEYS as SECRET_KEYS, SELECTORS as SECRET_SELECTORS},
    sources::{ProfileSource, Sources},
    statements::{Statements, Text, is_no_kubeconfig, statement_files},
};
