//! What an engine publishes, over real sockets.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use rmp::encode as to;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use zmtp::{Limits, Publisher};

/// Publishes at 127.0.0.1.
pub(super) struct FakeEngine {
    publisher: Arc<Publisher>,
    port: u16,
    next: AtomicU64,
    _tasks: JoinSet<()>,
}

// === impl FakeEngine ===

impl FakeEngine {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let publisher = Arc::new(Publisher::new(1024));
        let limits = Limits {
            max_message: 1 << 20,
            handshake: Duration::from_secs(5),
        };
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&publisher);
        tasks.spawn(async move {
            serving
                .serve(listener, limits, CancellationToken::new())
                .await;
        });
        Self {
            publisher,
            port,
            next: AtomicU64::new(0),
            _tasks: tasks,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until the Router has subscribed: messages published before are lost.
    pub(super) async fn subscribed(&self) {
        let deadline = Instant::now() + super::LIMIT;
        while self.publisher.subscribers() == 0 {
            assert!(Instant::now() < deadline, "nobody has subscribed");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// A prompt's blocks of so many ids were stored.
    pub(super) fn publish_stored(&self, ids: Range<u32>, block_size: u32) {
        let blocks = u32::try_from(ids.len()).unwrap() / block_size;
        let mut batch = Vec::new();
        to::write_array_len(&mut batch, 2).unwrap();
        to::write_f64(&mut batch, 0.0).unwrap();
        to::write_array_len(&mut batch, 1).unwrap();
        to::write_array_len(&mut batch, 5).unwrap();
        to::write_str(&mut batch, "BlockStored").unwrap();
        to::write_array_len(&mut batch, blocks).unwrap();
        for hash in 0..blocks {
            to::write_uint(&mut batch, hash.into()).unwrap();
        }
        to::write_nil(&mut batch).unwrap();
        to::write_array_len(&mut batch, u32::try_from(ids.len()).unwrap()).unwrap();
        for id in ids {
            to::write_uint(&mut batch, id.into()).unwrap();
        }
        to::write_uint(&mut batch, block_size.into()).unwrap();
        let number = self.next.fetch_add(1, Relaxed);
        let number = Bytes::copy_from_slice(&number.to_be_bytes());
        self.publisher
            .publish([Bytes::new(), number, batch.into()].into());
    }
}
