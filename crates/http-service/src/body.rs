//! Bodies of requests, within bounds.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::sync::{Semaphore, SemaphorePermit};

/// What a permit stands for.
const UNIT: usize = 1 << 10;

/// Memory for bodies that are being read or handled.
#[derive(Debug)]
pub struct Bodies {
    limits: BodyLimits,
    large: Semaphore,
}

/// How much bodies may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Bytes of the largest body.
    pub max: usize,
    /// A body of up to so many bytes is read without asking: for the most connections that there can be (10,000), that is
    /// the bound.
    pub small: usize,
    /// Larger ones hold at most so many bytes together, at least one of the largest. Further ones wait.
    pub together: usize,
}

/// A whole body. Its memory is given back when it is dropped.
#[derive(Debug)]
pub struct Whole<'a> {
    /// What was sent.
    pub bytes: Bytes,
    _permit: Option<SemaphorePermit<'a>>,
}

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is too large; the rest of it is not read.
    #[error("the body has more than {limit} bytes")]
    TooLarge {
        /// Most bytes.
        limit: usize,
    },
    /// The caller left in the middle of it.
    #[error("the body ended early")]
    Broken,
}

// === impl Bodies ===

impl Bodies {
    /// Memory within these limits.
    pub fn new(limits: BodyLimits) -> Self {
        let together = limits.together.max(limits.max);
        Self {
            limits,
            large: Semaphore::new((together / UNIT).min(Semaphore::MAX_PERMITS)),
        }
    }

    /// Reads a body to its end. One that says that it is too large is not read at all.
    ///
    /// # Errors
    /// When it is too large, or ends early.
    pub async fn read<B>(&self, mut body: B) -> Result<Whole<'_>, BodyError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let BodyLimits { max, small, .. } = self.limits;
        let said = match body.size_hint().upper() {
            Some(said) => Some(usize::try_from(said).map_err(|_| self.too_large())?),
            None => None,
        };
        let mut permit = match said {
            Some(size) if size > max => return Err(self.too_large()),
            Some(size) if size > small => self.permit(size).await,
            _ => None,
        };
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken = |_| BodyError::Broken;
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
            if size > max {
                return Err(self.too_large());
            }
            if size > small && permit.is_none() {
                // How large it becomes is not known.
                permit = self.permit(max).await;
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

    /// None: never, as the semaphore is not closed.
    async fn permit(&self, size: usize) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX);
        self.large.acquire_many(units).await.ok()
    }

    fn too_large(&self) -> BodyError {
        let limit = self.limits.max;
        BodyError::TooLarge { limit }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{FutureExt, stream};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    const LIMITS: BodyLimits = BodyLimits {
        max: 4 << 20,
        small: 16 << 10,
        together: 64 << 20,
    };

    static MIB: [u8; 1 << 20] = [b' '; 1 << 20];

    fn of(size: usize) -> Full<Bytes> {
        Full::new(vec![b' '; size].into())
    }

    #[test]
    fn large_bodies_wait_for_each_other_and_small_ones_for_nobody() {
        let bodies = Bodies::new(LIMITS);
        let read = |size| bodies.read(of(size)).now_or_never();
        let mut held: Vec<_> = (0..16).map(|_| read(LIMITS.max).expect("room")).collect();
        assert!(read(LIMITS.small + 1).is_none());
        assert!(matches!(read(LIMITS.small), Some(Ok(_))));
        held.pop();
        assert!(matches!(read(LIMITS.small + 1), Some(Ok(_))));
    }

    #[test]
    fn chunks_become_one_body_and_may_not_become_too_much() {
        let bodies = Bodies::new(LIMITS);
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
        assert_eq!(
            read(vec![&MIB, &MIB, &MIB, &MIB, b"x"]),
            Err(BodyError::TooLarge { limit: LIMITS.max })
        );
        assert_eq!(read(vec![&MIB; 4]).map(|it| it.len()), Ok(LIMITS.max));
    }
}
