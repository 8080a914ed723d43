//! What three endpoint pickers know together.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use testbed::standalone::MODEL;

use crate::stand::{SERVERS, SOON, Stand, had_requests, prompt, several_had_more, shared_picks};

/// A multiple of the number of servers.
const REQUESTS: u64 = 60;

pub(crate) async fn a_repeated_prompt_goes_where_it_is_cached_whichever_picker_has_it(
    stand: &Stand,
) -> Result<()> {
    let prompt = prompt("a lighthouse keeper", 60);
    let first = stand.requests.chat(MODEL, &prompt).await?;
    ensure!(first.status == 200, "{}", first.text());
    let before = had_requests(&stand.standalone).await?;
    for nth in 0..9 {
        let again = stand.requests.chat(MODEL, &prompt).await?;
        ensure!(
            again.pod() == first.pod(),
            "{nth}: {:?}, not {:?}",
            again.pod(),
            first.pod()
        );
        let cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        ensure!(cached.is_some_and(|it| it > 0), "{nth}: {}", again.text());
    }
    several_had_more(&stand.standalone, &before).await
}

pub(crate) async fn requests_of_three_pickers_at_once_spread_over_idle_servers(
    stand: &Stand,
) -> Result<()> {
    stand.counts(0, SOON).await?;
    let before = had_requests(&stand.standalone).await?;
    let shared = shared_picks(&stand.standalone).await?;
    // Requests that go on, so that none ends before the last is picked for. Their prompts are of two bytes: that of a server without
    // a first token weighs less than a request, and how soon servers answer does not matter.
    let prompts: Vec<String> = (0..REQUESTS).map(|nth| format!("{nth:02}")).collect();
    let streams = try_join_all(prompts.iter().map(|prompt| stand.begin_with(prompt))).await?;
    let mut counts = BTreeMap::<&str, u64>::new();
    for stream in &streams {
        *counts.entry(stream.pod().unwrap_or("-")).or_default() += 1;
    }
    let most = counts.values().max().copied().unwrap_or(0);
    let least = counts.values().min().copied().unwrap_or(0);
    // The Metadata-Center makes one pick after the other, each at a server with the fewest requests. On a busy machine one may be
    // late, and a picker makes it by what it knows itself: one server may have one too many then, and one that was reserved lacks one.
    let shared = shared_picks(&stand.standalone)
        .await?
        .saturating_sub(shared);
    let late = REQUESTS.saturating_sub(shared);
    ensure!(
        counts.len() == usize::from(SERVERS) && most - least <= 2 * late,
        "{late} picks were late: {counts:?}"
    );
    several_had_more(&stand.standalone, &before).await
}

pub(crate) async fn the_sum_of_charges_is_that_of_live_requests(stand: &Stand) -> Result<()> {
    stand.counts(0, SOON).await?;
    let mut streams = stand.long_answers(9).await?;
    stand.counts(9, SOON).await?;
    streams.truncate(4);
    stand.counts(4, SOON).await?;
    drop(streams);
    stand.counts(0, SOON).await
}
