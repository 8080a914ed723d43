use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc::error::TryRecvError,
};

use super::*;

/// Answers all with nothing.
struct Empty;

impl Connection for Empty {
    type Body = Full<Bytes>;

    async fn answer(&self, _: Request<Incoming>) -> Response<Self::Body> {
        Response::default()
    }
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(connecting, listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

#[tokio::test]
async fn a_connection_over_the_limit_is_closed_and_there_is_room_once_another_ended() {
    let (queue, mut accepted) = mpsc::channel(QUEUE);
    let mut turns = Turns {
        places: vec![Place {
            queue,
            live: Live::default(),
        }],
        most: 1,
        refused: Refused::default(),
    };
    let mut hand = async || {
        let (client, server) = pair().await;
        turns.hand(server).await;
        client
    };
    let _first = hand().await;
    let mut second = hand().await;
    assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "closed");
    let first = accepted.try_recv().expect("handed out");
    assert!(matches!(accepted.try_recv(), Err(TryRecvError::Empty)));
    drop(first);
    let _third = hand().await;
    assert!(accepted.try_recv().is_ok());
}

fn ends() -> Ends {
    Ends {
        leaving: CancellationToken::new(),
        stop: CancellationToken::new(),
    }
}

#[tokio::test]
async fn from_the_drain_on_a_connection_ends_with_its_next_reply() {
    let (mut client, server) = pair().await;
    let (http, ends) = (http(), ends());
    let leaving = ends.leaving.clone();
    let using = async {
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut kept = [0; 15];
        client.read_exact(&mut kept).await.unwrap();
        leaving.cancel();
        client.write_all(request).await.unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        rest
    };
    let serving = serve_connection(&http, MaybeTls::plain(server), Empty, ends);
    let ((), rest) = tokio::join!(serving, using);
    let (_, second) = rest.split_once("HTTP/1.1 200").expect("two replies");
    assert!(second.contains("connection: close"), "{rest}");
}

#[tokio::test]
async fn a_call_by_the_name_of_an_istio_cluster_is_answered() {
    let (client, server) = pair().await;
    let (http, ends) = (http(), ends());
    let stop = ends.stop.clone();
    let using = async {
        let answered = authority::test_util::is_answered(client, "/v1/load/stats").await;
        stop.cancel();
        answered
    };
    let serving = serve_connection(&http, MaybeTls::plain(server), Empty, ends);
    let ((), answered) = tokio::join!(serving, using);
    assert!(answered.unwrap(), "reset");
}

/// When the server closed a connection on which so much was sent, by the paused clock.
async fn closed_after(sent: &[u8], read: usize) -> Duration {
    let (mut client, server) = pair().await;
    let begun = Instant::now();
    let (http, ends) = (http(), ends());
    let using = async {
        client.write_all(sent).await.unwrap();
        client.read_exact(&mut vec![0; read]).await.unwrap();
        client.read_to_end(&mut Vec::new()).await
    };
    let serving = serve_connection(&http, MaybeTls::plain(server), Empty, ends);
    let ((), left) = tokio::join!(serving, using);
    left.unwrap();
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_after_some_minutes() {
    for (sent, read) in [
        ("", 0),
        ("GET / HTTP/1.1\r\nhost: x\r\n", 0),
        ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", 12),
    ] {
        let after = closed_after(sent.as_bytes(), read).await;
        assert!(
            after >= IDLE && after < IDLE + 2 * LAST_REPLIES,
            "{sent:?}: {after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_idle_from_its_last_request_on() {
    let activity = Activity::new();
    let start = activity.start;
    let step = Duration::from_mins(1);
    let request = activity.begin();
    tokio::time::advance(step).await;
    assert_eq!(activity.idle_at(), start + step + IDLE);
    drop(request);
    tokio::time::advance(step).await;
    assert_eq!(activity.idle_at(), start + step + IDLE);
}
