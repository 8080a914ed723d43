//! Calls to one base URL over HTTP/1.1 with kept connections, plain or with TLS.
//!
//! Owns the connections, the deadline and the bounds of a call, and the decision whether the peer is called at all. Knows
//! nothing of what the calls mean.
//!
//! ```text
//!  Call ─► places (in flight) ─► Breaker ─► connections ─► peer
//!            │ Busy                │ Open      │ Connect, Late, Broken, TooLarge
//!            ▼                     ▼           ▼
//!          CallError ◄─────────────┴───────────┘        Sender ─► queue ─► Sending ─► Hop, for calls nobody waits for
//! ```

mod body;
mod breaker;
mod call;
mod connect;
mod hop;
mod sender;
mod url;

pub use breaker::{Admission, Breaker, Outcome};
pub use call::{Call, CallError, Reply};
pub use hop::{Hop, LITTLE, Settings};
pub use sender::{Sender, Sending};
pub use tls::{Trust, TrustError, TrustFiles, TrustReload};
pub use url::{BaseUrl, UrlError};
