//! Messages a second from a publisher to a subscriber over loopback, both in this process.
#![expect(clippy::print_stdout, reason = "a program for terminals")]

use std::{process::ExitCode, time::Duration};

use bytes::Bytes;
use tokio::{
    net::TcpListener,
    task::{JoinSet, yield_now},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use zmtp::{Error, Limits, Message, Publisher, Received, Role, connect, serve};

/// A message of an engine that stored a block of 16 ids has about as many.
const PAYLOAD: usize = 160;
const MESSAGES: u64 = 1_000_000;
const GOAL: f64 = 100_000.0;

fn message(number: u64) -> Message {
    [
        Bytes::new(),
        Bytes::copy_from_slice(&number.to_be_bytes()),
        Bytes::from_static(&[7; PAYLOAD]),
    ]
    .into()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut holds = true;
    for (name, rate) in [
        ("one publisher, as fast as it is read", lossless().await),
        ("a publisher's queue, losses not counted", published().await),
    ] {
        match rate {
            Ok(rate) => {
                println!("{name}: {rate:.0} messages/s, goal {GOAL}");
                holds &= rate >= GOAL;
            }
            Err(error) => {
                println!("{name}: {error}");
                holds = false;
            }
        }
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The publisher waits for the subscriber, so that the slower of both is measured.
async fn lossless() -> Result<f64, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::Io)?;
    let address = listener.local_addr().map_err(Error::Io)?;
    let (limits, stop) = (Limits::default(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(
        listener,
        Role::Publisher,
        limits,
        stop.clone(),
        async |mut peer| {
            peer.receive().await?;
            for number in 0..MESSAGES {
                peer.push(&message(number));
                if peer.unsent() > 64 << 10 {
                    peer.flush().await?;
                }
            }
            peer.flush().await
        },
    ));
    let mut subscriber = connect(address, Role::Subscriber, limits).await?;
    subscriber.subscribe(b"");
    let start = Instant::now();
    let mut received = 0_u64;
    while received < MESSAGES {
        subscriber.receive().await?;
        received += 1;
    }
    let rate = received as f64 / start.elapsed().as_secs_f64();
    stop.cancel();
    tasks.join_all().await;
    Ok(rate)
}

async fn published() -> Result<f64, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::Io)?;
    let address = listener.local_addr().map_err(Error::Io)?;
    let (limits, stop) = (Limits::default(), CancellationToken::new());
    let publisher = std::sync::Arc::new(Publisher::new(100_000));
    let mut tasks = JoinSet::new();
    let (serving, stopped) = (publisher.clone(), stop.clone());
    tasks.spawn(async move { serving.serve(listener, limits, stopped).await });
    let mut subscriber = connect(address, Role::Subscriber, limits).await?;
    subscriber.subscribe(b"");
    // until the subscription is known
    while timeout(Duration::from_millis(10), subscriber.receive())
        .await
        .is_err()
    {
        publisher.publish(message(0));
    }
    let stopped = stop.clone();
    tasks.spawn(async move {
        let mut number = 0;
        while !stopped.is_cancelled() {
            for _ in 0..100 {
                publisher.publish(message(number));
                number += 1;
            }
            yield_now().await;
        }
    });
    let start = Instant::now();
    let mut received = 0_u64;
    while received < MESSAGES {
        if let Received::Message(_) = subscriber.receive().await? {
            received += 1;
        }
    }
    let rate = received as f64 / start.elapsed().as_secs_f64();
    stop.cancel();
    tasks.join_all().await;
    Ok(rate)
}
