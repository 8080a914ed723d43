//! Files that are read again and again while the program runs: how, not what they mean.

use std::{fs::File, io::Read, path::Path, time::Duration};

use futures::{Stream, StreamExt};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tracing::error;

/// What a file holds, or why it cannot be read.
pub type Content<T> = Result<T, String>;

/// A mounted ConfigMap or Secret takes a minute to change: nobody notices five seconds more.
const POLL: Duration = Duration::from_secs(5);

/// Calls `read` every 5 s and at each of `hangups`, and passes on what it returns, and whether a hangup asked for it.
/// Never returns.
pub async fn reread<T: Send + 'static>(
    read: impl Fn() -> T + Clone + Send + 'static,
    mut hangups: impl Stream<Item = ()> + Unpin,
    mut judge: impl FnMut(T, bool),
) {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked = tokio::select! {
            _ = ticks.tick() => false,
            Some(()) = hangups.next() => true,
        };
        // on a thread of its own: the file may lie on a slow volume
        match spawn_blocking(read.clone()).await {
            Ok(content) => judge(content, asked),
            Err(error) => error!(%error, "files cannot be read again: what is in force stays"),
        }
    }
}

/// Reads a file, and no more of it than is too much. A symbolic link is followed, as a mounted ConfigMap needs.
///
/// # Errors
/// Why it cannot be read, as text.
pub fn read_at_most(path: &Path, max_bytes: usize) -> Content<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(max_bytes)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() > max_bytes {
        return Err(format!("it has more than {max_bytes} bytes"));
    }
    Ok(bytes)
}
