//! By what a caller finds its request again.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::{Builder, fmt::Hyphenated};

/// Where the reply has it.
pub(crate) const X_TRACE_ID: HeaderName = HeaderName::from_static("x-trace-id");

/// Where a caller sends one, best first.
static SENT: [HeaderName; 2] = [
    HeaderName::from_static("traceid"),
    HeaderName::from_static("x-request-id"),
];

/// Names one request in its reply and in logs.
#[derive(Clone, Debug)]
pub(crate) enum TraceId {
    /// By the caller: text.
    Sent(HeaderValue),
    /// By nobody: a UUID.
    Made([u8; Hyphenated::LENGTH]),
}

// === impl TraceId ===

impl TraceId {
    /// The first that the caller sent, else a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |value: &&HeaderValue| value.to_str().is_ok_and(|text| !text.is_empty());
        let sent = SENT.iter().find_map(|name| headers.get(name).filter(text));
        sent.map_or_else(Self::make, |value| Self::Sent(value.clone()))
    }

    fn make() -> Self {
        let mut text = [0; Hyphenated::LENGTH];
        let uuid = Builder::from_random_bytes(rand::random()).into_uuid();
        uuid.as_hyphenated().encode_lower(&mut text);
        Self::Made(text)
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Sent(value) => value.to_str().unwrap_or_default(),
            Self::Made(text) => std::str::from_utf8(text).unwrap_or_default(),
        }
    }

    /// For the reply's header.
    pub(crate) fn to_header(&self) -> HeaderValue {
        match self {
            Self::Sent(value) => value.clone(),
            Self::Made(text) => {
                HeaderValue::from_bytes(text).unwrap_or(HeaderValue::from_static(""))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(headers: &[(&'static str, &'static [u8])]) -> String {
        let headers = headers.iter().map(|(name, value)| {
            let value = HeaderValue::from_bytes(value).unwrap();
            (HeaderName::from_static(name), value)
        });
        TraceId::of(&headers.collect()).as_str().to_owned()
    }

    #[test]
    fn the_callers_own_name_comes_first_and_one_that_is_no_text_is_none() {
        assert_eq!(id_of(&[("x-request-id", b"r"), ("traceid", b"t")]), "t");
        assert_eq!(id_of(&[("x-request-id", b"r"), ("traceid", b"")]), "r");
        let made = id_of(&[("x-request-id", b"\xff")]);
        let form: Vec<usize> = made.split('-').map(str::len).collect();
        assert_eq!(form, [8, 4, 4, 4, 12], "{made}");
        assert_ne!(made, id_of(&[]));
    }
}
