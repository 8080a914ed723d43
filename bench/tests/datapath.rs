//! Clients and model servers of the data path's benchmark, without anything between them.
#![cfg(test)]

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use bench::datapath::{Answered, Clients, Message, ModelServers, SERVED_BY, Target, Window};
use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{Instant, sleep},
};

const CLIENTS: usize = 4;

async fn mk_servers(cluster: &str) -> Result<(ModelServers, SocketAddr)> {
    let address = apiserver_sim::free_address()?;
    Ok((ModelServers::start(cluster, &[address]).await?, address))
}

fn mk_target(address: SocketAddr, clusters: &[&str]) -> Target {
    Target {
        address,
        host: "any.example".to_owned(),
        clusters: clusters.iter().map(|&name| name.to_owned()).collect(),
    }
}

async fn send(target: &Target) -> Result<Vec<Answered>> {
    let clients = Clients::start(target, CLIENTS);
    sleep(Duration::from_millis(100)).await;
    clients.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_is_answered_again_and_again() -> Result<()> {
    let (_servers, address) = mk_servers("east").await?;
    let from = Instant::now();
    let answered = send(&mk_target(address, &["west", "east"])).await?;
    assert!(answered.len() > CLIENTS, "{} answers", answered.len());
    assert!(answered.iter().all(|one| one.cluster == 1), "{answered:?}");
    let error = Window::of(&answered, from, Instant::now(), 2).unwrap_err();
    assert!(error.to_string().contains("answered nothing"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_of_another_cluster_fails() -> Result<()> {
    let (_servers, address) = mk_servers("south").await?;
    let error = send(&mk_target(address, &["west", "east"])).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains(r#"of ["west", "east"]"#), "{error}");
    assert!(error.contains(&format!("{SERVED_BY}: south")), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn scrape_gets_metrics() -> Result<()> {
    let (_servers, address) = mk_servers("east").await?;
    let page = bench::http_page(address).await?;
    let waiting = bench::sum_of_series(&page, "vllm:num_requests_waiting");
    let running = bench::sum_of_series(&page, "vllm:num_requests_running");
    assert!(waiting < 0.5 && running > 0.5, "{page}");
    Ok(())
}

/// An Envoy ends connections, and sends bodies in chunks.
#[tokio::test(flavor = "multi_thread")]
async fn clients_go_on_over_another_connection_where_one_is_closed() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let target = mk_target(address, &["east"]);
    let clients = Clients::start(&target, 1);
    let answer = format!(
        "HTTP/1.1 200 OK\r\n{SERVED_BY}: east\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    );
    for number in 0..4 {
        let (mut socket, _) = listener.accept().await?;
        let mut held = BytesMut::new();
        let length = loop {
            if let Some(request) = Message::read(&held)? {
                break request.length;
            }
            socket.read_buf(&mut held).await?;
        };
        held.advance(length);
        assert!(held.is_empty(), "{held:?}");
        // The last one is closed without an answer.
        if number < 3 {
            socket.write_all(answer.as_bytes()).await?;
        }
    }
    let error = clients.end().await.unwrap_err().to_string();
    assert!(
        error.contains("any.example: the connection was closed"),
        "{error}"
    );
    Ok(())
}
