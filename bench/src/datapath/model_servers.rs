//! Model servers that do nothing: each request gets the same completion at once.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::Message;

/// Model servers of one cluster. They and their connections end with this value.
pub struct ModelServers {
    _accepting: JoinSet<()>,
}

/// What they answer, heads included.
struct Pages {
    completion: Vec<u8>,
    metrics: Vec<u8>,
}

/// The header of a completion that names the cluster of the model server.
pub const SERVED_BY: &str = "x-served-by";

/// What an endpoint picker reads of vLLM.
const METRICS: &str = "\
vllm:num_requests_waiting{model_name=\"m\"} 0\n\
vllm:num_requests_running{model_name=\"m\"} 1\n\
vllm:kv_cache_usage_perc{model_name=\"m\"} 0.1\n";

/// With [`TEXT`] some 500 bytes.
const BEFORE: &str = r#"{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion","created":1790000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":""#;
const TEXT: &str = "The keeper climbed the stairs each evening, lit the lamp and wrote down the ships that passed. In the morning he went down again, and nobody but the gulls had seen him. ";
const AFTER: &str = r#""},"finish_reason":"length"}],"usage":{"prompt_tokens":230,"completion_tokens":36,"total_tokens":266,"prompt_tokens_details":{"cached_tokens":0}}}"#;

// === impl ModelServers ===

impl ModelServers {
    /// Starts a model server at each of the addresses. Call it within a runtime.
    /// # Errors
    /// When one of the addresses cannot be listened on.
    pub async fn start(cluster: &str, addresses: &[SocketAddr]) -> Result<Self> {
        let pages = Arc::new(Pages::of(cluster));
        let mut accepting = JoinSet::new();
        for address in addresses {
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("listening on {address}"))?;
            accepting.spawn(accept(listener, Arc::clone(&pages)));
        }
        Ok(Self {
            _accepting: accepting,
        })
    }
}

// === impl Pages ===

impl Pages {
    fn of(cluster: &str) -> Self {
        let completion = [BEFORE, TEXT, AFTER].concat();
        let served_by = format!("{SERVED_BY}: {cluster}\r\n");
        Self {
            completion: response("application/json", &served_by, &completion),
            metrics: response("text/plain; version=0.0.4", "", METRICS),
        }
    }

    fn answer(&self, head: &str) -> &[u8] {
        if head.starts_with("GET /metrics ") {
            &self.metrics
        } else {
            &self.completion
        }
    }
}

fn response(kind: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((socket, _)) = accepted {
                    connections.spawn(serve(socket, Arc::clone(&pages)));
                }
            }
            Some(ended) = connections.join_next() => {
                if let Ok(Err(error)) = ended {
                    eprintln!("a model server's connection: {error:#}");
                }
            }
        }
    }
}

/// Answers requests until the connection ends; an error where something else than a request comes.
async fn serve(mut socket: TcpStream, pages: Arc<Pages>) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut held = BytesMut::with_capacity(16 << 10);
    loop {
        while let Some(message) = Message::read(&held)? {
            let (length, closes) = (message.length, message.closes);
            let answer = pages.answer(message.head);
            held.advance(length);
            if socket.write_all(answer).await.is_err() || closes {
                return Ok(());
            }
        }
        let Ok(1..) = socket.read_buf(&mut held).await else {
            return Ok(());
        };
    }
}
