//! The id under which a request is found in the logs of all that it passes.

use std::fmt;

use rand::{Rng, RngExt};

use super::rules::Headers;

/// A request's id: the one that it came with, or a fresh one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceId(Box<str>);

/// The first that a request has counts.
const HEADERS: [&str; 3] = ["x-request-id", "x-trace-id", "x-amzn-trace-id"];

/// `version-trace-parent-flags`, of which only the trace names the request.
const TRACEPARENT: &str = "traceparent";

/// Bytes: ids go into each line of the logs, and clients choose them.
const MAX_LENGTH: usize = 128;

// === impl TraceId ===

impl TraceId {
    /// Of a request with these headers. Ids that are no 1 to 128 visible ASCII characters do not count.
    pub fn of<R: Rng + ?Sized>(headers: &Headers<'_>, rng: &mut R) -> Self {
        let named = HEADERS.iter().filter_map(|name| headers.get(name));
        let traced = headers.get(TRACEPARENT).and_then(trace);
        let mut ids = named.chain(traced).filter_map(readable);
        ids.next()
            .map_or_else(|| Self::fresh(rng), |id| Self(id.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn fresh<R: Rng + ?Sized>(rng: &mut R) -> Self {
        let uuid = uuid::Builder::from_random_bytes(rng.random()).into_uuid();
        Self(uuid.to_string().into())
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn readable(id: &[u8]) -> Option<&str> {
    let is_readable =
        !id.is_empty() && id.len() <= MAX_LENGTH && id.iter().all(u8::is_ascii_graphic);
    str::from_utf8(id).ok().filter(|_| is_readable)
}

/// The trace of a `traceparent`, 32 hex digits that are not all 0.
fn trace(parent: &[u8]) -> Option<&[u8]> {
    let trace = parent.split(|byte| *byte == b'-').nth(1)?;
    let is_trace = trace.len() == 32 && trace.iter().all(u8::is_ascii_hexdigit);
    (is_trace && trace.iter().any(|digit| *digit != b'0')).then_some(trace)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::{SeedableRng, rngs::StdRng};
    use rstest::rstest;

    use super::*;

    fn mk_id(fields: &[(&'static str, &'static str)]) -> String {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect();
        let id = TraceId::of(&Headers::new(&fields), &mut StdRng::seed_from_u64(1));
        id.to_string()
    }

    const PARENT: (&str, &str) = (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );

    #[rstest]
    #[case(&[("x-amzn-trace-id", "Root=1"), ("x-trace-id", "t"), ("x-request-id", "r")], "r")]
    #[case(&[PARENT, ("x-amzn-trace-id", "Root=1"), ("x-trace-id", "t")], "t")]
    #[case(&[PARENT, ("x-amzn-trace-id", "Root=1")], "Root=1")]
    #[case(&[PARENT], "0af7651916cd43dd8448eb211c80319c")]
    #[case::not_readable(&[("x-request-id", "a b"), ("x-trace-id", "t")], "t")]
    #[case::empty(&[("x-request-id", ""), ("x-trace-id", "t")], "t")]
    fn the_first_id_of_a_request_counts(
        #[case] fields: &[(&'static str, &'static str)],
        #[case] want: &str,
    ) {
        assert_eq!(mk_id(fields), want);
    }

    #[rstest]
    #[case(&[])]
    #[case(&[("traceparent", "00-00000000000000000000000000000000-b7ad6b7169203331-01")])]
    #[case(&[("traceparent", "junk")])]
    fn a_request_without_an_id_gets_a_uuid(#[case] fields: &[(&'static str, &'static str)]) {
        let id = mk_id(fields);
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'), "{id}");
    }
}
