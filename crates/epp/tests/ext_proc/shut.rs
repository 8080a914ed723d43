//! A peer that leaves no room for answers: its window stays shut.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    ProcessingRequest, processing_request::Request,
};
use h2::{SendStream, client::ResponseFuture};
use prost::Message;
use tokio::{net::TcpStream, task::JoinSet};

use super::peer::{BODY, mk_body, mk_headers};

/// One stream on a connection of its own, which ends with it.
pub(crate) struct Shut {
    _requests: SendStream<Bytes>,
    _replies: ResponseFuture,
    _connection: JoinSet<()>,
}

impl Shut {
    /// Sends a whole request.
    pub(crate) async fn post(address: SocketAddr) -> Self {
        let tcp = TcpStream::connect(address).await.unwrap();
        let (client, connection) = h2::client::Builder::new()
            .initial_window_size(0)
            .handshake::<_, Bytes>(tcp)
            .await
            .unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = connection.await; // it is cut at the end of the test
        });
        let method = "envoy.service.ext_proc.v3.ExternalProcessor/Process";
        let request = http::Request::post(format!("http://{address}/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let mut client = client.ready().await.unwrap();
        let (replies, mut requests) = client.send_request(request, false).unwrap();
        let headers = mk_headers(&[(":path", "/v1/chat/completions")], false);
        for request in [
            Request::RequestHeaders(headers),
            Request::RequestBody(mk_body(BODY, true)),
        ] {
            requests.send_data(frame(request), false).unwrap();
        }
        Self {
            _requests: requests,
            _replies: replies,
            _connection: tasks,
        }
    }
}

fn frame(request: Request) -> Bytes {
    let message = ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    };
    let mut frame = BytesMut::new();
    frame.put_u8(0); // not compressed
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut frame).unwrap();
    frame.freeze()
}
