//! HTTP/1.1 with one call under way: bytes out, the body of a reply back.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Duration, timeout},
};

/// A connection that is kept.
pub struct Wire {
    socket: TcpStream,
    /// What was read; its room is used again.
    read: Vec<u8>,
}

/// A service that is alive answers by then.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// A million ids as text are 7 MB.
const MAX_REPLY: usize = 32 << 20;

// === impl Wire ===

impl Wire {
    /// Connects.
    /// # Errors
    /// When nobody listens.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address).await.context("connecting")?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            read: Vec::with_capacity(64 << 10),
        })
    }

    /// Sends a request, waits for its reply and gives its body.
    /// # Errors
    /// When the connection breaks, or the reply has another status than 200.
    pub async fn call(&mut self, request: &[u8]) -> Result<&[u8]> {
        let (_, body) = self.call_with_head(request).await?;
        Ok(body)
    }

    /// As [`call`](Self::call), with the head of the reply.
    /// # Errors
    /// As there.
    pub async fn call_with_head(&mut self, request: &[u8]) -> Result<(&str, &[u8])> {
        let exchange = async {
            self.socket.write_all(request).await?;
            self.reply().await
        };
        let body = timeout(REPLY_TIMEOUT, exchange)
            .await
            .context("no reply")??;
        let (head, body) = self.read.split_at(body);
        Ok((std::str::from_utf8(head).context("a head")?, body))
    }

    /// Reads a whole reply, and tells where its body begins.
    async fn reply(&mut self) -> Result<usize> {
        self.read.clear();
        let mut whole = None;
        loop {
            ensure!(
                self.socket.read_buf(&mut self.read).await? > 0,
                "the connection was closed"
            );
            ensure!(self.read.len() <= MAX_REPLY, "a reply without end");
            if whole.is_none()
                && let Some(end) = memmem::find(&self.read, b"\r\n\r\n")
            {
                let head = std::str::from_utf8(&self.read[..end]).context("a head")?;
                if !head.starts_with("HTTP/1.1 200") {
                    bail!("{}", String::from_utf8_lossy(&self.read));
                }
                whole = Some((end + 4, end + 4 + length(head)?));
            }
            if let Some((body, end)) = whole
                && self.read.len() >= end
            {
                return Ok(body);
            }
        }
    }
}

fn length(head: &str) -> Result<usize> {
    let mut lengths = head.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    lengths.next().context("a reply without content-length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_stands_in_the_head_in_any_case() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y";
        assert_eq!(length(head).unwrap(), 12);
        assert!(length("HTTP/1.1 200 OK\r\nx: 12").is_err());
    }
}
