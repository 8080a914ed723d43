//! Lists that the index asks for: something that it had no room for may have it now, and a watch that goes on would not
//! tell of it again.

use std::time::Duration;

use tokio::{
    sync::watch as channel,
    time::{Instant, sleep_until},
};

use super::{Control, watches::Gone};
use crate::index::left_out::Lists;

/// What is asked of one watch.
pub(super) struct Anew {
    control: channel::Receiver<Control>,
    /// How often a list of its kind was asked for.
    count: fn(&Lists) -> u32,
    /// Lists asked for that were begun.
    begun: u32,
    last: Instant,
}

/// Lists of one kind that are asked for are so far apart: somebody may fill a member and make room in it for ever.
const APART: Duration = Duration::from_mins(1);

// === impl Anew ===

impl Anew {
    /// For a watch that begins with a list now.
    pub(super) fn new(control: channel::Receiver<Control>, count: fn(&Lists) -> u32) -> Self {
        let begun = count(&control.borrow().lists);
        Self {
            control,
            count,
            begun,
            last: Instant::now(),
        }
    }

    /// Returns when the list is to begin.
    pub(super) async fn asked(&mut self) -> Result<(), Gone> {
        let (count, begun) = (self.count, self.begun);
        let asked = self
            .control
            .wait_for(|control| count(&control.lists) != begun)
            .await;
        drop(asked.map_err(|_| Gone)?);
        sleep_until(self.last + APART).await;
        self.begun = count(&self.control.borrow().lists);
        self.last = Instant::now();
        Ok(())
    }
}
