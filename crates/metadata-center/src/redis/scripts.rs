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
    pub(super) loads: Script,
    pub(super) clear: Script,
    pub(super) open: Script,
    pub(super) close: Script,
}

/// Up to so many items go into one call, so that none holds Redis for long.
pub(super) const MAX_ITEMS: usize = 512;

/// Of one cluster.
macro_rules! script {
    ($($file:literal),+) => {
        concat!(include_str!("common.lua"), $(include_str!($file)),+)
    };
}

// === impl Scripts ===

impl Scripts {
    /// `edit` sees each before it is used: tests give it another clock.
    pub(super) fn new(edit: fn(&str) -> String) -> Self {
        let script = |text| Script::new(&edit(text));
        Self {
            add: script(script!("add.lua")),
            prompt: script(script!("prompt.lua")),
            delete: script(script!("delete.lua")),
            batch: script(script!("batch.lua")),
            free: script(script!("free.lua")),
            pick: script(script!("score.lua", "pick.lua")),
            expire: script(script!("expire.lua")),
            loads: script(script!("loads.lua")),
            clear: script(script!("clear.lua")),
            open: script(include_str!("open.lua")),
            close: script(include_str!("close.lua")),
        }
    }
}
