//! Any bytes as a metrics page.

use std::sync::Arc;

use scheduling::Scraped;

use super::{EngineTable, scanner::Scanner, spec::MetricSpec};
use crate::fuzz::{Choices, cut};

const ENGINES: [&str; 4] = ["vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm"];

pub(crate) fn run(data: &[u8]) {
    let mut choices = Choices::new(data);
    let engine = usize::from(choices.byte()).checked_rem(ENGINES.len());
    let sizes = choices.take(4);
    let page = choices.rest();
    if let Ok(text) = std::str::from_utf8(page)
        && let Ok(spec) = MetricSpec::parse(text)
    {
        assert!(text.contains(spec.name()), "{text:?}");
    }
    let engine = engine.and_then(|engine| ENGINES.get(engine));
    let engine = engine.copied().unwrap_or_default();
    let table = EngineTable::default();
    let mut scanner = Scanner::new(Arc::clone(table.engine(engine)));
    let mut scan = |sizes: Option<&[u8]>| {
        match sizes {
            Some(sizes) => cut(page, sizes).for_each(|part| scanner.feed(part)),
            None => scanner.feed(page),
        }
        let scraped = scanner.finish();
        scanner.reset(); // else adapters are only there when they change
        scraped
    };
    let whole = scan(None);
    check(&whole);
    for sizes in [sizes, &[]] {
        assert_eq!(scan(Some(sizes)), whole, "cut by {sizes:?}");
    }
}

/// Numbers that others may calculate with.
fn check(scraped: &Scraped) {
    let Scraped {
        waiting,
        running,
        kv,
        started,
        ..
    } = scraped;
    for value in [waiting, running, kv, started].into_iter().flatten() {
        assert!(value.is_finite() && *value >= 0.0, "{scraped:?}");
    }
    assert!(kv.is_none_or(|kv| kv <= 1.0), "{scraped:?}");
}
