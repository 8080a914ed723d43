#![cfg(test)]
//! What reading metrics pages allocates: a binary of its own, for it counts in the allocator.

use std::{fmt::Write, hint::black_box};

use allocation_counter::measure;
use epp::{EngineTable, Scanner};

/// A page of vLLM, 30 KB.
fn mk_page() -> String {
    let labels = r#"engine="0",model_name="llama""#;
    let mut page = format!(
        "vllm:num_requests_running{{{labels}}} 12.0\nvllm:num_requests_waiting{{{labels}}} 3.0\n\
         vllm:kv_cache_usage_perc{{{labels}}} 0.42\n\
         vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"c\"}} 1.7e9\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"27000\"}} 1.0\n"
    );
    let name = "vllm:time_to_first_token_seconds_bucket";
    for bound in 0..400 {
        writeln!(page, "{name}{{{labels},le=\"{bound}.0\"}} {bound}.0").unwrap();
    }
    assert!(page.len() > 30_000);
    page
}

/// In frames, as it comes: lines are cut by them.
fn read(scanner: &mut Scanner, page: &str) {
    for frame in page.as_bytes().chunks(4096) {
        scanner.feed(frame);
    }
    assert_eq!(black_box(scanner.finish()).waiting, Some(3.0));
}

#[test]
fn a_page_like_the_two_before_is_read_without_allocating() {
    let (page, mut scanner) = (mk_page(), EngineTable::default().scanner("vllm"));
    // the names of adapters have two buffers: those reported last, and those of this page
    let first = measure(|| (0..2).for_each(|_| read(&mut scanner, &page)));
    assert!(first.count_total > 0, "buffers grow: {first:?}");
    let others = measure(|| (0..10).for_each(|_| read(&mut scanner, &page)));
    assert_eq!(others.count_total, 0, "{others:?}");
}
