//! One request, from its pick to its end.

use std::{sync::Arc, sync::atomic::Ordering::Relaxed, time::Duration};

use moment::Moment;

use super::{definitions::Measure, series::Series};
use crate::tap::Usage;

/// Counts one request as running until dropped, and what is measured of it.
#[derive(Debug)]
pub(crate) struct Running {
    series: Arc<Series>,
    first_byte: Option<FirstByte>,
    last_chunk: Option<Moment>,
    /// Absent: no part of the response's body was seen.
    response_bytes: Option<u64>,
    output_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct FirstByte {
    after: Duration,
    streaming: bool,
}

// === impl Running ===

impl Running {
    pub(super) fn new(series: Arc<Series>) -> Self {
        Self {
            series,
            first_byte: None,
            last_chunk: None,
            response_bytes: None,
            output_tokens: 0,
        }
    }

    /// The response failed with this HTTP status.
    pub(crate) fn failed(&self, status: u16) {
        self.series.failed(status);
    }

    /// The first byte of the response's body came this long after the first message. `streaming`: the client wants the
    /// response as events.
    pub(crate) fn first_byte(&mut self, after: Duration, streaming: bool) {
        let measure = if streaming {
            Measure::FirstByteOfStream
        } else {
            Measure::FirstByte
        };
        self.series.observe_time(measure, after);
        self.first_byte = Some(FirstByte { after, streaming });
    }

    /// A part of the response's body came; it may be empty.
    pub(crate) fn chunk(&mut self, bytes: usize, now: Moment) {
        *self.response_bytes.get_or_insert(0) += bytes as u64;
        if bytes == 0 {
            return;
        }
        let streaming = self.first_byte.is_some_and(|first| first.streaming);
        if let Some(last) = self.last_chunk.replace(now).filter(|_| streaming) {
            self.series
                .observe_time(Measure::BetweenChunks, now.since(last));
        }
    }

    /// Whether a byte of the response's body was seen.
    pub(crate) fn has_body(&self) -> bool {
        self.last_chunk.is_some()
    }

    /// What the server says of the request's tokens.
    pub(crate) fn used(&mut self, usage: Usage) {
        let Usage {
            input_tokens,
            output_tokens,
            cached_tokens,
        } = usage;
        self.output_tokens = output_tokens.unwrap_or(self.output_tokens);
        for (measure, tokens) in [
            (Measure::InputTokens, input_tokens.filter(|some| *some > 0)),
            (
                Measure::OutputTokens,
                output_tokens.filter(|some| *some > 0),
            ),
            (Measure::CachedTokens, cached_tokens),
        ] {
            if let Some(tokens) = tokens {
                self.series.observe(measure, tokens);
            }
        }
    }

    /// The request is complete, this long after the first message.
    pub(crate) fn took(self, duration: Duration) {
        let Self {
            series,
            first_byte,
            response_bytes,
            output_tokens,
            last_chunk: _,
        } = &self;
        series.observe_time(Measure::Duration, duration);
        if let Some(bytes) = response_bytes {
            series.observe(Measure::ResponseSize, *bytes);
        }
        if *output_tokens > 0 {
            series.observe_time(Measure::TimePerToken, per(duration, *output_tokens));
        }
        if let Some(first) = first_byte.filter(|first| first.streaming && *output_tokens > 1) {
            let streamed = duration.saturating_sub(first.after);
            series.observe_time(
                Measure::StreamedTimePerToken,
                per(streamed, output_tokens - 1),
            );
        }
    }
}

fn per(duration: Duration, tokens: u64) -> Duration {
    duration / u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl Drop for Running {
    fn drop(&mut self) {
        self.series.row.running.fetch_sub(1, Relaxed);
    }
}
