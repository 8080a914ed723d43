//! What is measured of a request: names, buckets and meaning.
//!
//! Names, buckets and meaning are the reference's.

use histogram::Shape;

/// What one histogram of a series holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Duration,
    RequestSize,
    ResponseSize,
    InputTokens,
    OutputTokens,
    CachedTokens,
    TimePerToken,
    FirstByte,
    FirstByteOfStream,
    StreamedTimePerToken,
    BetweenChunks,
}

/// Histograms of one name.
pub(super) struct Definition {
    /// After `llm_d_epp_`.
    pub name: &'static str,
    /// The name before, after `inference_objective_`.
    pub former: Option<&'static str>,
    pub help: &'static str,
    /// Each with its value of the label `streaming`.
    pub parts: &'static [(Measure, Option<&'static str>)],
}

/// 5 ms to 1 h: a refused request and a long generation.
static DURATIONS: Shape = Shape::micros(&[
    5_000,
    25_000,
    50_000,
    100_000,
    200_000,
    400_000,
    600_000,
    800_000,
    1_000_000,
    1_250_000,
    1_500_000,
    2_000_000,
    3_000_000,
    4_000_000,
    5_000_000,
    6_000_000,
    8_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    45_000_000,
    60_000_000,
    120_000_000,
    180_000_000,
    240_000_000,
    300_000_000,
    360_000_000,
    480_000_000,
    600_000_000,
    900_000_000,
    1_200_000_000,
    1_800_000_000,
    2_700_000_000,
    3_600_000_000,
]);

/// To 2 min: a client waits no longer for a first token.
static FIRST_BYTES: Shape = Shape::micros(&[
    5_000,
    25_000,
    50_000,
    100_000,
    200_000,
    400_000,
    600_000,
    800_000,
    1_000_000,
    1_250_000,
    1_500_000,
    2_000_000,
    3_000_000,
    4_000_000,
    5_000_000,
    6_000_000,
    8_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    45_000_000,
    60_000_000,
    120_000_000,
]);

/// A few milliseconds to seconds per token, prompt included.
static TIMES_PER_TOKEN: Shape = Shape::micros(&[
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000,
    5_000_000, 10_000_000,
]);

/// 0.5 ms to 2 s.
static STREAMED_TIMES_PER_TOKEN: Shape = Shape::micros(&[
    500, 2_050, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 125_000, 150_000, 200_000,
    300_000, 400_000, 500_000, 600_000, 800_000, 1_000_000, 2_000_000,
]);

/// 1 ms to 2 s.
static BETWEEN_CHUNKS: Shape = Shape::micros(&[
    1_000, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 150_000, 200_000, 300_000,
    500_000, 750_000, 1_000_000, 2_000_000,
]);

/// 64 B to 1 GiB by powers of two.
static REQUEST_SIZES: Shape = Shape::units(&powers_of_two::<25>(6));

/// 1 B to 64 KiB, 2 B and 4 B left out: 8192 tokens of 4 bytes are 32 KiB.
static RESPONSE_SIZES: Shape = Shape::units(&[
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
]);

/// To a million, the longest prompts.
static PROMPT_TOKENS: Shape = Shape::units(&[
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144,
    524_288, 1_048_576,
]);

/// To 8192: most answers are shorter.
static OUTPUT_TOKENS: Shape =
    Shape::units(&[1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]);

/// 0.1 ms to the time that a request may wait by default.
pub(super) static WAITS: Shape = Shape::micros(&[
    100, 500, 1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
]);

/// All histograms of requests.
pub(super) static DEFINITIONS: [Definition; 10] = [
    Definition {
        name: "request_duration_seconds",
        former: Some("request_duration_seconds"),
        help: "From the first message to the end of the response",
        parts: &[(Measure::Duration, None)],
    },
    Definition {
        name: "request_size_bytes",
        former: Some("request_sizes"),
        help: "Size of the request body in bytes, where it is read",
        parts: &[(Measure::RequestSize, None)],
    },
    Definition {
        name: "response_size_bytes",
        former: Some("response_sizes"),
        help: "Size of the response body in bytes, where it is seen",
        parts: &[(Measure::ResponseSize, None)],
    },
    Definition {
        name: "request_input_tokens",
        former: Some("input_tokens"),
        help: "Tokens of the prompt, as the server counted them",
        parts: &[(Measure::InputTokens, None)],
    },
    Definition {
        name: "request_output_tokens",
        former: Some("output_tokens"),
        help: "Tokens generated, as the server counted them",
        parts: &[(Measure::OutputTokens, None)],
    },
    Definition {
        name: "request_cached_tokens",
        former: Some("prompt_cached_tokens"),
        help: "Tokens of the prompt that the server had cached",
        parts: &[(Measure::CachedTokens, None)],
    },
    Definition {
        name: "request_ntpot_seconds",
        former: Some("normalized_time_per_output_token_seconds"),
        help: "Duration of a request divided by its output tokens",
        parts: &[(Measure::TimePerToken, None)],
    },
    Definition {
        name: "request_ttft_seconds",
        former: None,
        help: "From the first message to the first byte of the response's body",
        parts: &[
            (Measure::FirstByte, Some("false")),
            (Measure::FirstByteOfStream, Some("true")),
        ],
    },
    Definition {
        name: "request_streaming_tpot_seconds",
        former: None,
        help: "From the first byte to the end of a streamed response, divided by its output tokens but one",
        parts: &[(Measure::StreamedTimePerToken, None)],
    },
    Definition {
        name: "request_streaming_itl_seconds",
        former: None,
        help: "Between two parts of a streamed response's body",
        parts: &[(Measure::BetweenChunks, None)],
    },
];

// === impl Measure ===

impl Measure {
    /// In the order of [`Measure::index`].
    pub(super) const ALL: [Self; 11] = [
        Self::Duration,
        Self::RequestSize,
        Self::ResponseSize,
        Self::InputTokens,
        Self::OutputTokens,
        Self::CachedTokens,
        Self::TimePerToken,
        Self::FirstByte,
        Self::FirstByteOfStream,
        Self::StreamedTimePerToken,
        Self::BetweenChunks,
    ];

    /// Its place in an array of all.
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    pub(super) fn shape(self) -> &'static Shape {
        match self {
            Self::Duration => &DURATIONS,
            Self::RequestSize => &REQUEST_SIZES,
            Self::ResponseSize => &RESPONSE_SIZES,
            Self::InputTokens | Self::CachedTokens => &PROMPT_TOKENS,
            Self::OutputTokens => &OUTPUT_TOKENS,
            Self::TimePerToken => &TIMES_PER_TOKEN,
            Self::FirstByte | Self::FirstByteOfStream => &FIRST_BYTES,
            Self::StreamedTimePerToken => &STREAMED_TIMES_PER_TOKEN,
            Self::BetweenChunks => &BETWEEN_CHUNKS,
        }
    }
}

const fn powers_of_two<const N: usize>(first: u32) -> [u64; N] {
    let mut powers = [0; N];
    let mut at = 0;
    while at < N {
        powers[at] = 1 << (first as usize + at);
        at += 1;
    }
    powers
}
