//! A body of several parts, and the bounded reading of a reply's.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use crate::call::{CallError, Reply};

/// Parts that are sent as they are, under one content length.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: VecDeque<Bytes>,
    left: u64,
}

// === impl Parts ===

impl From<Vec<Bytes>> for Parts {
    fn from(parts: Vec<Bytes>) -> Self {
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Self {
            parts: parts.into(),
            left,
        }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = loop {
            match self.parts.pop_front() {
                Some(part) if part.is_empty() => {}
                part => break part,
            }
        };
        if let Some(part) = &part {
            self.left = self.left.saturating_sub(part.len() as u64);
        }
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Reads a reply of at most `max` bytes. One that says that it is larger is not read at all.
pub(crate) async fn read(
    response: http::Response<Incoming>,
    max: usize,
) -> Result<Reply, CallError> {
    let (head, body) = response.into_parts();
    let length = head.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > max) {
        return Err(CallError::TooLarge);
    }
    let body = Limited::new(body, max).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => CallError::TooLarge,
        None => CallError::Broken(chain(error.as_ref())),
    })?;
    Ok(Reply {
        status: head.status,
        headers: head.headers,
        body: body.to_bytes(),
    })
}

/// The text of an error and of its causes: those of HTTP say little by themselves.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
