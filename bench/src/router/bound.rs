//! The index under its memory bound, for so long that all of it was replaced many times.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context, Result};
use kv_router::{Event, Index, WorkerBlocks};

use super::{BLOCK, PROMPT_BLOCKS, mk_prompt, processor_seconds};

/// What was seen of it.
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    /// Blocks that were stored.
    pub stored: usize,
    /// Most heap bytes of index and workers, those of an empty index taken off.
    pub most: usize,
    /// Of the first half of the time.
    pub first_half: usize,
    /// Of the second half.
    pub second_half: usize,
    /// Of the thread, for a block.
    pub each: Duration,
}

const WORKERS: usize = 8;
/// Number of prompts that use one adapter before the next adapter is used.
const ADAPTER_LIFE: u32 = 20;
/// Prompts between two looks at the memory.
const LOOK: u32 = 16;
/// As the Router sweeps.
const SWEPT: usize = 4096;

/// Stores prompts that no worker has, of so many blocks all together, at one worker after the other. A worker goes, and
/// another one comes, once it has taken `worker_life` prompts; adapters change more often.
///
/// # Errors
/// When the index refuses an event, or a worker.
pub fn bounded(blocks: usize, max_bytes: usize, worker_life: u32) -> Result<Bounded> {
    let index = Index::new(BLOCK, max_bytes);
    let empty = index.stats().bytes;
    let add = || index.add().context("no slot for a worker");
    let mut workers: VecDeque<WorkerBlocks> = (0..WORKERS).map(|_| add()).collect::<Result<_>>()?;
    let prompts = u32::try_from(blocks / PROMPT_BLOCKS).context("too many blocks")?;
    let mut halves = [0, 0];
    let mut seconds = 0.0;
    for number in 0..prompts {
        let adapter = format!("adapter-{}", number / ADAPTER_LIFE);
        let mut made = mk_prompt(number, number).stored;
        if let Event::Stored(stored) = &mut made {
            stored.lora_name = Some(&adapter);
        }
        let begun = processor_seconds();
        workers[number as usize % WORKERS].apply(&index, &made)?;
        if number % worker_life == worker_life - 1 {
            if let Some(gone) = workers.pop_front() {
                index.remove(gone);
            }
            while index.sweep(SWEPT) == SWEPT {}
            workers.push_back(add()?);
        }
        seconds += processor_seconds() - begun;
        if number % LOOK == 0 {
            let own: usize = workers.iter().map(WorkerBlocks::bytes).sum();
            let most = &mut halves[usize::from(number >= prompts / 2)];
            *most = (*most).max(index.stats().bytes - empty + own);
        }
    }
    let stored = prompts as usize * PROMPT_BLOCKS;
    let [first_half, second_half] = halves;
    Ok(Bounded {
        stored,
        most: first_half.max(second_half),
        first_half,
        second_half,
        each: Duration::from_secs_f64(seconds / stored as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small one of what is measured: each worker is full, and blocks are evicted, before it goes.
    #[test]
    fn memory_fills_its_bound_and_keeps_to_it_while_workers_and_adapters_come_and_go() {
        let max_bytes = 4 << 20;
        let it = bounded(400_000, max_bytes, 400).unwrap();
        assert_eq!(it.stored, 400_000);
        assert!(it.most <= max_bytes, "{it:?}");
        // without eviction the blocks of one life alone would be several times the bound
        assert!(it.most >= max_bytes / 2, "the bound is never met: {it:?}");
        assert!(it.second_half <= it.first_half / 10 * 11, "{it:?}");
    }
}
