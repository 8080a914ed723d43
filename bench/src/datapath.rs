//! Load for the data path: HTTP/1.1 clients in front of an Envoy and model servers behind it, as thin as those can be that
//! check each message, because they share the machine with what is measured.
//!
//! ```text
//!  Clients ── HTTP/1.1 ──► Envoy (Program) ──► ModelServers
//!    └─ Answered: when, how long, by which cluster ──► Window (answers a second, times)
//!                           └─ ext_proc ──► EPP (Program)
//! ```

mod clients;
mod envoy;
mod message;
mod model_servers;
mod program;
mod window;

pub use clients::{Clients, Target};
pub use envoy::adapted;
pub use message::Message;
pub use model_servers::{ModelServers, SERVED_BY};
pub use program::{Program, share_two_cores};
pub use window::{Answered, Window};
