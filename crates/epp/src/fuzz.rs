//! What foreign bytes go through, for fuzzers: each function takes any bytes and panics where a promise is broken.
//!
//! `fuzz/` runs them under libFuzzer; the tests here replay its corpus and change it a little, within seconds.

use crate::{body, config, extproc, scrape, tap};

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its corpus, too.
    pub name: &'static str,
    /// Panics where a promise is broken.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target {
        name: "stream",
        run: fuzz_stream,
    },
    Target {
        name: "body",
        run: fuzz_body,
    },
    Target {
        name: "response",
        run: fuzz_response,
    },
    Target {
        name: "metrics",
        run: fuzz_metrics,
    },
    Target {
        name: "attributes",
        run: fuzz_attributes,
    },
    Target {
        name: "config",
        run: fuzz_config,
    },
];

/// One ext_proc stream: modes, orders, cuts and endings. Headers are answered first, bytes stay the same, there is one
/// end, and the place at the endpoint is freed once.
pub fn fuzz_stream(data: &[u8]) {
    extproc::fuzz_stream(data);
}

/// A request's body, and its edit: what is read lies within it, and a splice changes what it should and nothing else.
pub fn fuzz_body(data: &[u8]) {
    body::fuzz::run(data);
}

/// A response's body: usage and bytes are the same however it is cut.
pub fn fuzz_response(data: &[u8]) {
    tap::fuzz::run(data);
}

/// A metrics page: its values are the same however it is cut.
pub fn fuzz_metrics(data: &[u8]) {
    scrape::fuzz::run(data);
}

/// A message with attributes, as it comes from the proxy: the subset has the entries that are written in it.
pub fn fuzz_attributes(data: &[u8]) {
    extproc::fuzz_attributes(data);
}

/// A configuration file: it is read or refused, and what strict reading takes lenient reading takes as well.
pub fn fuzz_config(data: &[u8]) {
    config::fuzz::run(data);
}

/// Takes choices from the front of the bytes; zeros where they are over.
#[derive(Debug)]
pub(crate) struct Choices<'a>(&'a [u8]);

// === impl Choices ===

impl<'a> Choices<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// At most `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at_checked(count).unwrap_or((self.0, &[]));
        self.0 = rest;
        taken
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Pieces of `data`, whose sizes are the bytes of `sizes` in turn; a size of 0 does not count, and without
/// sizes each piece is one byte.
pub(crate) fn cut<'a>(mut data: &'a [u8], sizes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut sizes = sizes.iter().filter(|size| **size > 0).cycle();
    std::iter::from_fn(move || {
        let size = sizes.next().map_or(1, |size| usize::from(*size));
        let (piece, rest) = data.split_at_checked(size).unwrap_or((data, &[]));
        data = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests;
