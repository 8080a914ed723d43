//! Puts the client's model name in the place of the engine's.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Output, scanner::Mark};

/// Twice the longest name that a model registry allows. A longer one is none, and stays.
pub(super) const MAX_HELD: usize = 512;

/// Replaces model names in chunks.
#[derive(Debug)]
pub(super) struct Restorer {
    /// The client's name as in JSON, without quotes.
    name: Bytes,
    model: Model,
}

/// What is known of the model at a chunk's end.
#[derive(Debug, Default)]
enum Model {
    /// None has begun.
    #[default]
    Absent,
    /// It goes on: its first bytes.
    Held(SmallVec<[Bytes; 2]>, usize),
    /// It goes on, but is too long: it has passed.
    TooLong,
}

/// The work on one chunk.
#[derive(Debug)]
pub(super) struct Rewrite<'a> {
    restorer: &'a mut Restorer,
    chunk: &'a Bytes,
    output: Output,
    /// The bytes of the chunk before this place are done with.
    done: usize,
    /// Where the current model begins, or goes on.
    start: usize,
}

// === impl Restorer ===

impl Restorer {
    pub(super) fn new(name: &str) -> Self {
        let json = serde_json::Value::from(name).to_string();
        let quoted = Bytes::from(json);
        Self {
            name: quoted.slice(1..quoted.len().saturating_sub(1)),
            model: Model::Absent,
        }
    }

    /// Begins a chunk.
    pub(super) fn rewrite<'a>(&'a mut self, chunk: &'a Bytes) -> Rewrite<'a> {
        Rewrite {
            restorer: self,
            chunk,
            output: Output::new(),
            done: 0,
            start: 0,
        }
    }
}

// === impl Rewrite ===

impl Rewrite<'_> {
    /// The scanner found something at this place of the chunk.
    pub(super) fn on(&mut self, at: usize, mark: Mark) {
        match (mark, std::mem::take(&mut self.restorer.model)) {
            (Mark::ModelStart, _) => {
                self.start = at;
                self.restorer.model = Model::Held(SmallVec::new(), 0);
            }
            (Mark::ModelEnd, Model::Held(_, held)) if self.len_at(at, held) <= MAX_HELD => {
                self.pass(self.start);
                self.output.push(self.restorer.name.clone());
                self.done = at;
            }
            (Mark::ModelEnd | Mark::NoModel, Model::Held(held, _)) => self.output.extend(held),
            (Mark::ModelEnd | Mark::NoModel, Model::Absent | Model::TooLong) => {}
        }
    }

    /// What goes on in the chunk's place; with `end`, nothing is held.
    pub(super) fn finish(mut self, end: bool) -> Output {
        let len = self.chunk.len();
        self.restorer.model = match std::mem::take(&mut self.restorer.model) {
            Model::Held(mut parts, held) if !end && self.len_at(len, held) <= MAX_HELD => {
                self.pass(self.start);
                let held = self.len_at(len, held);
                parts.extend((self.start < len).then(|| self.chunk.slice(self.start..)));
                self.done = len;
                Model::Held(parts, held)
            }
            Model::Held(parts, _) => {
                self.output.extend(parts);
                Model::TooLong
            }
            other => other,
        };
        self.pass(len);
        self.output
    }

    /// Bytes of a model of which `held` bytes came before this chunk, at this place of it.
    fn len_at(&self, at: usize, held: usize) -> usize {
        at.saturating_sub(self.start).saturating_add(held)
    }

    /// Passes the bytes of the chunk before `end`.
    fn pass(&mut self, end: usize) {
        if self.done < end {
            self.output.push(self.chunk.slice(self.done..end));
            self.done = end;
        }
    }
}
