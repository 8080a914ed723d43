//! A question to the Processor, in bytes.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};
use processor_api::{ProcessRequest, REQUEST_ID_HEADER, ReservationId};

use super::Switches;
use crate::{body::Api, extproc::RequestHead};

const TRACEPARENT: &str = "traceparent";

/// Headers that always go along.
const ALONG: [&str; 4] = [REQUEST_ID_HEADER, TRACEPARENT, "tracestate", "x-session-id"];

/// Of those also to the Processor's server, which may be traced by what knows no more than HTTP.
const OUTSIDE: [&str; 3] = [REQUEST_ID_HEADER, TRACEPARENT, "tracestate"];

/// A question that only lacks the trace that it belongs to, and its name at the Router.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) head: QuestionHead,
    /// The client's body as it was changed, in parts.
    pub(crate) body: Vec<Bytes>,
    /// What the Router is to choose by; none: it is not asked.
    pub(crate) route: Option<Choice>,
}

/// What is known from the request's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuestionHead {
    path: Option<String>,
    /// Names in lower case.
    headers: BTreeMap<String, String>,
}

/// What the Router chooses by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Absent: all.
    pub(crate) candidates: Option<Vec<String>>,
    pub(crate) priority: i32,
    pub(crate) max_endpoints: u8,
}

/// A question on its way.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<Bytes>,
}

// === impl QuestionHead ===

impl QuestionHead {
    /// Of a request with this id to a path of this format.
    pub(crate) fn of(api: Api, head: &RequestHead, id: Option<&str>, switches: &Switches) -> Self {
        let path = head.path.split(|byte| b"?#".contains(byte)).next();
        let path = path.and_then(|path| str::from_utf8(path).ok());
        let path = path.filter(|path| path.ends_with(api.suffix()));
        // An encoded path is one that the Processor would have to decode.
        let path = path.map_or_else(|| format!("/v1/{}", api.suffix()), str::to_owned);
        let along = ALONG.into_iter();
        let along = along.chain(switches.forwarded.iter().map(String::as_str));
        let value = |name: &str| Some((name.to_owned(), head.field(&[name])?.to_owned()));
        let mut headers: BTreeMap<_, _> = along.filter_map(value).collect();
        if let Some(id) = id {
            headers.insert(REQUEST_ID_HEADER.to_owned(), id.to_owned());
        }
        Self {
            path: Some(path),
            headers,
        }
    }
}

// === impl Question ===

impl Question {
    /// The bytes of it. `parent`: the span that it belongs to, if it is traced here.
    pub(crate) fn encode(
        mut self,
        parent: Option<String>,
        reservation: Option<ReservationId>,
    ) -> Outgoing {
        if let Some(parent) = parent {
            self.head.headers.insert(TRACEPARENT.to_owned(), parent);
        }
        let QuestionHead { path, headers } = &self.head;
        let mut outside = HeaderMap::new();
        outside.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for name in OUTSIDE {
            let value = headers
                .get(name)
                .and_then(|value| HeaderValue::from_str(value).ok());
            if let Some(value) = value {
                outside.insert(HeaderName::from_static(name), value);
            }
        }
        let borrowed = |(name, value): (&'_ String, &'_ String)| {
            (Cow::Owned(name.clone()), Cow::Owned(value.clone()))
        };
        let route = self.route.as_ref();
        let candidates = route.and_then(|route| route.candidates.as_ref());
        let request = ProcessRequest {
            headers: headers.iter().map(borrowed).collect(),
            path: path.as_deref().map(Cow::Borrowed),
            candidates: candidates.map(|all| all.iter().map(|one| Cow::Borrowed(&**one)).collect()),
            priority: route.map(|route| route.priority.into()),
            max_endpoints: route.map(|route| route.max_endpoints.into()),
            reservation_id: reservation,
        };
        Outgoing {
            headers: outside,
            body: request.encode(std::mem::take(&mut self.body)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};
    use rstest::rstest;

    use super::*;

    fn mk_head(path: &'static str, fields: &[(&'static str, &'static str)]) -> RequestHead {
        let field =
            |(name, value): &(&'static str, &'static str)| ((*name).into(), (*value).into());
        RequestHead {
            path: path.into(),
            fields: fields.iter().map(field).collect(),
            ..RequestHead::default()
        }
    }

    fn json(outgoing: &Outgoing) -> serde_json::Value {
        serde_json::from_slice(&outgoing.body.concat()).unwrap()
    }

    fn mk_question(head: &RequestHead, id: Option<&str>, switches: &Switches) -> Question {
        let api = Api::for_path(&head.path).unwrap().unwrap();
        Question {
            head: QuestionHead::of(api, head, id, switches),
            body: vec!["{\"model\"".into(), ":\"m\"}".into()],
            route: None,
        }
    }

    #[test]
    fn only_harmless_headers_go_along() {
        let fields = [
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-request-id", "r-1"),
            ("traceparent", "00-1-2-01"),
            ("x-session-id", "s"),
            ("x-tenant", "t"),
        ];
        let switches = Switches {
            forwarded: vec!["x-tenant".to_owned(), "x-absent".to_owned()],
            ..Switches::default()
        };
        let head = mk_head("/v1/chat/completions?key=secret", &fields);
        let outgoing = mk_question(&head, None, &switches).encode(None, None);
        let want = serde_json::json!({
            "request_body": {"model": "m"},
            "path": "/v1/chat/completions",
            "headers": {"x-request-id": "r-1", "traceparent": "00-1-2-01", "x-session-id": "s", "x-tenant": "t"},
        });
        assert_eq!(json(&outgoing), want);
        let outside: Vec<_> = outgoing.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(outside, ["content-type", "x-request-id", "traceparent"]);
    }

    #[test]
    fn a_made_id_and_the_own_span_take_the_place_of_the_clients() {
        let head = mk_head("/v1/completions", &[("traceparent", "00-1-2-01")]);
        let question = mk_question(&head, Some("made"), &Switches::default());
        let outgoing = question.encode(Some("00-1-3-01".to_owned()), None);
        let want = serde_json::json!({"x-request-id": "made", "traceparent": "00-1-3-01"});
        assert_eq!(json(&outgoing)["headers"], want);
        assert_eq!(outgoing.headers["traceparent"], "00-1-3-01");
    }

    #[rstest]
    #[case("/tenant/v1/completions#x", "/tenant/v1/completions")]
    #[case("/v1/c%6fmpletions", "/v1/completions")]
    #[case("/v1%2Fchat%2fcompletions?a", "/v1/chat/completions")]
    fn the_path_is_one_that_needs_no_decoding(#[case] path: &'static str, #[case] want: &str) {
        let question = mk_question(&mk_head(path, &[]), None, &Switches::default());
        assert_eq!(json(&question.encode(None, None))["path"], want);
    }

    #[test]
    fn a_question_for_a_worker_says_where_to_choose_from() {
        let mut question =
            mk_question(&mk_head("/v1/completions", &[]), None, &Switches::default());
        question.route = Some(Choice {
            candidates: Some(vec!["10.0.0.1:8000".to_owned()]),
            priority: -1,
            max_endpoints: 2,
        });
        let id = ReservationId::random(&mut StdRng::seed_from_u64(1));
        let sent = json(&question.encode(None, Some(id)));
        assert_eq!(sent["candidates"], serde_json::json!(["10.0.0.1:8000"]));
        assert_eq!(
            (&sent["priority"], &sent["max_endpoints"]),
            (&(-1).into(), &2.into())
        );
        assert_eq!(sent["reservation_id"], id.as_str());
    }
}
