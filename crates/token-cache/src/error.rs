//! Why a cache does not do what it is asked for.

use http_call::CallError;

use crate::memory::PutError;

/// Why. No variant repeats a key, an id or a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another value has the key.
    #[error("the key has another value")]
    Conflict,
    /// An entry is larger than the cache takes.
    #[error("it is larger than the token cache takes")]
    TooLarge,
    /// It was there, and is not what was put.
    #[error("what is there is damaged")]
    Damaged,
    /// The cache answers in another way than it should, as to a wrong bearer token.
    #[error("the token cache answers with status {0}")]
    Refused(u16),
    /// No answer in time.
    #[error("the token cache does not answer in time")]
    Late,
    /// Too many operations wait.
    #[error("too many operations wait for the token cache")]
    Busy,
    /// The last operations failed: the cache is left alone for some seconds.
    #[error("the token cache is not asked for some seconds, as it failed")]
    Open,
    /// It cannot be reached, or says that it cannot work.
    #[error("the token cache cannot be used: {0}")]
    Unavailable(String),
}

// === impl StoreError ===

impl StoreError {
    /// All that [`reason`](Self::reason) returns.
    pub(crate) const REASONS: [&str; 8] = [
        "conflict",
        "too-large",
        "damaged",
        "refused",
        "timeout",
        "busy",
        "breaker-open",
        "unavailable",
    ];

    /// Stable: metric label and log field.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::TooLarge => "too-large",
            Self::Damaged => "damaged",
            Self::Refused(_) => "refused",
            Self::Late => "timeout",
            Self::Busy => "busy",
            Self::Open => "breaker-open",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

impl From<PutError> for StoreError {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Conflict => Self::Conflict,
            PutError::TooLarge => Self::TooLarge,
        }
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Open => Self::Open,
            CallError::Busy => Self::Busy,
            CallError::Late => Self::Late,
            // no entry is so large
            CallError::TooLarge => Self::Damaged,
            CallError::Connect(why) | CallError::Broken(why) => Self::Unavailable(why),
        }
    }
}
