//! Lists again what the index does not keep in full: it may fit now, and a watch that goes on would not show it again.

use std::{collections::BTreeSet, time::Duration};

use tokio::{sync::watch as channel, time::sleep};

use super::{Control, watches::Gone};
use crate::index::update::AnyKind;

/// Time until a kind that does not fit is listed again; then twice that, and so on: a list that takes minutes must come to
/// its end, too.
const APART: Duration = Duration::from_mins(1);
const APART_MAX: Duration = Duration::from_mins(16);

/// Runs the watch of a kind, and begins it again with a list while the index does not keep all of the kind.
pub(super) async fn relisting<F>(
    mut control: channel::Receiver<Control>,
    kind: AnyKind,
    watch: impl Fn() -> F,
) -> Result<(), Gone>
where
    F: Future<Output = Result<(), Gone>>,
{
    let is_partial = |partial: &BTreeSet<AnyKind>| partial.contains(&kind);
    let mut apart = APART;
    loop {
        let due = async {
            loop {
                let partial = control.wait_for(|control| is_partial(&control.partial));
                drop(partial.await.map_err(|_| Gone)?);
                sleep(apart).await;
                if is_partial(&control.borrow().partial) {
                    return Ok(());
                }
                apart = APART;
            }
        };
        tokio::select! {
            ended = watch() => return ended,
            due = due => due?,
        }
        apart = APART_MAX.min(2 * apart);
    }
}
