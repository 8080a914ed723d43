//! What the services of Isthmus have in common that are called over HTTP: the port, who may call, bodies within bounds, and
//! the way from start to end.
//!
//! Knows no path and no call: a [`Handler`] answers them.
//!
//! ```text
//!  flags ─► Security ─► Acceptor, Tokens
//!  connections ─► Server ─► Handler ─► Bodies::read ─► …
//!  SIGTERM ─► Parts: not ready, lingers, no new calls, the last replies, end
//! ```

mod args;
mod body;
mod parts;
mod port;
mod security;
mod token;

pub use args::CallerArgs;
pub use body::{Bodies, BodyError, BodyLimits, Whole};
pub use parts::{Parts, hangups, listen, threads};
pub use port::{Connection, Handler, ServeError, Server};
pub use security::{Names, Security};
pub use tls::Acceptor;
pub use token::{TokenError, TokenFile, Tokens, Unauthorized};
