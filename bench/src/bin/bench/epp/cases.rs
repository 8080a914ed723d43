//! The loads: sizes of bodies, how they are cut, what prompts share, how many endpoints there are.

use bench::{Chunks, Prompts};

use super::{FEW, MANY};

/// Requests of one kind, some at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) size: usize,
    pub(super) chunks: Chunks,
    pub(super) prompts: Prompts,
    pub(super) endpoints: usize,
    /// In each round, so that a round takes about a second.
    pub(super) requests: usize,
    pub(super) in_flight: usize,
    /// Another EPP is measured with them too, if one is given.
    pub(super) beside_peer: bool,
}

/// Requests of one kind, so many a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) name: &'static str,
    pub(super) case: Case,
    /// Far from what a core can do.
    pub(super) per_second: f64,
    pub(super) requests: usize,
}

/// Bodies held at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) name: &'static str,
    pub(super) count: usize,
    pub(super) size: usize,
}

pub(super) const SMALL: Case = Case {
    name: "EPP, 1 KB",
    size: 1000,
    chunks: Chunks::Whole,
    prompts: Prompts::Groups,
    endpoints: FEW,
    requests: 2000,
    in_flight: 8,
    beside_peer: true,
};
const MIDDLE: Case = Case {
    name: "EPP, 100 KB",
    size: 100_000,
    requests: 1000,
    ..SMALL
};
const LARGE: Case = Case {
    name: "EPP, 400 KB",
    size: 400_000,
    requests: 500,
    ..SMALL
};
/// A prompt of a million tokens.
const HUGE: Case = Case {
    name: "EPP, 4 MB",
    size: 4_000_000,
    requests: 60,
    in_flight: 4,
    beside_peer: false,
    ..SMALL
};

pub(super) const CASES: [Case; 12] = [
    SMALL,
    // what one pick takes when nothing else is to be done
    Case {
        name: "EPP, 1 KB, one at a time",
        in_flight: 1,
        ..SMALL
    },
    Case {
        name: "EPP, 1 KB, 100 endpoints",
        endpoints: MANY,
        beside_peer: false,
        ..SMALL
    },
    Case {
        name: "EPP, 10 KB",
        size: 10_000,
        beside_peer: false,
        ..SMALL
    },
    MIDDLE,
    buffers("EPP, 100 KB in 32 KiB", MIDDLE),
    Case {
        name: "EPP, 100 KB, no two alike",
        prompts: Prompts::Unique,
        beside_peer: false,
        ..MIDDLE
    },
    Case {
        name: "EPP, 100 KB, 100 endpoints",
        endpoints: MANY,
        beside_peer: false,
        ..MIDDLE
    },
    LARGE,
    buffers("EPP, 400 KB in 32 KiB", LARGE),
    HUGE,
    buffers("EPP, 4 MB in 32 KiB", HUGE),
];

pub(super) const OPEN: [Open; 2] = [
    Open {
        name: "EPP, 1 KB, 500 requests/s",
        case: SMALL,
        per_second: 500.0,
        requests: 1500,
    },
    Open {
        name: "EPP, 100 KB, 200 requests/s",
        case: MIDDLE,
        per_second: 200.0,
        requests: 600,
    },
];

pub(super) const HELD: [Held; 2] = [
    Held {
        name: "EPP, 64 bodies of 400 KB at once",
        count: 64,
        size: 400_000,
    },
    Held {
        name: "EPP, 8 bodies of 4 MB at once",
        count: 8,
        size: 4_000_000,
    },
];

const fn buffers(name: &'static str, case: Case) -> Case {
    Case {
        name,
        chunks: Chunks::Buffers,
        beside_peer: false,
        ..case
    }
}
