//! The metrics page, with the names of the simulated engine: pure.

mod page;
mod sglang;
mod shared;
mod triton;
mod trtllm;
mod vllm;

use std::num::{NonZeroU32, NonZeroUsize};

pub(crate) use self::{
    page::{CONTENT_TYPE, Page},
    shared::{AdapterSet, SharedPage},
};
use crate::{args::EngineKind, engine::Snapshot};

/// What the page tells besides the engine's own numbers.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// Whose names the page has.
    pub(crate) kind: EngineKind,
    /// Label `model_name` of everything.
    pub(crate) model_name: &'a str,
    /// Label `engine` of everything: the data-parallel rank.
    pub(crate) rank: u16,
    pub(crate) block_size: NonZeroU32,
    pub(crate) blocks: NonZeroU32,
    /// Requests that can run at the same time.
    pub(crate) max_running: NonZeroUsize,
    /// Names that vLLM had before its version 0.10.
    pub(crate) legacy_names: bool,
    /// LoRA adapters that can run at the same time; `None`: LoRA is off.
    pub(crate) max_adapters: Option<NonZeroUsize>,
    /// The sets of adapters with their values: times in seconds since 1970, or sums of these.
    pub(crate) adapter_sets: Vec<(AdapterSet, f64)>,
    /// Seconds since 1970; `None`: several processes share the page, which then has no such value.
    pub(crate) process_start: Option<f64>,
    /// Lines of no meaning that make the page longer.
    pub(crate) padding_lines: u32,
    pub(crate) fake: FakeValues,
}

/// What the page tells in place of the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FakeValues {
    pub(crate) waiting: Option<f64>,
    pub(crate) running: Option<f64>,
    pub(crate) kv: Option<f64>,
}

/// The numbers that endpoint pickers read.
#[derive(Clone, Copy, Debug)]
struct Load {
    waiting: f64,
    running: f64,
    kv: f64,
}

/// Writes the page.
pub(crate) fn render(facts: &Facts<'_>, engine: &Snapshot) -> String {
    let rank = facts.rank.to_string();
    let labels = [("model_name", facts.model_name), ("engine", rank.as_str())];
    let load = Load {
        waiting: facts.fake.waiting.unwrap_or(engine.waiting as f64),
        running: facts.fake.running.unwrap_or(engine.running as f64),
        kv: facts.fake.kv.unwrap_or(engine.kv_usage),
    };
    let mut page = Page::new(&labels);
    match facts.kind {
        EngineKind::Vllm => vllm::write(&mut page, facts, load, engine),
        EngineKind::Sglang => sglang::write(&mut page, facts, load, engine),
        EngineKind::TrtllmServe => trtllm::write(&mut page, facts, load, engine),
        EngineKind::TritonTensorrtLlm => triton::write(&mut page, facts, load, engine),
        EngineKind::Triton => {
            // Its vLLM backend has kept the names of its first versions.
            let facts = Facts {
                legacy_names: true,
                ..facts.clone()
            };
            vllm::write(&mut page, &facts, load, engine);
        }
    }
    if facts.padding_lines > 0 {
        page.head("sim_padding", "gauge", "Lines that make the page longer.");
    }
    for line in 0..facts.padding_lines {
        page.sample("sim_padding", &[("line", &line.to_string())], 0.0);
    }
    if let Some(start) = facts.process_start {
        page.head(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
        );
        page.sample("process_start_time_seconds", &[], start);
    }
    page.finish()
}

#[cfg(test)]
mod tests;
