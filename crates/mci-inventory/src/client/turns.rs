//! Whose list is next. A list is heavy for the server and, until it is projected, for us: when every watch has to
//! begin again at once, at most 16 are under way over all members.
//!
//! A page that is quick has one of 12 places. One that takes longer has to find one of the other 4, so that members
//! that hang, however many, hold up the quick ones for 2 s and no more; such a member then queues for the 4 until it is
//! quick again.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// The places of all members: 16 pages of lists at once. Cheap to clone, the places are shared.
#[derive(Clone, Debug)]
pub struct Turns {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

/// One member's share of the places: all its clients have to use the same. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MemberTurns {
    all: Turns,
    /// Its last page was slow.
    is_slow: Arc<AtomicBool>,
    /// Of the slow places it may have one: it lists several kinds, and one member would take them all.
    own_slow: Arc<Semaphore>,
}

/// The place of one page, given up when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    member: MemberTurns,
    permit: OwnedSemaphorePermit,
    /// The member's only one, while the place is a slow one.
    own: Option<OwnedSemaphorePermit>,
    quick: bool,
    ends: Pin<Box<Sleep>>,
    began: Instant,
}

/// The page took too long.
#[derive(Debug, thiserror::Error)]
#[error("a page of a list took longer than {0:?}")]
pub(super) struct TooSlow(Duration);

const QUICK_PLACES: usize = 12;
const SLOW_PLACES: usize = 4;
/// Of 500 objects at 20 ms to the server, a page takes a tenth of it.
const QUICK: Duration = Duration::from_secs(2);
/// The whole page. One that takes longer fails and is retried; after two of them the session is given up.
const SLOW: Duration = Duration::from_secs(20);

// === impl Turns ===

impl Default for Turns {
    fn default() -> Self {
        Self {
            quick: Arc::new(Semaphore::new(QUICK_PLACES)),
            slow: Arc::new(Semaphore::new(SLOW_PLACES)),
        }
    }
}

impl Turns {
    /// The share of one more member.
    pub fn member(&self) -> MemberTurns {
        MemberTurns {
            all: self.clone(),
            is_slow: Arc::default(),
            own_slow: Arc::new(Semaphore::new(1)),
        }
    }
}

// === impl MemberTurns ===

impl MemberTurns {
    /// Waits for a place. Everybody before us has at most [`SLOW`]; a slow page waits for those of its own member
    /// before it queues among the members.
    pub(super) async fn next(&self) -> Result<Turn, AcquireError> {
        let quick = !self.is_slow.load(Ordering::Relaxed);
        let places = if quick {
            &self.all.quick
        } else {
            &self.all.slow
        };
        let own = if quick {
            None
        } else {
            Some(self.own_slow.clone().acquire_owned().await?)
        };
        let permit = places.clone().acquire_owned().await?;
        let time = if quick { QUICK } else { SLOW };
        Ok(Turn {
            member: self.clone(),
            permit,
            own,
            quick,
            ends: Box::pin(sleep(time)),
            began: Instant::now(),
        })
    }
}

// === impl Turn ===

impl Turn {
    /// Ready once the page has to end.
    pub(super) fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        if self.ends.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        if !self.quick {
            return Poll::Ready(TooSlow(SLOW));
        }
        self.member.is_slow.store(true, Ordering::Relaxed);
        let own = self.member.own_slow.clone().try_acquire_owned();
        let permit = self.member.all.slow.clone().try_acquire_owned();
        let (Ok(own), Ok(permit)) = (own, permit) else {
            return Poll::Ready(TooSlow(QUICK));
        };
        self.own = Some(own);
        self.permit = permit;
        self.quick = false;
        self.ends.as_mut().reset(self.began + SLOW);
        self.poll_too_slow(cx)
    }

    /// The page is complete.
    pub(super) fn finish(self) {
        if self.began.elapsed() <= QUICK {
            self.member.is_slow.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::atomic::AtomicUsize};

    use tokio::{
        task::JoinSet,
        time::{advance, timeout},
    };

    use super::*;

    /// A page that takes this long; whether it was allowed to.
    async fn page(member: &MemberTurns, time: Duration) -> bool {
        let mut turn = member.next().await.expect("never closed");
        let page = timeout(time, poll_fn(|cx| turn.poll_too_slow(cx)));
        let complete = page.await.is_err();
        if complete {
            turn.finish();
        }
        complete
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_16_are_under_way_however_many_ask() {
        let turns = Turns::default();
        let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        for n in 0..200 {
            let (member, now, most) = (turns.member(), now.clone(), most.clone());
            // some are slow
            let time = Duration::from_millis(if n % 10 == 0 { 5_000 } else { 100 });
            tasks.spawn(async move {
                for _ in 0..3 {
                    let mut turn = member.next().await.expect("never closed");
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let page = timeout(time, poll_fn(|cx| turn.poll_too_slow(cx))).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    if page.is_err() {
                        turn.finish();
                    }
                }
            });
        }
        tasks.join_all().await;
        assert!((2..=16).contains(&most.load(Ordering::SeqCst)), "{most:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn members_that_hang_hold_up_the_quick_ones_once_and_briefly() {
        let turns = Turns::default();
        let mut hung = JoinSet::new();
        for _ in 0..48 {
            let member = turns.member();
            hung.spawn(async move {
                loop {
                    page(&member, Duration::MAX).await;
                }
            });
        }
        advance(Duration::from_millis(1)).await;
        let quick = turns.member();
        let start = Instant::now();
        assert!(page(&quick, Duration::from_millis(50)).await);
        // 48 before it, 12 at once, 2 s each
        assert!(
            start.elapsed() <= QUICK * 4 + Duration::from_millis(100),
            "{:?}",
            start.elapsed()
        );
        let start = Instant::now();
        for _ in 0..10 {
            assert!(page(&quick, Duration::from_millis(50)).await);
        }
        assert!(
            start.elapsed() <= Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_slow_member_leaves_slow_places_to_the_others() {
        let turns = Turns::default();
        let hung = turns.member();
        let mut pages = JoinSet::new();
        for _ in 0..8 {
            let member = hung.clone();
            pages.spawn(async move {
                loop {
                    page(&member, Duration::MAX).await;
                }
            });
        }
        // its pages have taken all slow places that they can get
        sleep(QUICK * 3).await;
        let far = turns.member();
        assert!(page(&far, QUICK * 2).await, "no place left");
        assert!(page(&far, QUICK * 2).await, "no place left when it queues");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_page_may_end_and_a_quick_one_brings_the_member_back() {
        let turns = Turns::default();
        let member = turns.member();
        assert!(
            page(
                &member,
                SLOW.checked_sub(Duration::from_secs(1)).expect("longer")
            )
            .await
        );
        assert!(member.is_slow.load(Ordering::Relaxed));
        assert!(
            !page(&member, SLOW + Duration::from_secs(1)).await,
            "there is an end to it"
        );
        assert!(page(&member, Duration::from_millis(50)).await);
        assert!(!member.is_slow.load(Ordering::Relaxed));
    }
}
