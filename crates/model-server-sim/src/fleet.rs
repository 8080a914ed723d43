//! Several independent servers in one process.

use process::Shutdown;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    args::Settings,
    server::{ServeError, serve},
};

/// Serves all of them until the drain of each is over. They share nothing; but if one ends early, all do.
///
/// # Errors
/// [`ServeError`] of the first that failed.
pub async fn serve_all(
    servers: Vec<(TcpListener, Settings)>,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let mut tasks = JoinSet::new();
    for (listener, settings) in servers {
        tasks.spawn(serve(listener, settings, shutdown.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|_| ServeError::Panicked)??;
    }
    Ok(())
}
