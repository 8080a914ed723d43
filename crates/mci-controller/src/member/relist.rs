//! Relists a kind that the index does not keep in full: it may fit now, and a running watch would not show it again.

use std::{collections::BTreeSet, time::Duration};

use tokio::{sync::watch as channel, time::sleep};

use super::{Control, watches::Gone};
use crate::index::update::AnyKind;

/// Wait before the first relist of a kind that does not fit; doubled each time, since a list may take minutes.
const RELIST_MIN: Duration = Duration::from_mins(1);
const RELIST_MAX: Duration = Duration::from_mins(16);

/// Runs the watch of a kind, and restarts it while the index does not keep all of the kind.
pub(super) async fn relisting<F>(
    mut control: channel::Receiver<Control>,
    kind: AnyKind,
    watch: impl Fn() -> F,
) -> Result<(), Gone>
where
    F: Future<Output = Result<(), Gone>>,
{
    let is_partial = |partial: &BTreeSet<AnyKind>| partial.contains(&kind);
    let mut wait = RELIST_MIN;
    loop {
        let due = async {
            loop {
                let partial = control.wait_for(|control| is_partial(&control.partial));
                drop(partial.await.map_err(|_| Gone)?);
                sleep(wait).await;
                if is_partial(&control.borrow().partial) {
                    return Ok(());
                }
                wait = RELIST_MIN;
            }
        };
        tokio::select! {
            ended = watch() => return ended,
            due = due => due?,
        }
        wait = RELIST_MAX.min(2 * wait);
    }
}
