//! The scripts that run in Redis.

use redis::Script;

/// Redis has them by their hash; where it lost one, the call that needs it loads it again.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) add: Script,
    pub(super) prompt: Script,
    pub(super) delete: Script,
    pub(super) batch: Script,
    pub(super) free: Script,
    pub(super) pick: Script,
    pub(super) expire: Script,
    pub(super) clear: Script,
    pub(super) open: Script,
    pub(super) close: Script,
}

/// Up to so many items go into one call, so that none holds Redis for long.
pub(super) const MAX_ITEMS: usize = 512;

/// Of one cluster.
macro_rules! script {
    ($($file:literal),+) => {
        Script::new(concat!(include_str!("common.lua"), $(include_str!($file)),+))
    };
}

// === impl Scripts ===

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            add: script!("add.lua"),
            prompt: script!("prompt.lua"),
            delete: script!("delete.lua"),
            batch: script!("batch.lua"),
            free: script!("free.lua"),
            pick: script!("score.lua", "pick.lua"),
            expire: script!("expire.lua"),
            clear: script!("clear.lua"),
            open: Script::new(include_str!("open.lua")),
            close: Script::new(include_str!("close.lua")),
        }
    }
}
