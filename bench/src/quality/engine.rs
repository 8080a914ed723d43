//! A model server as vLLM schedules: steps, each of which computes one token of every answer and a part of the prompts.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use scheduling::{CacheLayout, Scraped};

use super::{
    cache::BlockCache,
    trace::{BLOCK, tokens},
};

/// How large and how fast the engines are.
#[derive(Clone, Copy, Debug)]
pub struct EngineModel {
    /// Requests that are run at most.
    pub slots: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Tokens of one step at most.
    pub step_tokens: u32,
    /// What a step takes whatever it computes.
    pub step: Duration,
    /// And for each token of a prompt.
    pub prompt_token: Duration,
    /// And for each answer that it goes on with.
    pub answer_token: Duration,
}

/// One engine.
#[derive(Debug)]
pub(super) struct Engine {
    model: EngineModel,
    cache: BlockCache,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// A step is under way.
    is_stepping: bool,
}

/// A request in an engine.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) request: usize,
    /// Of prompt and answer.
    pub(super) chain: Arc<[u64]>,
    /// Blocks of the prompt.
    pub(super) prompt: usize,
    /// Tokens of the prompt that are yet to be computed.
    prompt_left: u32,
    answer_left: u32,
    /// Blocks that were cached when it began.
    cached: usize,
    /// Tokens of the step under way.
    in_step: u32,
}

/// What a step brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The first token of an answer, and how many blocks of its prompt were cached.
    Began { request: usize, cached: usize },
    /// The last one.
    Ended { request: usize },
}

impl Default for EngineModel {
    /// Near an 8B model on one large accelerator: 25,000 tokens of prompts a second, 100 of one answer alone, and a cache of
    /// 131,072 tokens.
    fn default() -> Self {
        Self {
            slots: 64,
            blocks: 2048,
            step_tokens: 2048,
            step: Duration::from_millis(10),
            prompt_token: Duration::from_micros(40),
            answer_token: Duration::from_micros(100),
        }
    }
}

// === impl Sequence ===

impl Sequence {
    pub(super) fn new(request: usize, chain: Arc<[u64]>, prompt: usize) -> Self {
        let answer_left = tokens(chain.len() - prompt);
        Self {
            request,
            chain,
            prompt,
            prompt_left: 0,
            answer_left,
            cached: 0,
            in_step: 0,
        }
    }

    /// Computes what the step had of it.
    fn advance(&mut self, cache: &mut BlockCache, progress: &mut Vec<Progress>) {
        let (prompt, answer) = self.chain.split_at(self.prompt);
        if self.prompt_left > 0 {
            self.prompt_left -= self.in_step;
            if self.prompt_left > 0 {
                return;
            }
            cache.fill(&prompt[self.cached..]);
            let (request, cached) = (self.request, self.cached);
            progress.push(Progress::Began { request, cached });
        }
        self.answer_left -= 1;
        if self.answer_left == 0 {
            cache.leave(prompt, answer);
            let request = self.request;
            progress.push(Progress::Ended { request });
        }
    }
}

// === impl Engine ===

impl Engine {
    pub(super) fn new(model: EngineModel) -> Self {
        Self {
            model,
            cache: BlockCache::new(model.blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            is_stepping: false,
        }
    }

    pub(super) fn submit(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Begins a step, if none is under way and there is work; how long it takes.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        if self.is_stepping {
            return None;
        }
        self.admit();
        if self.running.is_empty() {
            return None;
        }
        self.is_stepping = true;
        let answers = self.running.iter().filter(|one| one.prompt_left == 0);
        let answers = u32::try_from(answers.count()).unwrap_or(u32::MAX);
        let mut left = self.model.step_tokens.saturating_sub(answers);
        let mut prompts = 0;
        for one in &mut self.running {
            one.in_step = one.prompt_left.min(left);
            left -= one.in_step;
            prompts += one.in_step;
        }
        let EngineModel {
            step,
            prompt_token,
            answer_token,
            ..
        } = self.model;
        Some(step + prompt_token * prompts + answer_token * answers)
    }

    /// The step is over.
    pub(super) fn end(&mut self) -> Vec<Progress> {
        self.is_stepping = false;
        let (mut progress, cache) = (Vec::new(), &mut self.cache);
        for one in &mut self.running {
            if one.prompt_left == 0 || one.in_step > 0 {
                one.advance(cache, &mut progress);
            }
        }
        self.running.retain(|one| one.answer_left > 0);
        progress
    }

    /// Its metrics page.
    pub(super) fn page(&self) -> Scraped {
        Scraped {
            waiting: Some(self.waiting.len() as f64),
            running: Some(self.running.len() as f64),
            kv: Some(self.cache.usage()),
            cache: Some(CacheLayout {
                block_tokens: BLOCK,
                blocks: u32::try_from(self.model.blocks).unwrap_or(u32::MAX),
            }),
            ..Scraped::default()
        }
    }

    /// Requests that wait or run.
    pub(super) fn requests(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// In order of arrival; while the first has no room those behind it wait too.
    fn admit(&mut self) {
        while self.running.len() < self.model.slots
            && let Some(first) = self.waiting.front_mut()
        {
            // the last block is always computed: its last token gives the first of the answer
            let most = first.prompt.saturating_sub(1);
            let cached = self.cache.hits(&first.chain[..most]);
            if !self
                .cache
                .take(&first.chain[..cached], first.chain.len() - cached)
            {
                return;
            }
            first.cached = cached;
            first.prompt_left = tokens(first.prompt - cached);
            self.running.extend(self.waiting.pop_front());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: EngineModel = EngineModel {
        slots: 2,
        blocks: 16,
        step_tokens: 100,
        step: Duration::from_millis(10),
        prompt_token: Duration::from_millis(1),
        answer_token: Duration::from_millis(2),
    };

    fn mk(request: usize, blocks: std::ops::Range<u64>, prompt: usize) -> Sequence {
        Sequence::new(request, blocks.collect(), prompt)
    }

    /// Steps until nothing is left: what happened, and when in milliseconds.
    fn run(engine: &mut Engine) -> Vec<(u128, Progress)> {
        let (mut now, mut all) = (Duration::ZERO, Vec::new());
        while let Some(step) = engine.begin() {
            now += step;
            all.extend(engine.end().into_iter().map(|one| (now.as_millis(), one)));
        }
        all
    }

    #[test]
    fn a_prompt_is_computed_in_steps_and_an_answer_token_by_token() {
        let mut engine = Engine::new(MODEL);
        engine.submit(mk(7, 0..3, 2));
        let (request, cached) = (7, 0);
        // 128 tokens in two steps; then 63 of the answer, the first came with the prompt
        let began = 2 * 10 + 128;
        let ended = began + 63 * (10 + 2);
        let want = [
            (began, Progress::Began { request, cached }),
            (ended, Progress::Ended { request }),
        ];
        assert_eq!(run(&mut engine), want);
    }

    #[test]
    fn what_is_cached_is_not_computed_but_for_the_last_block() {
        let mut engine = Engine::new(MODEL);
        engine.submit(mk(0, 0..3, 2));
        run(&mut engine);
        engine.submit(mk(1, 0..4, 3));
        let again = run(&mut engine);
        let began = Progress::Began {
            request: 1,
            cached: 2,
        };
        assert_eq!(again[0], (10 + 64, began));
    }

    #[test]
    fn requests_wait_for_a_slot_and_for_room_in_the_cache() {
        let mut engine = Engine::new(MODEL);
        for request in 0..3 {
            let start = 100 * request as u64;
            engine.submit(mk(request, start..start + 4, 2));
        }
        engine.begin();
        assert_eq!(
            (engine.page().waiting, engine.page().running),
            (Some(1.0), Some(2.0))
        );
        let mut full = Engine::new(MODEL);
        full.submit(mk(0, 0..10, 9));
        full.submit(mk(1, 100..110, 9));
        full.begin();
        assert_eq!(
            (full.page().waiting, full.page().kv),
            (Some(1.0), Some(10.0 / 16.0))
        );
        full.end();
        assert_eq!(full.requests(), 2);
    }
}
