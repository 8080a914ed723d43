//! The Kubernetes types that Isthmus speaks.
//!
//! Ours are [`InferencePoolImport`] and [`selection_policy`], derived from Rust types: `cargo xtask crds` writes their CRDs
//! to `config/crd`.
//! The others are generated from the CRDs that their projects publish, one module per kind. Beside them stand the
//! annotations and labels ([`annotations`]) and the pure helpers for conditions ([`conditions`]), for Gateway API's
//! hostnames ([`Hostname`]) and for networks ([`networks`]).
//!
//! [`cluster_profile`], [`cluster_property`] and the kinds of models and objectives ([`inference_model`],
//! [`inference_model_rewrite`], [`inference_objective`]) are written by hand, and hold only what we read of their kinds.
//!
//! This crate knows no client and no clock: it says what an object looks like, not how it travels.
//!
//! ```text
//!  published CRDs ── kopium ──► inference_pool, gateway, gateway_class,      ┐
//!                               http_route, reference_grant, backend_tls_policy ├─► controller, EPP, gateway
//!  our Rust types ──────── cargo xtask crds ──► config/crd                     ┘
//! ```

pub mod annotations;
pub mod backend_tls_policy;
pub mod cluster_profile;
pub mod cluster_property;
pub mod conditions;
pub mod gateway;
pub mod gateway_class;
mod hostname;
pub mod http_route;
pub mod import;
pub mod inference_model;
pub mod inference_model_rewrite;
pub mod inference_objective;
pub mod inference_pool;
pub mod networks;
mod pool_ref;
pub mod reference_grant;
mod schema;
pub mod selection_policy;

pub use conditions::Condition;
pub use hostname::Hostname;
pub use import::{
    ClusterName, ControllerParent, ControllerStatus, EndpointPicker, FailureMode, ImportedCluster,
    InferencePoolImport, InferencePoolImportSpec, InferencePoolImportStatus, Listener,
    ListenerProtocol, Parent, ParentReference, PortRef, RoutingMode, SecretReference,
    ServiceEndpoints, ServicePort, ServiceType, TargetPort,
};
pub use pool_ref::PoolRef;
pub use schema::{crd_yaml, selection_policy_crd_yaml};
