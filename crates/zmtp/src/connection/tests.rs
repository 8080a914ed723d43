use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::sleep,
};

use super::*;

const LIMITS: Limits = Limits {
    max_message: 1000,
    handshake: Duration::from_secs(5),
};

/// A connection and its peer's bare stream, behind the handshake with a peer of this minor version.
async fn connected(role: Role, peer: &str, minor: u8) -> (Connection<DuplexStream>, DuplexStream) {
    let (ours, mut theirs) = duplex(64 << 10);
    let mut hello = BytesMut::new();
    put_greeting(&mut hello);
    hello[11] = minor;
    put_ready(peer, &mut hello);
    theirs.write_all(&hello).await.unwrap();
    let connection = Connection::open(ours, role, LIMITS).await.unwrap();
    let mut input = BytesMut::new();
    while input.len() < 64 + 2 {
        theirs.read_buf(&mut input).await.unwrap();
    }
    assert!(take_greeting(&mut input).unwrap().is_some());
    let frame = frame::take(&mut input, 1000).unwrap().expect("READY");
    assert!(frame.is_command && input.is_empty());
    (connection, theirs)
}

async fn read_command(theirs: &mut DuplexStream) -> Command {
    let mut input = BytesMut::new();
    loop {
        if let Some(frame) = frame::take(&mut input, 1000).unwrap() {
            return Command::read(&frame.body).unwrap();
        }
        theirs.read_buf(&mut input).await.unwrap();
    }
}

#[tokio::test]
async fn a_message_comes_whole_whatever_is_between_its_frames() {
    let (mut ours, mut theirs) = connected(Role::Subscriber, "PUB", 1).await;
    let mut wire = BytesMut::new();
    frame::put(b"a", true, false, &mut wire);
    put_ping(&mut wire);
    frame::put(b"b", false, false, &mut wire);
    theirs.write_all(&wire).await.unwrap();
    let message = Message::from([Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
    assert_eq!(ours.receive().await.unwrap(), Received::Message(message));
    assert!(ours.unsent() > 0);
    ours.flush().await.unwrap();
    assert_eq!(read_command(&mut theirs).await, Command::Pong);
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_was_given_up_loses_nothing() {
    let (mut ours, mut theirs) = connected(Role::Subscriber, "PUB", 1).await;
    let mut wire = BytesMut::new();
    frame::put(b"0123456789", false, false, &mut wire);
    for byte in wire {
        let early = timeout(Duration::from_millis(1), ours.receive()).await;
        assert!(early.is_err(), "{early:?}");
        theirs.write_all(&[byte]).await.unwrap();
    }
    let Received::Message(message) = ours.receive().await.unwrap() else {
        panic!("no message");
    };
    assert_eq!(message.frames(), [Bytes::from_static(b"0123456789")]);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_asked_for_and_a_silent_peer_is_gone() {
    let (mut ours, mut theirs) = connected(Role::Subscriber, "PUB", 1).await;
    let start = Instant::now();
    let peer = async {
        for _ in 0..2 {
            let ping = Command::Ping(Bytes::new());
            assert_eq!(read_command(&mut theirs).await, ping);
            let mut pong = BytesMut::new();
            put_pong(b"", &mut pong);
            theirs.write_all(&pong).await.unwrap();
        }
        assert_eq!(start.elapsed().as_secs(), 20);
        sleep(Duration::from_mins(1)).await;
    };
    tokio::select! {
        ended = ours.receive() => assert!(matches!(ended, Err(Error::Silent(_))), "{ended:?}"),
        () = peer => panic!("a silent peer was not noticed"),
    }
    assert_eq!(start.elapsed().as_secs(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_heartbeats_may_be_silent() {
    let (mut ours, _theirs) = connected(Role::Subscriber, "PUB", 0).await;
    let early = timeout(Duration::from_mins(5), ours.receive()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(ours.unsent(), 0);
}

#[tokio::test]
async fn messages_above_the_bounds_end_the_connection() {
    let mut by_length = BytesMut::new();
    by_length.extend_from_slice(&[2, 0, 0, 1, 0, 0, 0, 0, 0]);
    let (mut by_sum, mut by_count) = (BytesMut::new(), BytesMut::new());
    frame::put(&[0; 600], true, false, &mut by_sum);
    frame::put(&[0; 600], false, false, &mut by_sum);
    for _ in 0..=MAX_FRAMES {
        frame::put(b"", true, false, &mut by_count);
    }
    for wire in [by_length, by_sum, by_count] {
        let (mut ours, mut theirs) = connected(Role::Subscriber, "PUB", 1).await;
        theirs.write_all(&wire).await.unwrap();
        let error = ours.receive().await.unwrap_err();
        assert_eq!(error.reason(), "too-large", "{error}");
        assert!(ours.input.capacity() <= 4 * READ);
    }
}

#[tokio::test]
async fn a_handshake_takes_no_more_than_four_kibibytes() {
    let limits = Limits::default();
    for (identity, is_taken) in [(4000, true), (4096, false)] {
        let mut ready = BytesMut::from(&b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"[..]);
        ready.extend_from_slice(b"\x08Identity");
        ready.extend_from_slice(&u32::try_from(identity).unwrap().to_be_bytes());
        ready.resize(ready.len() + identity, 0);
        let mut hello = BytesMut::new();
        put_greeting(&mut hello);
        frame::put(&ready, false, true, &mut hello);
        let (ours, mut theirs) = duplex(64 << 10);
        theirs.write_all(&hello).await.unwrap();
        let opened = Connection::open(ours, Role::Subscriber, limits).await;
        let reason = opened.err().map(|error| error.reason());
        assert_eq!(reason, (!is_taken).then_some("too-large"), "{identity}");
    }
}

#[tokio::test]
async fn subscriptions_of_either_version_reach_a_publisher() {
    for minor in [0, 1] {
        let (theirs, ours) = duplex(1000);
        let (publisher, subscriber) = tokio::join!(
            Connection::open(ours, Role::Publisher, LIMITS),
            Connection::open(theirs, Role::Subscriber, LIMITS),
        );
        let (mut publisher, mut subscriber) = (publisher.unwrap(), subscriber.unwrap());
        subscriber.minor = minor;
        subscriber.subscribe(b"kv@");
        subscriber.flush().await.unwrap();
        let received = publisher.receive().await.unwrap();
        assert_eq!(received, Received::Subscribe(Bytes::from_static(b"kv@")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_or_is_of_another_kind_is_no_connection() {
    let (ours, _theirs) = duplex(1000);
    let error = Connection::open(ours, Role::Dealer, LIMITS).await;
    assert_eq!(error.unwrap_err().reason(), "late");

    let (ours, mut theirs) = duplex(1000);
    let mut hello = BytesMut::new();
    put_greeting(&mut hello);
    put_ready("ROUTER", &mut hello);
    theirs.write_all(&hello).await.unwrap();
    let error = Connection::open(ours, Role::Subscriber, LIMITS).await;
    assert_eq!(error.unwrap_err().reason(), "socket");
}

#[tokio::test]
async fn real_zeromq_answers_heartbeats() {
    let mut peer = libzmq::Peer::start().unwrap();
    let publisher = peer.bind(libzmq::Kind::Pub, 0).unwrap();
    let connecting = connect(publisher.address(), Role::Subscriber, Limits::default());
    let mut ours = connecting.await.unwrap();
    assert_eq!(ours.minor, 1);
    put_ping(&mut ours.output);
    let frame = loop {
        if let Some(frame) = frame::take(&mut ours.input, 1000).unwrap() {
            break frame;
        }
        let answer = timeout(Duration::from_secs(20), ours.exchange()).await;
        answer.expect("an answer").unwrap();
    };
    assert_eq!(Command::read(&frame.body), Ok(Command::Pong));
}
