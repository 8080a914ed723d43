use std::{collections::VecDeque, task::Waker};

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// What the connection does when it is asked to write.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Takes so many bytes, at most.
    Take(usize),
    Wait,
}

/// A connection that follows a script, then takes everything.
#[derive(Debug, Default)]
struct Scripted {
    steps: VecDeque<Step>,
    writes: Vec<Vec<u8>>,
    flushed: usize,
    fails: bool,
}

impl Scripted {
    fn bytes(&self) -> Vec<u8> {
        self.writes.concat()
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.fails {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let most = match this.steps.pop_front() {
            None => usize::MAX,
            Some(Step::Take(most)) => most,
            Some(Step::Wait) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        };
        let mut written: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        written.truncate(most);
        this.writes.push(written.clone());
        Poll::Ready(Ok(written.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().flushed += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

fn mk(steps: &[Step]) -> Gather<Scripted> {
    Gather::new(Scripted {
        steps: steps.iter().copied().collect(),
        ..Scripted::default()
    })
}

fn write(gather: &mut Gather<Scripted>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(gather).poll_write(&mut cx, bytes)
}

fn flush(gather: &mut Gather<Scripted>) -> Poll<io::Result<()>> {
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(gather).poll_flush(&mut cx)
}

#[test]
fn frames_of_one_turn_are_one_write() {
    let mut gather = mk(&[]);
    assert!(write(&mut gather, b"first ").is_ready());
    assert!(flush(&mut gather).is_pending(), "others go first");
    assert!(write(&mut gather, b"second").is_ready());
    assert!(flush(&mut gather).is_ready());
    assert_eq!(gather.inner.writes, [b"first second"]);
    assert!(gather.waiting().is_empty());
    // each turn yields once
    assert!(write(&mut gather, b"third").is_ready());
    assert!(flush(&mut gather).is_pending());
    assert!(flush(&mut gather).is_ready());
    assert_eq!(gather.inner.writes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_holds_writes_back_for_long_is_overdue_until_it_writes_or_is_gone() {
    for is_dropped in [false, true] {
        let mut gather = mk(&[]);
        assert!(write(&mut gather, b"a pick").is_ready());
        assert!(flush(&mut gather).is_pending());
        tokio::time::advance(MAX_HOLD).await;
        assert!(!is_overdue());
        tokio::time::advance(Duration::from_micros(1)).await;
        assert!(is_overdue());
        if is_dropped {
            drop(gather);
        } else {
            assert!(flush(&mut gather).is_ready());
        }
        assert!(!is_overdue());
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_connection_writes_ends_no_wait_of_another() {
    let (mut first, mut second) = (mk(&[]), mk(&[]));
    for gather in [&mut first, &mut second] {
        assert!(write(gather, b"a pick").is_ready());
        assert!(flush(gather).is_pending());
    }
    tokio::time::advance(2 * MAX_HOLD).await;
    assert!(flush(&mut first).is_ready());
    assert!(flush(&mut first).is_ready(), "nothing is left");
    assert!(is_overdue(), "the second waits");
    assert!(matches!(
        write(&mut second, &[7; LARGE]),
        Poll::Ready(Ok(LARGE))
    ));
    assert!(!is_overdue(), "all of it is written");
}

#[test]
fn a_flush_of_nothing_does_not_yield() {
    let mut gather = mk(&[]);
    assert!(flush(&mut gather).is_ready());
    assert!(gather.inner.writes.is_empty());
    assert_eq!(gather.inner.flushed, 1);
}

#[test]
fn a_flush_is_not_over_before_the_last_byte_is_written() {
    let mut gather = mk(&[Step::Take(2), Step::Wait, Step::Take(1), Step::Wait]);
    assert!(write(&mut gather, b"frames").is_ready());
    for _ in 0..3 {
        assert!(flush(&mut gather).is_pending());
        assert_eq!(gather.inner.flushed, 0);
    }
    assert!(flush(&mut gather).is_ready());
    assert_eq!(gather.inner.bytes(), b"frames");
    assert_eq!(gather.inner.flushed, 1);
}

#[test]
fn a_large_write_takes_along_what_waits_and_needs_no_turn() {
    let mut gather = mk(&[]);
    let large = vec![7; LARGE];
    assert!(write(&mut gather, b"head").is_ready());
    assert!(matches!(write(&mut gather, &large), Poll::Ready(Ok(LARGE))));
    assert_eq!(gather.inner.writes, [[b"head".as_slice(), &large].concat()]);
    assert!(flush(&mut gather).is_ready());
}

#[test]
fn what_waits_is_bounded() {
    let mut gather = mk(&[]);
    for _ in 0..100 {
        assert!(write(&mut gather, &[1; 1000]).is_ready());
        assert!(gather.waiting().len() <= MAX_HELD);
    }
    assert_eq!(gather.inner.writes.len(), 1, "full once");
}

#[test]
fn errors_are_passed_on() {
    let mut gather = mk(&[]);
    assert!(write(&mut gather, b"lost").is_ready());
    gather.inner.fails = true;
    assert!(flush(&mut gather).is_pending());
    assert!(
        matches!(flush(&mut gather), Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe)
    );
    assert!(matches!(
        write(&mut gather, &[0; LARGE]),
        Poll::Ready(Err(_))
    ));

    let mut full = mk(&[Step::Take(0)]);
    assert!(write(&mut full, b"lost").is_ready());
    assert!(flush(&mut full).is_pending());
    assert!(
        matches!(flush(&mut full), Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WriteZero)
    );
}

#[tokio::test]
async fn a_shutdown_writes_what_waits() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let mut gather = Gather::new(ours);
    gather.write_all(b"last words").await.unwrap();
    gather.shutdown().await.unwrap();
    let mut text = String::new();
    theirs.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "last words");
}

#[tokio::test]
async fn a_flush_that_let_others_go_first_comes_back_by_itself() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let mut gather = Gather::new(ours);
    gather.write_all(b"one").await.unwrap();
    gather.flush().await.unwrap();
    let mut buf = [0; 64];
    let bytes = theirs.read(&mut buf).await.unwrap();
    assert_eq!(&buf[..bytes], b"one");
}

fn mk_step() -> impl Strategy<Value = Step> {
    prop_oneof![(1..20_000_usize).prop_map(Step::Take), Just(Step::Wait)]
}

proptest! {
    /// Whatever is written and flushed in between, in one piece or in slices, comes out in its order and once.
    #[test]
    fn bytes_and_order_are_those_that_were_written(
        sizes in prop::collection::vec((0..20_000_usize, 1..4_usize, any::<bool>()), 1..30),
        steps in prop::collection::vec(mk_step(), 0..60),
    ) {
        let mut gather = mk(&steps);
        let mut cx = Context::from_waker(Waker::noop());
        let (mut expected, mut next) = (Vec::new(), 0_u8);
        for (size, slices, flushes) in sizes {
            let bytes: Vec<u8> = (0..size).map(|_| { next = next.wrapping_add(1); next }).collect();
            expected.extend_from_slice(&bytes);
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let part = rest.len().div_ceil(slices);
                let parts: Vec<IoSlice<'_>> = rest.chunks(part).map(IoSlice::new).collect();
                if let Poll::Ready(written) = Pin::new(&mut gather).poll_write_vectored(&mut cx, &parts) {
                    let written = written.unwrap();
                    prop_assert!(written > 0);
                    rest = &rest[written..];
                }
                prop_assert!(gather.held.len() <= MAX_HELD);
            }
            if flushes {
                while flush(&mut gather).is_pending() {}
                prop_assert_eq!(&gather.inner.bytes(), &expected);
            }
        }
        while flush(&mut gather).is_pending() {}
        prop_assert_eq!(gather.inner.bytes(), expected);
        prop_assert!(gather.waiting().is_empty());
    }
}
