//! Replies: the envelope, written into one buffer.

use std::{io::Write, net::IpAddr};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use metadata::{
    Address, Fault,
    wire::{
        Envelope, ErrorBody, Status,
        batch::{Applied, ClusterState, Refused},
        cache::Locations,
        load::Load,
        pick::Picks,
    },
};
use serde::Serialize;

use crate::trace_id::TraceId;

/// Changes when state was lost.
pub(crate) const X_METADATA_BOOT: HeaderName = HeaderName::from_static("x-metadata-boot");

/// What is sent.
pub(crate) type Reply = Response<Full<Bytes>>;

/// The answer of a call.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Data {
    /// The call had an effect, and has no answer.
    Null,
    /// None: the cluster is unknown.
    Loads(Option<Vec<Load>>),
    Applied(Applied),
    Locations(Locations),
    Picks(Picks),
    Clusters(Vec<ClusterState>),
}

const BEGIN: &[u8] = br#"{"status":"OK","error":null,"data":"#;
const NULL: &[u8] = b"null";
const TRACE_ID: &[u8] = br#","trace_id":""#;
const END: &[u8] = br#""}"#;

/// `{"ip":"10.0.0.1:8000","queued_req_num":12,"prompt_length":12345,"updated_time":1790000000000000000},` and some more.
const LOAD_BYTES: usize = 112;

/// Answers of other calls are of such a size.
const SOME_BYTES: usize = 256;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Of a call that did what it was to do.
pub(crate) fn success(data: &Data, trace_id: &TraceId) -> Reply {
    let id = trace_id.as_str();
    let around = BEGIN.len() + TRACE_ID.len() + id.len() + END.len();
    let size = match data {
        Data::Null | Data::Loads(None) => NULL.len(),
        Data::Loads(Some(loads)) => loads.len() * LOAD_BYTES + 2,
        _ => SOME_BYTES,
    };
    let mut to = Vec::with_capacity(around + size);
    to.extend_from_slice(BEGIN);
    match data {
        Data::Null | Data::Loads(None) => to.extend_from_slice(NULL),
        Data::Loads(Some(loads)) => write_loads(&mut to, loads),
        other => write_json(&mut to, other),
    }
    if id.bytes().all(is_plain) {
        to.extend_from_slice(TRACE_ID);
        to.extend_from_slice(id.as_bytes());
        to.extend_from_slice(END);
    } else {
        // Without the opening quote.
        to.extend(TRACE_ID.iter().take(TRACE_ID.len() - 1));
        write_json(&mut to, &id);
        to.push(b'}');
    }
    json(StatusCode::OK, to)
}

/// Of a call that was refused.
#[cold]
pub(crate) fn refusal(fault: &Fault, trace_id: &TraceId) -> Reply {
    let refused = Refused::default();
    let data = match fault {
        Fault::StaleSeq { applied, .. } => Some(Refused {
            applied: Some(*applied),
            ..refused
        }),
        Fault::StaleEpoch { current } => Some(Refused {
            current: Some(*current),
            ..refused
        }),
        _ => None,
    };
    let envelope = Envelope {
        status: Status::Error,
        error: Some(ErrorBody::from(fault)),
        data,
        trace_id: trace_id.as_str().to_owned(),
    };
    let mut to = Vec::with_capacity(SOME_BYTES);
    write_json(&mut to, &envelope);
    let mut reply = json(status(fault), to);
    if let Fault::Method { allowed } = fault {
        let allowed = HeaderValue::from_static(allowed);
        reply.headers_mut().insert(header::ALLOW, allowed);
    }
    if *fault == Fault::Unauthorized {
        let bearer = HeaderValue::from_static("Bearer");
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    reply
}

/// A constant in JSON.
pub(crate) fn document(text: &'static str) -> Reply {
    page(
        StatusCode::OK,
        Some(JSON),
        Bytes::from_static(text.as_bytes()),
    )
}

/// A page that is no JSON of ours.
pub(crate) fn page(status: StatusCode, kind: Option<HeaderValue>, page: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(page));
    *reply.status_mut() = status;
    if let Some(kind) = kind {
        reply.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    reply
}

fn json(status: StatusCode, body: Vec<u8>) -> Reply {
    page(status, Some(JSON), body.into())
}

fn status(fault: &Fault) -> StatusCode {
    let status = u16::try_from(fault.code() / 100_000).ok();
    let status = status.and_then(|it| StatusCode::from_u16(it).ok());
    status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Whether a byte of a JSON string stands for itself.
fn is_plain(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\'
}

/// By hand: of a thousand endpoints the formatter of the standard library takes as long as all the rest.
fn write_loads(to: &mut Vec<u8>, loads: &[Load]) {
    to.push(b'[');
    for (at, load) in loads.iter().enumerate() {
        let Load {
            ip,
            queued_req_num,
            prompt_length,
            updated_time,
        } = load;
        if at > 0 {
            to.push(b',');
        }
        to.extend_from_slice(br#"{"ip":""#);
        write_address(to, *ip);
        to.extend_from_slice(br#"","queued_req_num":"#);
        write_integer(to, *queued_req_num);
        to.extend_from_slice(br#","prompt_length":"#);
        write_integer(to, *prompt_length);
        to.extend_from_slice(br#","updated_time":"#);
        write_integer(to, *updated_time);
        to.push(b'}');
    }
    to.push(b']');
}

fn write_address(to: &mut Vec<u8>, address: Address) {
    let IpAddr::V4(ip) = address.ip() else {
        // A Vec takes all.
        let _ = write!(to, "{address}");
        return;
    };
    let [a, b, c, d] = ip.octets();
    write_integer(to, a);
    for octet in [b, c, d] {
        to.push(b'.');
        write_integer(to, octet);
    }
    if let Some(port) = address.port() {
        to.push(b':');
        write_integer(to, port);
    }
}

fn write_integer(to: &mut Vec<u8>, integer: impl itoa::Integer) {
    to.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes());
}

fn write_json(to: &mut Vec<u8>, value: &impl Serialize) {
    let written = serde_json::to_writer(&mut *to, value);
    debug_assert!(written.is_ok(), "a Vec takes all, and no wire type fails");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_written_as_their_types_say() {
        let load = |ip: &str, n| Load::new(ip.parse().unwrap(), n, n / 2, i64::MAX - n);
        let loads = vec![
            load("0.0.0.0", 0),
            load("10.20.255.1:65535", 7),
            load("[fd00::1]:80", i64::from(i32::MAX)),
            load("fd00::2", i64::MAX),
        ];
        for loads in [Vec::new(), loads] {
            let mut written = Vec::new();
            write_loads(&mut written, &loads);
            assert_eq!(
                String::from_utf8(written).unwrap(),
                serde_json::to_string(&loads).unwrap()
            );
        }
    }
}
