//! A request as a mesh sends it, for tests of ports.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{huffman, walk::PREFACE};

/// The name of a cluster of Istio, which is no authority.
pub const CLUSTER: &str = "outbound|9002||llama-epp.llm.svc.cluster.local";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Sends a gRPC call without a message, whose authority is [`CLUSTER`]. Returns whether it is answered by anything but a reset.
///
/// # Errors
/// When the connection ends before.
pub async fn is_answered<T>(mut connection: T, path: &str) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    connection.write_all(&request(path)).await?;
    let mut read = Vec::new();
    loop {
        if let Some(answered) = answer(&read) {
            return Ok(answered);
        }
        if connection.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The bytes of a connection with that call.
pub(crate) fn request(path: &str) -> Vec<u8> {
    // the entries `:method: POST` and `:scheme: http` of the static table
    let mut fields = vec![0x83, 0x86];
    fields.push(0x04);
    string(&mut fields, 0, path.as_bytes());
    fields.push(0x41);
    string(&mut fields, 0x80, &huffman::encode(CLUSTER.as_bytes()));
    fields.push(0x00);
    string(&mut fields, 0, b"content-type");
    string(&mut fields, 0, b"application/grpc");
    fields.push(0x00);
    string(&mut fields, 0, b"te");
    string(&mut fields, 0, b"trailers");
    [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_HEADERS, 1, &fields),
        &frame(DATA, END_STREAM, 1, &[]),
    ]
    .concat()
}

/// A string of at most 126 bytes.
fn string(fields: &mut Vec<u8>, huffman: u8, bytes: &[u8]) {
    fields.push(huffman | u8::try_from(bytes.len()).unwrap_or_default());
    fields.extend_from_slice(bytes);
}

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let [_, high, middle, low] = length.to_be_bytes();
    let mut frame = vec![high, middle, low, kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Whether these frames answer the call; `None` where they say nothing about it.
fn answer(mut frames: &[u8]) -> Option<bool> {
    loop {
        let [high, middle, low, kind, ..] = frames.get(..9)? else {
            return None;
        };
        match *kind {
            HEADERS => return Some(true),
            RST_STREAM | GOAWAY => return Some(false),
            _ => {}
        }
        let [high, middle, low] = [*high, *middle, *low].map(usize::from);
        frames = frames.get(9 + (high << 16) + (middle << 8) + low..)?;
    }
}
