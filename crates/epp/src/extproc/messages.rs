//! The messages of one gRPC stream, read from the HTTP/2 request that carries them.
//!
//! Each message has memory of its own, which grows as its bytes come and ends with the last slice of it. tonic's reader
//! takes the announced length at once, and keeps the memory of a message until the next one comes.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures::Stream;
use prost::Message;
use tonic::{
    Code, Status,
    codegen::{Body as HttpBody, StdError},
};

use crate::{
    budget::{Budget, Reservation},
    proto::ProcessingRequest,
};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A message that is longer counts in the budget. Proxies that stream a body send shorter ones.
const COUNTED: usize = 128 * 1024;

/// The messages of a stream. It ends after an error.
pub(super) struct Messages<B> {
    body: Pin<Box<B>>,
    /// Received, and not read yet.
    frame: Bytes,
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that were received.
    prefix_len: usize,
    /// Length of the message that is being received.
    length: Option<usize>,
    message: Vec<u8>,
    reservation: Reservation,
    /// Largest message, in bytes.
    max: usize,
    has_ended: bool,
}

// === impl Messages ===

impl<B> Messages<B> {
    /// The messages of a request's body. What has come of a large one counts in the budget, so that bodies get less of it. It
    /// is not refused itself: it may be a part of a response.
    pub(super) fn new(body: B, max: usize, budget: &Budget) -> Self {
        Self {
            body: Box::pin(body),
            frame: Bytes::new(),
            prefix: [0; PREFIX],
            prefix_len: 0,
            length: None,
            message: Vec::new(),
            reservation: budget.reserve_none(),
            max,
            has_ended: false,
        }
    }

    /// The next message, if what was received has all of it.
    fn read(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        let length = match self.length {
            Some(length) => length,
            None => match self.read_prefix()? {
                Some(length) => *self.length.insert(length),
                None => return Ok(None),
            },
        };
        let missing = length.saturating_sub(self.message.len());
        let part = self.frame.split_to(missing.min(self.frame.len()));
        self.make_room(part.len(), length);
        self.message.extend_from_slice(&part);
        if self.message.len() < length {
            return Ok(None);
        }
        self.length = None;
        self.reservation = self.reservation.none();
        let message = Bytes::from(std::mem::take(&mut self.message));
        let message = ProcessingRequest::decode(message);
        message
            .map(Some)
            .map_err(|error| Status::internal(format!("the message cannot be read: {error}")))
    }

    fn read_prefix(&mut self) -> Result<Option<usize>, Status> {
        let place = self.prefix.get_mut(self.prefix_len..).unwrap_or_default();
        let part = place.len().min(self.frame.len());
        if let Some(place) = place.get_mut(..part) {
            self.frame.copy_to_slice(place);
        }
        self.prefix_len += part;
        if self.prefix_len < PREFIX {
            return Ok(None);
        }
        self.prefix_len = 0;
        let [compressed, announced @ ..] = self.prefix;
        let announced = u32::from_be_bytes(announced);
        if compressed != 0 {
            return Err(Status::internal(
                "the message is compressed, and no grpc-encoding is accepted",
            ));
        }
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        if length > self.max {
            return Err(Status::out_of_range(format!(
                "the message has {length} bytes, and the limit is {} bytes",
                self.max
            )));
        }
        Ok(Some(length))
    }

    /// Makes room for `more` bytes of a message of this length: at most twice what has come of it.
    fn make_room(&mut self, more: usize, length: usize) {
        let (held, room) = (self.message.len(), self.message.capacity());
        let wanted = held.saturating_add(more);
        if wanted <= room {
            return;
        }
        let wanted = wanted.max(held.saturating_mul(2)).min(length);
        if length > COUNTED {
            self.reservation.add(wanted.saturating_sub(room));
        }
        self.message.reserve_exact(wanted.saturating_sub(held));
    }

    fn has_part(&self) -> bool {
        self.length.is_some() || self.prefix_len > 0
    }
}

impl<B> Stream for Messages<B>
where
    B: HttpBody,
    B::Error: Into<StdError>,
{
    type Item = Result<ProcessingRequest, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        loop {
            let error = match self.read() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => match ready!(self.body.as_mut().poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        if let Ok(mut data) = frame.into_data() {
                            self.frame = data.copy_to_bytes(data.remaining());
                        }
                        continue;
                    }
                    Some(Err(error)) => {
                        let status = Status::from_error(error.into());
                        (status.code() != Code::Cancelled).then_some(status)
                    }
                    None => self
                        .has_part()
                        .then(|| Status::internal("the stream ended within a message")),
                },
                Err(error) => Some(error),
            };
            self.has_ended = true;
            return Poll::Ready(error.map(Err));
        }
    }
}

#[cfg(test)]
mod tests;
