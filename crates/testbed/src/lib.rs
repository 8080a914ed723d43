//! Real clusters on one machine: for the end-to-end tests, the demo and the benchmarks.
//!
//! [`enter`] puts the program into namespaces of its own; [`Testbed`] starts clusters there. What a test needs of a
//! cluster is a [`Cluster`], which any kubeconfig gives; faults are apart from that, on the [`Testbed`]. The crate knows
//! nothing of Isthmus' programs: they are executables behind image names. [`standalone`] is apart from all that: an endpoint
//! picker and an Envoy without any cluster.
//!
//! ```text
//!  user, net, pid, mount namespaces: gone, with everything inside, when the program ends
//! ┌─────────────────────────────────────────────────────────────────────────────────────────────┐
//! │ hub 10.0.0.1: the program itself, its clients, etcd                                         │
//! │      │ veth, routes; `cut` drops packets between two of them                                │
//! │      ├──────────────────────────────────────────┐                                           │
//! │ ┌ east 10.1.0.0/16 ───────────────────────┐  ┌ west 10.2.0.0/16 ──┐                         │
//! │ │ kube-apiserver 10.1.255.1:6443          │  │        …           │                         │
//! │ │ kube-controller-manager                 │  │                    │                         │
//! │ │ node: binds pods, runs them, probes,    │  │                    │                         │
//! │ │   forwards Services 10.1.128.0/18 and   │  │                    │                         │
//! │ │   load balancers 10.1.192.0/19          │  │                    │                         │
//! │ │   ├ veth ─ pod 10.1.0.2 (own netns)     │  │                    │                         │
//! │ │   └ veth ─ pod 10.1.0.3                 │  │                    │                         │
//! │ └─────────────────────────────────────────┘  └────────────────────┘                         │
//! └─────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

mod addresses;
mod apply;
mod audit;
mod cluster;
mod control_plane;
mod error;
mod eventually;
mod faults;
mod isolation;
pub mod isthmus;
mod kubeconfig;
mod logs;
mod manifests;
mod mounts;
mod netns;
mod network;
mod node;
pub mod official;
pub mod pki;
mod process;
mod progress;
mod requests;
pub mod standalone;
mod testbed;
mod tools;

pub use apply::ApplyError;
pub use audit::ApiCall;
pub use cluster::Cluster;
pub use error::TestbedError;
pub use eventually::{NotInTime, eventually};
pub use faults::{ApiServerFaults, PodFaults};
pub use isolation::{EnterError, Inside, enter, enter_as};
pub use manifests::Manifests;
pub use netns::NetworkError;
pub use node::write_volume;
pub use progress::Progress;
pub use requests::{Answer, NoAnswer, Requests, Stream};
pub use testbed::{Builder, Testbed};
pub use tools::{MissingTools, Tools, find_envoy, find_kubectl};

/// The root of the workspace this crate was built in.
fn workspace() -> &'static std::path::Path {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    crates
        .parent()
        .and_then(std::path::Path::parent)
        .unwrap_or(crates)
}
