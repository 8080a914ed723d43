//! What clients and servers speak, as configurations name it.

/// What clients speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// `openai`: chat completions, completions, responses and embeddings.
    #[default]
    OpenAi,
    /// `anthropic`: messages.
    Anthropic,
}

/// What serves the requests of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `vllm`, or nothing.
    #[default]
    Vllm,
    /// `sglang`.
    Sglang,
    /// `trt-llm`, `tensorrt-llm` or `tensorrt`.
    TrtLlm,
    /// `triton`: Triton with its vLLM backend.
    Triton,
    /// Another one, by its name; it is expected to speak the protocol of the clients.
    Other(String),
}

/// How backends that do not speak the protocol are spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcoders {
    /// Triton with its vLLM backend.
    pub triton: Triton,
    /// TensorRT-LLM.
    pub trt_llm: TrtLlm,
}

/// `transcoders.triton`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Triton {
    /// How messages become the text of a prompt.
    pub chat_template: ChatTemplate,
    /// Whether to request the finish reason and the numbers of tokens, which Triton supports from 24.12 on.
    pub extra_outputs: bool,
}

/// `transcoders.trt-llm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrtLlm {
    /// What its server speaks.
    pub wire: Wire,
    /// How messages become the text of a prompt.
    pub chat_template: ChatTemplate,
    /// Tokens of an answer to a request that sets no limit: the backend needs one.
    pub default_max_tokens: u32,
    /// What an event of a stream holds.
    pub stream_output: StreamOutput,
    /// Whether its server writes the prompt before the answer, and cannot be configured to leave it out.
    pub repeats_prompt: bool,
}

/// How messages become the text of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChatTemplate {
    /// A line `role: text` each, then `assistant:`.
    #[default]
    Plain,
    /// `ChatML`, with its markers of start and end.
    ChatMl,
}

/// What a server of TensorRT-LLM speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's API, as `trtllm-serve` does.
    #[default]
    OpenAi,
    /// Triton's generate extension.
    Triton,
}

/// What an event of a stream holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamOutput {
    /// The text since the event before.
    #[default]
    Delta,
    /// All text so far.
    Cumulative,
}

// === impl Protocol ===

impl Protocol {
    /// Protocols by name.
    pub const NAMES: [(&str, Self); 2] = [("openai", Self::OpenAi), ("anthropic", Self::Anthropic)];

    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

// === impl Backend ===

impl Backend {
    /// Backends by name.
    pub const NAMES: [(&str, Self); 7] = [
        ("", Self::Vllm),
        ("vllm", Self::Vllm),
        ("sglang", Self::Sglang),
        ("trt-llm", Self::TrtLlm),
        ("tensorrt-llm", Self::TrtLlm),
        ("tensorrt", Self::TrtLlm),
        ("triton", Self::Triton),
    ];

    /// The backend of this name.
    pub fn named(name: &str) -> Self {
        let known = Self::NAMES.into_iter().find(|(known, _)| *known == name);
        known.map_or_else(|| Self::Other(name.to_owned()), |(_, backend)| backend)
    }

    /// Its one name, for logs.
    pub fn name(&self) -> &str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TrtLlm => "trt-llm",
            Self::Triton => "triton",
            Self::Other(name) => name,
        }
    }

    /// Whether requests go to it as clients send them, but for the model's name.
    pub fn is_passthrough(&self, transcoders: &Transcoders) -> bool {
        match self {
            Self::Vllm | Self::Sglang | Self::Other(_) => true,
            Self::TrtLlm => transcoders.trt_llm.wire == Wire::OpenAi,
            Self::Triton => false,
        }
    }
}

// === impl Triton ===

impl Default for Triton {
    fn default() -> Self {
        Self {
            chat_template: ChatTemplate::default(),
            extra_outputs: true,
        }
    }
}

// === impl TrtLlm ===

impl Default for TrtLlm {
    fn default() -> Self {
        Self {
            wire: Wire::default(),
            chat_template: ChatTemplate::default(),
            default_max_tokens: 512,
            stream_output: StreamOutput::default(),
            repeats_prompt: false,
        }
    }
}
