use std::future::{pending, ready};

use super::*;

fn mk_place() -> (Place, mpsc::Receiver<Accepted>) {
    let (queue, accepted) = mpsc::channel(1);
    let live = Live::default();
    (Place { queue, live }, accepted)
}

/// One thread that ends at once, with this.
fn mk_running(
    ended: Result<Result<(), Error>, Panicked>,
) -> FuturesUnordered<impl Future<Output = Result<Result<(), Error>, Panicked>>> {
    FuturesUnordered::from_iter([ready(ended)])
}

#[tokio::test]
async fn a_connection_goes_where_the_fewest_live() {
    let places: (Vec<_>, Vec<_>) = (0..3).map(|_| mk_place()).unzip();
    let (turns, _accepted) = (Turns(places.0), places.1);
    let mut connections: Vec<Live> = Vec::new();
    let mut take = |turns: &Turns| {
        let place = turns.next().unwrap();
        connections.push(Live::clone(&place.live));
    };
    for _ in 0..7 {
        take(&turns);
    }
    let counts = |turns: &Turns| -> Vec<usize> {
        let places = turns.0.iter();
        places
            .map(|place| Live::strong_count(&place.live) - 1)
            .collect()
    };
    assert_eq!(counts(&turns), [3, 2, 2]);
    connections.retain(|live| !Live::ptr_eq(live, &turns.0[1].live));
    assert_eq!(counts(&turns), [3, 0, 2]);
    assert!(Live::ptr_eq(&turns.next().unwrap().live, &turns.0[1].live));
}

#[tokio::test]
async fn a_thread_that_does_not_empty_its_queue_gets_no_more() {
    let places: (Vec<_>, Vec<_>) = (0..2).map(|_| mk_place()).unzip();
    let (turns, _accepted) = (Turns(places.0), places.1);
    let full = turns.0[0].queue.reserve().await.unwrap();
    let _busy = Live::clone(&turns.0[1].live);
    assert!(Live::ptr_eq(&turns.next().unwrap().live, &turns.0[1].live));
    drop(full);
    assert!(Live::ptr_eq(&turns.next().unwrap().live, &turns.0[0].live));
}

#[tokio::test]
async fn a_thread_that_ends_before_the_stop_ends_the_server() {
    for (ended, want) in [
        (Ok(Ok(())), "a thread for streams ended"),
        (
            Err(Panicked::of("ext-proc-0")),
            "the thread ext-proc-0 panicked",
        ),
    ] {
        let (stopping, _stopped) = watch::channel(false);
        let stop = CancellationToken::new();
        let served = run(mk_running(ended), pending(), stop, stopping).await;
        assert_eq!(served.unwrap_err().to_string(), want);
    }
}

#[tokio::test]
async fn after_the_stop_an_end_is_in_order_and_a_panic_is_not() {
    let stop = CancellationToken::new();
    stop.cancel();
    let (stopping, stopped) = watch::channel(false);
    let served = run(mk_running(Ok(Ok(()))), ready(()), stop.clone(), stopping).await;
    assert!(served.is_ok());
    assert!(*stopped.borrow());
    let (stopping, _stopped) = watch::channel(false);
    let panicked = Err(Panicked::of("ext-proc-0"));
    let served = run(mk_running(panicked), ready(()), stop, stopping).await;
    assert!(matches!(served, Err(ServeError::Panicked(_))));
}

#[tokio::test]
async fn a_connection_that_waits_for_a_thread_at_the_stop_is_handed_out() {
    let (place, mut accepted) = mk_place();
    let live = Live::clone(&place.live);
    let full = place.queue.clone().reserve_owned().await.unwrap();
    let listener = listen(0).await.unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).await;
    let stop = CancellationToken::new();
    let (stopping, mut stopped) = watch::channel(false);
    let thread = async {
        let _ = stopped.wait_for(|stopped| *stopped).await;
        drop(full);
        assert!(accepted.recv().await.is_some(), "dropped");
        assert!(accepted.recv().await.is_none(), "no end of the queue");
        Ok(Ok::<(), Error>(()))
    };
    let handing_out = Turns(vec![place]).hand_out(listener, stop.clone());
    let running = FuturesUnordered::from_iter([thread]);
    let serving = run(running, handing_out, stop.clone(), stopping);
    let stop_once_accepted = async {
        while Live::strong_count(&live) < 3 {
            tokio::task::yield_now().await; // it is held by this test and the place so far
        }
        stop.cancel();
    };
    let both = async { tokio::join!(serving, stop_once_accepted).0 };
    let served = tokio::time::timeout(Duration::from_secs(10), both).await;
    served.expect("it ends").unwrap();
}
