//! Scripted API servers: as much of Kubernetes as the controller uses, and its faults on demand. For tests and benches.
//!
//! A [`Server`] listens on a loopback address of its own, holds objects in memory and answers as kube-apiserver does:
//! lists in pages, watches that resume, server-side apply with field owners, patches, preconditions. What the controller
//! relies on (facts K2 to K10 of the specification) is held against a real API server by `e2e/tests/crd_facts`; a fact
//! that changes there changes here. It knows nothing of the controller, and a thousand servers fit into one process.
//!
//! ```text
//!  Link (silence, cut) ─► TLS ─► hyper ─► Target ─► Rules (late, never, refused, half) ─► Store ─► answer or watch
//!                                             └──► Calls (what was asked, when)             ▲ └─► Journal (each change)
//!  a test: put, edit, delete, export, CRDs, clock ─────────────────────────────────────────┘
//! ```

mod calls;
mod faults;
mod fields;
mod hand;
mod handler;
mod journal;
mod kinds;
mod link;
mod objects;
mod pki;
mod refusal;
mod schema;
mod selector;
mod server;
mod store;
mod target;
mod watching;
mod whole;
mod write;

pub use calls::Call;
pub use faults::{Fault, Rule};
pub use hand::Flavour;
pub use journal::{Recorded, Recording};
pub use kinds::{
    CLUSTER_PROFILES, CLUSTER_PROPERTIES, CONFIG_MAPS, CORE_EVENTS, CRDS, DEPLOYMENTS,
    DISRUPTION_BUDGETS, ENDPOINT_SLICES, EVENTS, GATEWAY_CLASSES, GATEWAYS, HTTP_ROUTES, IMPORTS,
    Kind, LEASES, NAMESPACES, NODES, PODS, POOLS, REFERENCE_GRANTS, SECRETS, SERVICE_ACCOUNTS,
    SERVICE_CIDRS, SERVICES,
};
pub use objects::{
    EPP, EXPORT, condition, endpoint_slice, entries_of, exported_pool, load_balancer, pool,
};
pub use pki::{Authority, PkiError};
pub use server::{Builder, Server, StartError, free_address};
pub use target::Verb;
pub use watching::Ending;
