//! Servers that speak what the client speaks: only the model's name changes.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    backend::Protocol,
    error::{Failure, Refusal},
    transcoder::{BodyEdit, Edit, Piece, RequestData, ResponseHead, Target, Transcoder},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Passthrough {
    protocol: Protocol,
    data: RequestData,
    /// Where the model's JSON string is, quotes included.
    model_at: Range<usize>,
}

/// What both protocols call the same.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(default)]
    stream: Option<bool>,
}

// === impl Passthrough ===

impl Passthrough {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            data: RequestData::default(),
            model_at: 0..0,
        }
    }

    fn refusal(&self, param: Option<&str>, problem: &str) -> Refusal {
        Refusal {
            message: format!("the {} request {problem}", self.protocol.name()),
            param: param.map(str::to_owned),
        }
    }
}

impl Transcoder for Passthrough {
    fn read_request(&mut self, _path: &str, body: &[u8]) -> Result<RequestData, Refusal> {
        let text = str::from_utf8(body).map_err(|_| self.refusal(None, "is no UTF-8"))?;
        let raw: Raw<'_> = serde_json::from_str(text)
            .map_err(|error| self.refusal(None, &format!("cannot be read: {error}")))?;
        let model = raw.model.map(RawValue::get).unwrap_or_default();
        let name: String = serde_json::from_str(model)
            .map_err(|_| self.refusal(Some("model"), "names no model: set it to a string"))?;
        let start = model.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        self.model_at = start..start.saturating_add(model.len());
        self.data = RequestData {
            model: name,
            stream: raw.stream.unwrap_or(false),
        };
        Ok(self.data.clone())
    }

    fn encode_request(&mut self, target: &Target<'_>) -> Result<Edit, Refusal> {
        // Here an adapter is a model of its own name.
        let name = target.adapter.unwrap_or(target.model);
        if name == self.data.model {
            return Ok(Edit::default());
        }
        let json = serde_json::Value::from(name).to_string();
        Ok(Edit {
            path: None,
            body: BodyEdit::Splice(self.model_at.clone(), json.into()),
        })
    }

    fn read_response_headers(&mut self, _status: u16, content_type: Option<&str>) -> ResponseHead {
        ResponseHead {
            stream: content_type.map_or(self.data.stream, is_event_stream),
            rewritten: None,
        }
    }

    fn read_response(&mut self, chunk: Bytes, end: bool) -> Piece {
        Piece {
            data: chunk,
            last: end,
            ..Piece::default()
        }
    }

    /// What was passed on so far may end anywhere: nothing fits behind it.
    fn fail(&mut self, failure: Failure) -> Piece {
        Piece {
            last: true,
            failure: Some(failure),
            ..Piece::default()
        }
    }
}

/// Whether a content type is that of events, whatever its parameters.
pub(crate) fn is_event_stream(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("text/event-stream")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        Protocol::OpenAi,
        r#"{"model" : "a\u0062", "stream":true, "x":[1]}"#,
        true
    )]
    #[case(
        Protocol::Anthropic,
        r#"{"max_tokens":5,"model":"ab","messages":[]}"#,
        false
    )]
    fn only_the_model_is_rewritten(
        #[case] protocol: Protocol,
        #[case] body: &str,
        #[case] stream: bool,
    ) {
        let mut passthrough = Passthrough::new(protocol);
        let data = passthrough
            .read_request("/v1/any", body.as_bytes())
            .unwrap();
        assert_eq!((data.model.as_str(), data.stream), ("ab", stream));
        let target = |model, adapter| Target { model, adapter };
        let same = passthrough.encode_request(&target("ab", None)).unwrap();
        assert_eq!(same, Edit::default());
        let edit = passthrough
            .encode_request(&target("m", Some("sql\"1")))
            .unwrap();
        let BodyEdit::Splice(at, with) = edit.body else {
            panic!("{edit:?}");
        };
        let mut spliced = body.to_owned();
        spliced.replace_range(at, str::from_utf8(&with).unwrap());
        let wanted = body.replace(r#""a\u0062""#, r#""sql\"1""#);
        assert_eq!(spliced, wanted.replace(r#""ab""#, r#""sql\"1""#));
        assert_eq!(edit.path, None);
    }

    #[test]
    fn responses_pass_as_they_are() {
        let mut passthrough = Passthrough::new(Protocol::Anthropic);
        let head = passthrough.read_response_headers(200, Some("text/event-stream; charset=utf-8"));
        assert_eq!((head.stream, head.rewritten), (true, None));
        let chunk = Bytes::from_static(b"event: message_start\ndata: {");
        let piece = passthrough.read_response(chunk.clone(), false);
        assert_eq!((piece.data, piece.last), (chunk, false));
        assert!(passthrough.read_response(Bytes::new(), true).last);
    }

    #[rstest]
    #[case("{}", Some("model"))]
    #[case(r#"{"model":5}"#, Some("model"))]
    #[case(r#"{"model":"a","model":"b"}"#, None)]
    fn requests_without_a_model_are_refused(#[case] body: &str, #[case] param: Option<&str>) {
        let refusal = Passthrough::new(Protocol::OpenAi).read_request("/", body.as_bytes());
        assert_eq!(refusal.unwrap_err().param.as_deref(), param);
    }
}
