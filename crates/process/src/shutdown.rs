//! Signals: the first asks for a drain, the second for the end.

use std::{io, sync::Arc};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{info, warn};

/// What the outside wants of this process.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Cancelled by the first SIGTERM or SIGINT: stop being ready, finish what was begun.
    pub drain: CancellationToken,
    /// Cancelled by the second: end at once.
    pub now: CancellationToken,
    /// Keeps the listening task until the last clone is gone.
    listener: Option<Arc<AbortOnDropHandle<()>>>,
}

// === impl Shutdown ===

impl Shutdown {
    /// One that no signal reaches, for tests and for embedding: cancel its tokens.
    pub fn manual() -> Self {
        Self {
            drain: CancellationToken::new(),
            now: CancellationToken::new(),
            listener: None,
        }
    }

    /// Listens for SIGTERM and SIGINT from now on.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut shutdown = Self::manual();
        let (drain, now) = (shutdown.drain.clone(), shutdown.now.clone());
        let listen = async move {
            for count in 0_u32.. {
                let name = tokio::select! {
                    Some(()) = terminate.recv() => "SIGTERM",
                    Some(()) = interrupt.recv() => "SIGINT",
                    else => return,
                };
                if count == 0 {
                    info!(signal = name, "draining; a second signal ends at once");
                    drain.cancel();
                } else {
                    warn!(signal = name, "ending at once");
                    now.cancel();
                    return;
                }
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the handle is owned by the Shutdown and its clones"
        )]
        let task = tokio::spawn(listen);
        shutdown.listener = Some(Arc::new(AbortOnDropHandle::new(task)));
        Ok(shutdown)
    }
}
