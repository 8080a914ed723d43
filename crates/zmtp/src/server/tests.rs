use std::net::SocketAddr;

use libzmq::{Kind, Peer};
use tokio::time::{Instant, timeout};

use super::*;
use crate::connection::connect;

const LIMIT: Duration = Duration::from_secs(20);

struct Serving {
    publisher: Arc<Publisher>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

// === impl Serving ===

impl Serving {
    async fn start(queue: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let publisher = Arc::new(Publisher::new(queue));
        let mut tasks = JoinSet::new();
        let serving = publisher.clone();
        tasks.spawn(async move {
            let stop = CancellationToken::new();
            serving.serve(listener, Limits::default(), stop).await;
        });
        Self {
            publisher,
            address,
            _tasks: tasks,
        }
    }

    async fn subscriber(&self, topic: &[u8]) -> Connection {
        let limits = Limits::default();
        let connecting = connect(self.address, Role::Subscriber, limits);
        let mut subscriber = connecting.await.unwrap();
        subscriber.subscribe(topic);
        subscriber.flush().await.unwrap();
        subscriber
    }

    async fn has(&self, subscribers: usize) {
        let start = Instant::now();
        while self.publisher.subscribers() != subscribers {
            let there = self.publisher.subscribers();
            assert!(start.elapsed() < LIMIT, "{there} subscribers");
            sleep(Duration::from_millis(2)).await;
        }
    }

    fn publish(&self, topic: &'static str, text: &'static str) {
        let message = [topic, text].map(|frame| Bytes::from_static(frame.as_bytes()));
        self.publisher.publish(message.into());
    }
}

async fn text(subscriber: &mut Connection) -> String {
    let received = timeout(LIMIT, subscriber.receive()).await;
    match received.expect("a message").unwrap() {
        Received::Message(message) => String::from_utf8(message.frames()[1].to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_subscriber_gets_what_it_wants_from_its_subscription_on() {
    let serving = Serving::start(100).await;
    serving.publish("kv@a", "too early");
    let mut subscriber = serving.subscriber(b"kv@").await;
    serving.has(1).await;
    serving.publish("other", "not wanted");
    serving.publish("kv@a", "wanted");
    assert_eq!(text(&mut subscriber).await, "wanted");
    drop(subscriber);
    serving.has(0).await;
}

#[tokio::test]
async fn a_slow_subscriber_loses_the_oldest_and_delays_no_other() {
    let serving = Serving::start(4).await;
    let mut slow = serving.subscriber(b"").await;
    serving.has(1).await;
    let mut fast = serving.subscriber(b"").await;
    serving.has(2).await;
    let large: Bytes = vec![0; 1 << 20].into();
    for _ in 0..50 {
        serving
            .publisher
            .publish([Bytes::new(), large.clone()].into());
        fast.receive().await.unwrap();
    }
    serving.publish("", "last");
    assert_eq!(text(&mut fast).await, "last");
    let mut received = 0;
    while let Received::Message(message) = slow.receive().await.unwrap()
        && message.frames()[1] != "last"
    {
        received += 1;
    }
    assert!(received < 50, "nothing was lost");
}

#[tokio::test]
async fn all_subscribers_are_sent_away_at_once_and_may_come_again() {
    let serving = Serving::start(100).await;
    let mut subscriber = serving.subscriber(b"").await;
    serving.has(1).await;
    serving.publisher.disconnect();
    let gone = timeout(LIMIT, subscriber.receive()).await.expect("in time");
    assert!(matches!(gone, Err(Error::Closed)), "{gone:?}");
    let mut again = serving.subscriber(b"").await;
    serving.has(1).await;
    serving.publish("", "again");
    assert_eq!(text(&mut again).await, "again");
}

#[tokio::test]
async fn hundreds_of_connections_leave_nothing_open() {
    let serving = Serving::start(4).await;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for round in 0..300 {
        let subscriber = serving.subscriber(b"").await;
        serving.has(1).await;
        drop(subscriber);
        serving.has(0).await;
        // other tests have a few of their own
        assert!(open() < 100, "{} after {round}", open());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_of_real_zeromq_is_served_and_comes_again() {
    let serving = Serving::start(100).await;
    let mut peer = Peer::start().unwrap();
    let subscriber = peer.connect(Kind::Sub, serving.address.port()).unwrap();
    serving.has(1).await;
    serving.publish("kv@", "first");
    let message = |text: &str| vec![b"kv@".to_vec(), text.into()];
    let first = peer.receive(&subscriber, LIMIT).unwrap();
    assert_eq!(first, Some(message("first")));
    serving.publisher.disconnect();
    let start = Instant::now();
    let second = loop {
        serving.publish("kv@", "second");
        let short = Duration::from_millis(20);
        if let Some(second) = peer.receive(&subscriber, short).unwrap() {
            break second;
        }
        assert!(start.elapsed() < LIMIT, "it does not come again");
    };
    assert_eq!(second, message("second"));
}
