//! Lists again what the index does not keep in full: it may fit now, and a watch that goes on would not show it again.

use std::{collections::BTreeSet, time::Duration};

use tokio::{sync::watch as channel, time::sleep};

use super::{Control, watches::Gone};
use crate::index::update::AnyKind;

/// Time between two lists of a kind that does not fit.
const APART: Duration = Duration::from_mins(1);

/// Runs the watch of a kind, and begins it again with a list each [`APART`] while the index does not keep all of the kind.
pub(super) async fn relisting<F>(
    mut control: channel::Receiver<Control>,
    kind: AnyKind,
    watch: impl Fn() -> F,
) -> Result<(), Gone>
where
    F: Future<Output = Result<(), Gone>>,
{
    let is_partial = |partial: &BTreeSet<AnyKind>| partial.contains(&kind);
    loop {
        let due = async {
            loop {
                let partial = control.wait_for(|control| is_partial(&control.partial));
                drop(partial.await.map_err(|_| Gone)?);
                sleep(APART).await;
                if is_partial(&control.borrow().partial) {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            ended = watch() => return ended,
            due = due => due?,
        }
    }
}
