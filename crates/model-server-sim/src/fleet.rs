//! Several independent servers in one process.

use std::sync::Arc;

use process::Shutdown;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    args::Settings,
    server::{ServeError, Server, serve_at},
};

/// Serves all of them until the drain of each is over. They share nothing, but ranks of one server where these have shared
/// ports; if one ends early, all do.
///
/// # Errors
/// [`ServeError`] of the first that failed.
pub async fn serve_all(
    servers: Vec<(TcpListener, Settings)>,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let make = |(listener, settings)| (listener, Server::new(settings, shutdown.drain.clone()));
    let servers: Vec<(TcpListener, Server)> = servers.into_iter().map(make).collect();
    for (_, server) in &servers {
        // in the order of their ranks
        let of_one = servers.iter().map(|(_, other)| other);
        let of_one = of_one.filter(|other| other.is_rank_beside(server));
        server.share_port(of_one.map(|other| Arc::downgrade(other.app())).collect());
    }
    let mut tasks = JoinSet::new();
    for (listener, server) in servers {
        tasks.spawn(serve_at(listener, server, shutdown.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|_| ServeError::Panicked)??;
    }
    Ok(())
}
