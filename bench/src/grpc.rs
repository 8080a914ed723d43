//! gRPC messages on raw h2 streams: no client or server library stands between what is measured and the wire.

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use prost::Message;

/// Flag and length before each message.
const PREFIX: usize = 5;

/// The messages of one direction of a stream.
pub struct Messages {
    stream: RecvStream,
    held: BytesMut,
}

// === impl Messages ===

impl Messages {
    /// Reads what comes on this stream.
    pub fn new(stream: RecvStream) -> Self {
        let held = BytesMut::new();
        Self { stream, held }
    }

    /// The next message; none at the end.
    /// # Errors
    /// When the stream breaks, or what comes is no such message.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>> {
        loop {
            if let Some(message) = self.held_message()? {
                return Ok(Some(M::decode(message)?));
            }
            let Some(data) = self.stream.data().await else {
                ensure!(self.held.is_empty(), "a message is cut");
                return Ok(None);
            };
            let data = data?;
            self.stream.flow_control().release_capacity(data.len())?;
            self.held.extend_from_slice(&data);
        }
    }

    /// What the peer says at the end.
    /// # Errors
    /// When the stream breaks, or there are none.
    pub async fn trailers(&mut self) -> Result<http::HeaderMap> {
        self.stream.trailers().await?.context("no trailers")
    }

    fn held_message(&mut self) -> Result<Option<Bytes>> {
        let Some((prefix, rest)) = self.held.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *prefix;
        ensure!(compressed == 0, "a compressed message");
        let length = usize::try_from(u32::from_be_bytes(length))?;
        if rest.len() < length {
            self.held.reserve(PREFIX + length - self.held.len());
            return Ok(None);
        }
        let mut message = self.held.split_to(PREFIX + length).freeze();
        Ok(Some(message.split_off(PREFIX)))
    }
}

/// A message as it goes on a stream.
/// # Errors
/// When it is 4 GiB or more.
pub fn grpc_frame(message: &impl Message) -> Result<Bytes> {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).context("a message too large")?);
    message.encode(&mut frame)?;
    Ok(frame.freeze())
}
