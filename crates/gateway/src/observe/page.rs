//! A page of Prometheus metrics, read as it comes: only what an endpoint picker says of its pool is kept (pure).

use crate::select::PoolLoad;

/// Longest line that is read; longer ones are passed over. Those that are looked for have some hundred bytes.
const MAX_LINE: usize = 8 << 10;

/// Names of each value, the better one first: those of llm-d, and those that the Gateway API Inference Extension had before.
const READY: [&str; 2] = ["llm_d_epp_ready_endpoints", "inference_pool_ready_pods"];
const QUEUE: [&str; 2] = [
    "llm_d_epp_average_queue_size",
    "inference_pool_average_queue_size",
];
const KV: [&str; 2] = [
    "llm_d_epp_average_kv_cache_utilization",
    "inference_pool_average_kv_cache_utilization",
];

/// A page whose pieces are fed to it. It holds one line at most.
#[derive(Debug)]
pub(crate) struct Page<'p> {
    pool: &'p str,
    line: Vec<u8>,
    too_long: bool,
    ready: Best,
    queue: Best,
    kv: Best,
}

/// The value whose name and label fit best.
#[derive(Clone, Copy, Debug, Default)]
struct Best(Option<(Fit, f64)>);

/// Smaller is better: whether the label `name` is another one than the pool's, then which of the names it is.
type Fit = (bool, usize);

// === impl Page ===

impl<'p> Page<'p> {
    /// Of the samples of one metric that with the label `name` of this pool counts, else the first.
    pub(crate) fn new(pool: &'p str) -> Self {
        Self {
            pool,
            line: Vec::new(),
            too_long: false,
            ready: Best::default(),
            queue: Best::default(),
            kv: Best::default(),
        }
    }

    pub(crate) fn feed(&mut self, piece: &[u8]) {
        let mut lines = piece.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = lines.next() {
            self.too_long |= self.line.len() + part.len() > MAX_LINE;
            if !self.too_long {
                self.line.extend_from_slice(part);
            }
            if lines.peek().is_some() {
                self.end_line();
            }
        }
    }

    pub(crate) fn finish(mut self) -> Result<PoolLoad, &'static str> {
        self.end_line();
        let value = |best: Best| best.0.map(|(_, value)| value);
        Ok(PoolLoad {
            ready: value(self.ready).ok_or("it has no metric of ready endpoints")?,
            queue: value(self.queue).ok_or("it has no metric of the average queue")?,
            kv: value(self.kv).ok_or("it has no metric of the average KV cache utilization")?,
        })
    }

    fn end_line(&mut self) {
        if self.line.is_empty() && !self.too_long {
            return;
        }
        let line = std::mem::take(&mut self.line);
        if !std::mem::take(&mut self.too_long)
            && let Ok(line) = std::str::from_utf8(&line)
        {
            self.read(line.trim());
        }
        self.line = line;
        self.line.clear();
    }

    fn read(&mut self, line: &str) {
        let name_end = line.find(['{', ' ', '\t']).unwrap_or(line.len());
        let Some((name, rest)) = line.split_at_checked(name_end) else {
            return;
        };
        for (names, best) in [
            (READY, &mut self.ready),
            (QUEUE, &mut self.queue),
            (KV, &mut self.kv),
        ] {
            let Some(rank) = names.iter().position(|known| *known == name) else {
                continue;
            };
            if let Some((labels, value)) = split_sample(rest)
                && let Some(value) = number(value)
            {
                let is_other = label(labels, "name").as_deref() != Some(self.pool);
                best.offer((is_other, rank), value);
            }
        }
    }
}

impl Best {
    fn offer(&mut self, fit: Fit, value: f64) {
        if self.0.is_none_or(|(best, _)| fit < best) {
            self.0 = Some((fit, value));
        }
    }
}

/// What is behind a name as labels and what follows them.
fn split_sample(rest: &str) -> Option<(&str, &str)> {
    let rest = rest.trim_start();
    let Some(inside) = rest.strip_prefix('{') else {
        return Some(("", rest));
    };
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => {
                let (labels, behind) = inside.split_at_checked(at)?;
                return Some((labels, behind.strip_prefix('}')?));
            }
            _ => {}
        }
    }
    None
}

/// The value of a label, where it has no escapes: names of pools have none.
fn label(mut labels: &str, wanted: &str) -> Option<String> {
    loop {
        let (key, rest) = labels.split_once('=')?;
        let rest = rest.trim_start().strip_prefix('"')?;
        let mut is_escaped = false;
        let end = rest.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        })?;
        let (value, rest) = rest.split_at_checked(end)?;
        if key.trim().trim_start_matches(',').trim() == wanted {
            return Some(value.to_owned());
        }
        labels = rest.strip_prefix('"')?.trim_start();
    }
}

/// A finite number that is not negative; a time may follow it.
fn number(text: &str) -> Option<f64> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn read(text: &str) -> Result<(f64, f64, f64), &'static str> {
        let mut page = Page::new("llm");
        page.feed(text.as_bytes());
        let PoolLoad { ready, queue, kv } = page.finish()?;
        Ok((ready, queue, kv))
    }

    const OURS: &str = "\
# HELP llm_d_epp_ready_endpoints Ready endpoints of the pool.
# TYPE llm_d_epp_ready_endpoints gauge
llm_d_epp_ready_endpoints{name=\"llm\"} 3.0
inference_pool_ready_pods{name=\"llm\"} 4.0
llm_d_epp_average_kv_cache_utilization{name=\"llm\"} 0.25
llm_d_epp_average_queue_size{name=\"llm\"} 1.5
";

    #[rstest]
    #[case::newer_names(OURS, (3.0, 1.5, 0.25))]
    #[case::older_names("inference_pool_ready_pods{name=\"x\"} 2\r\ninference_pool_average_queue_size{name=\"x\"} 7 1700000000\r\n\
        inference_pool_average_kv_cache_utilization{name=\"x\"} 5e-1", (2.0, 7.0, 0.5))]
    #[case::without_labels("llm_d_epp_ready_endpoints 1\nllm_d_epp_average_queue_size\t0\nllm_d_epp_average_kv_cache_utilization 0\n",
        (1.0, 0.0, 0.0))]
    #[case::the_pool_of_that_name("inference_pool_ready_pods{name=\"other\"} 9\nllm_d_epp_ready_endpoints{name=\"other\"} 8\n\
        inference_pool_ready_pods{model=\"a}\\\",name=\\\"llm\",name=\"llm\"} 2\ninference_pool_average_queue_size 0\n\
        inference_pool_average_kv_cache_utilization 0\n", (2.0, 0.0, 0.0))]
    fn what_is_said_of_the_pool_is_read(#[case] text: &str, #[case] expected: (f64, f64, f64)) {
        assert_eq!(read(text), Ok(expected));
    }

    #[rstest]
    #[case::other_metrics(
        "vllm:num_requests_waiting 3\nllm_d_epp_ready_endpoints_total 3\n",
        "ready endpoints"
    )]
    #[case::no_number("llm_d_epp_ready_endpoints{name=\"llm\"} NaN\n", "ready endpoints")]
    #[case::labels_without_end("llm_d_epp_ready_endpoints{name=\"llm 3\n", "ready endpoints")]
    #[case::a_part("llm_d_epp_ready_endpoints 3\n", "queue")]
    fn a_page_without_all_three_says_what_is_missing(#[case] text: &str, #[case] said: &str) {
        let error = read(text).unwrap_err();
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_not_held() {
        let mut page = Page::new("llm");
        for _ in 0..100 {
            page.feed(&[b'x'; 4096]);
            assert!(page.line.capacity() <= 2 * MAX_LINE);
        }
        page.feed(b"\n");
        page.feed(OURS.as_bytes());
        assert_eq!(page.finish().map(|load| load.ready), Ok(3.0));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(cuts in prop::collection::vec(0..OURS.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut page = Page::new("llm");
            let mut from = 0;
            for cut in cuts.into_iter().chain([OURS.len()]) {
                page.feed(&OURS.as_bytes()[from..cut]);
                from = cut;
            }
            prop_assert_eq!(page.finish(), Ok(PoolLoad { ready: 3.0, queue: 1.5, kv: 0.25 }));
        }

        #[test]
        fn no_page_ends_the_program(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut page = Page::new("llm");
            page.feed(b"llm_d_epp_ready_endpoints{");
            page.feed(&text);
            let _ = page.finish();
        }
    }
}
