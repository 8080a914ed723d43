//! The boundary of an Isthmus program: what every one of them does alike towards its surroundings.
//!
//! Flags and environment come in ([`run()`], [`Program`]), logs go out ([`LogArgs`]), signals ask it to end
//! ([`Shutdown`]), an exit code says how it ended ([`ConfigError`] is 64), and the admin port tells how it is
//! ([`Health`], [`admin`]). It knows nothing of what the program does.
//!
//! ```text
//!  argv, env ─► run ─► Args ─► log ─► runtime ─► body(args, shutdown) ─► exit code
//!  SIGTERM ────────────────────────────► Shutdown{drain, now} ▲
//!  GET /healthz /readyz /metrics ◄── admin ◄── Health, Registry ┘
//! ```

pub mod admin;
mod args;
#[cfg(feature = "test-util")]
pub mod docs;
mod health;
mod limits;
mod listen;
mod logs;
#[cfg(feature = "test-util")]
pub mod queries;
mod run;
mod shutdown;
mod thread;
mod units;

pub use args::{parse, parse_from};
pub use health::{Health, Pulse};
pub use listen::listen;
pub use logs::{LogArgs, LogFormat};
pub use run::{ConfigError, Exit, Program, run};
pub use shutdown::Shutdown;
pub use thread::{OwnThread, Panicked};
pub use units::{Size, Span};
