//! Bodies of requests, within bounds.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use metadata::Fault;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Largest body: a batch of 256 changes takes some 40 KiB, a prompt of 8192 chunks 170 KiB, a full batch of 20,000
/// charges 2 MiB.
pub(crate) const MAX_BODY: usize = 4 << 20;

/// A body of up to so many bytes is read without asking: 160 MiB for the most connections that there can be.
const SMALL: usize = 16 << 10;

/// Larger ones hold at most so much together: 16 of the largest. Further ones wait.
const LARGE_BYTES: usize = 64 << 20;

/// What a permit stands for.
const UNIT: usize = 1 << 10;

/// Memory for bodies that are being read or handled.
#[derive(Debug)]
pub(crate) struct Bodies(Semaphore);

/// A whole body. Its memory is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    pub(crate) bytes: Bytes,
    _permit: Option<SemaphorePermit<'a>>,
}

// === impl Bodies ===

impl Bodies {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(LARGE_BYTES / UNIT))
    }

    /// Reads a body to its end. One that says that it is too large is not read at all.
    pub(crate) async fn read<B>(&self, mut body: B) -> Result<Whole<'_>, Fault>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let said = match body.size_hint().upper() {
            Some(said) => Some(usize::try_from(said).map_err(|_| too_large())?),
            None => None,
        };
        let mut permit = match said {
            Some(size) if size > MAX_BODY => return Err(too_large()),
            Some(size) if size > SMALL => Some(self.permit(size).await?),
            _ => None,
        };
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken = |_| Fault::invalid("body", "it ended early");
            let Ok(data) = frame.map_err(broken)?.into_data() else {
                continue; // trailers
            };
            if first.is_empty() {
                first = data;
                if body.is_end_stream() {
                    break;
                }
                continue;
            }
            if rest.is_empty() {
                rest.reserve(said.unwrap_or(first.len() + data.len()));
                rest.extend_from_slice(&first);
            }
            let size = rest.len() + data.len();
            if size > MAX_BODY {
                return Err(too_large());
            }
            if size > SMALL && permit.is_none() {
                // How large it becomes is not known.
                permit = Some(self.permit(MAX_BODY).await?);
            }
            rest.extend_from_slice(&data);
        }
        let bytes = if rest.is_empty() {
            first
        } else {
            rest.freeze()
        };
        Ok(Whole {
            bytes,
            _permit: permit,
        })
    }

    async fn permit(&self, size: usize) -> Result<SemaphorePermit<'_>, Fault> {
        let units = u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // It is never closed.
        let permit = self.0.acquire_many(units).await;
        permit.map_err(|_| Fault::Internal)
    }
}

fn too_large() -> Fault {
    Fault::TooLarge { limit: MAX_BODY }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{FutureExt, stream};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    static MIB: [u8; 1 << 20] = [b' '; 1 << 20];

    fn of(size: usize) -> Full<Bytes> {
        Full::new(vec![b' '; size].into())
    }

    #[test]
    fn large_bodies_wait_for_each_other_and_small_ones_for_nobody() {
        let bodies = Bodies::new();
        let read = |size| bodies.read(of(size)).now_or_never();
        let mut held: Vec<_> = (0..16).map(|_| read(MAX_BODY).expect("room")).collect();
        assert!(read(SMALL + 1).is_none());
        assert!(matches!(read(SMALL), Some(Ok(_))));
        held.pop();
        assert!(matches!(read(SMALL + 1), Some(Ok(_))));
    }

    #[test]
    fn chunks_become_one_body_and_may_not_become_too_much() {
        let bodies = Bodies::new();
        let read = |chunks: Vec<&'static [u8]>| {
            let frame = |chunk| Ok::<_, Infallible>(Frame::data(Bytes::from_static(chunk)));
            let chunks = StreamBody::new(stream::iter(chunks.into_iter().map(frame)));
            let read = bodies.read(chunks).now_or_never().expect("all is there");
            read.map(|whole| whole.bytes)
        };
        assert_eq!(
            read(vec![b"a", b"", b"bc", b"d"]),
            Ok(Bytes::from_static(b"abcd"))
        );
        assert_eq!(read(vec![]), Ok(Bytes::new()));
        assert_eq!(read(vec![&MIB, &MIB, &MIB, &MIB, b"x"]), Err(too_large()));
        assert_eq!(read(vec![&MIB; 4]).map(|it| it.len()), Ok(MAX_BODY));
    }
}
