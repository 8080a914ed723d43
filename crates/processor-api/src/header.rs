//! Names of headers, and the arithmetic of deadlines between hops.

use std::time::Duration;

/// Says which version of these formats the sender speaks; both ways.
pub const API_HEADER: &str = "x-isthmus-api";
/// Its value.
pub const API_VERSION: &str = "1";
/// Milliseconds that are left to the caller.
pub const DEADLINE_HEADER: &str = "x-isthmus-deadline-ms";
/// The model that the client asked for, to the worker and to routes that match on it.
pub const MODEL_HEADER: &str = "x-gateway-model-name";
/// `host:port` of the chosen worker.
pub const DESTINATION_HEADER: &str = "x-gateway-destination-endpoint";
/// The key of the prompt's ids in the token cache, to the worker.
pub const TOKENS_KEY_HEADER: &str = "x-req-tokens-key";

/// Which data parallel rank behind its address an engine runs a request on: vLLM and `SGLang` read it.
pub const DP_RANK_HEADER: &str = "x-data-parallel-rank";
/// Names the request, to all.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// Of an entry of the token cache: the model whose ids these are.
pub const TOKENS_MODEL_HEADER: &str = "x-tokens-model";
/// Of an entry of the token cache: the tokenizer that made them.
pub const TOKENS_TOKENIZER_HEADER: &str = "x-tokens-tokenizer";
/// Of an entry of the token cache: how many there are.
pub const TOKENS_COUNT_HEADER: &str = "x-tokens-count";

/// What a hop leaves to its caller: the way back, and reading the answer.
const MARGIN: Duration = Duration::from_millis(10);

/// How long a hop may take: `own`, and less than what the caller has left. A header that is no number counts as absent.
pub fn budget(own: Duration, header: Option<&[u8]>) -> Duration {
    let left = header
        .and_then(|value| str::from_utf8(value).ok())
        .and_then(|value| value.trim().parse().ok())
        .map(Duration::from_millis);
    left.map_or(own, |left| own.min(left.saturating_sub(MARGIN)))
}

/// The header's value for a hop that has `left`; rounded down, so that it never promises more.
pub fn deadline_value(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_header(None, 5000)]
    #[case::caller_has_more(Some("60000"), 5000)]
    #[case::caller_has_less(Some("300"), 290)]
    #[case::spaces(Some(" 300 "), 290)]
    #[case::nothing_left(Some("7"), 0)]
    #[case::no_number(Some("soon"), 5000)]
    #[case::negative(Some("-1"), 5000)]
    #[case::beyond_any_clock(Some("18446744073709551615"), 5000)]
    fn a_hop_never_waits_longer_than_its_caller(#[case] header: Option<&str>, #[case] ms: u64) {
        let budget = budget(Duration::from_secs(5), header.map(str::as_bytes));
        assert_eq!(budget, Duration::from_millis(ms));
    }

    #[test]
    fn a_started_millisecond_is_not_promised() {
        assert_eq!(deadline_value(Duration::from_micros(1_999)), 1);
    }
}
