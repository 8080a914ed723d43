//! `floor --listen ADDRESS --destination ADDRESS`: the least that any EPP must do, as a floor for what ours takes.
//!
//! Raw h2, one thread. It decodes each message, collects the request body until its end, answers the headers with a fixed
//! destination, sends the body back in messages of 62,000 bytes, and sends back what comes of the response. It reads no
//! model, keeps no load, measures nothing and has no deadlines.

use std::{net::SocketAddr, process::ExitCode};

use anyhow::{Context, Result, bail};
use bench::{Messages, grpc_frame};
use bytes::Bytes;
use clap::Parser;
use envoy_types::pb::{
    envoy::{
        config::core::v3::{HeaderValue, HeaderValueOption},
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse,
            ProcessingRequest, ProcessingResponse, StreamedBodyResponse, TrailersResponse,
            body_mutation::Mutation, processing_request::Request, processing_response::Response,
        },
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use h2::{RecvStream, SendStream, server::SendResponse};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// What is picked, always.
    #[arg(long)]
    destination: SocketAddr,
}

/// Windows and limits as our EPP has them.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
const MAX_STREAMS: u32 = 50_000;
const PENDING_RESETS: usize = 10_000;
/// Envoy takes messages of up to 64 KiB.
const ECHO: usize = 62_000;

const DESTINATION: &str = "x-gateway-destination-endpoint";

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime");
    match runtime.and_then(|runtime| runtime.block_on(serve(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<()> {
    let listener = TcpListener::bind(args.listen).await.context("--listen")?;
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.context("accepting")?;
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // the peer ends a connection as it likes
            let _ended = connection(socket, args.destination.to_string()).await;
        });
    }
}

async fn connection(socket: TcpStream, destination: String) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .handshake::<_, Bytes>(socket)
        .await?;
    let mut streams = JoinSet::new();
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        while streams.try_join_next().is_some() {}
        let destination = destination.clone();
        streams.spawn(async move {
            // half of the streams end by a reset
            let _ended = stream(request.into_body(), respond, destination).await;
        });
    }
    Ok(())
}

async fn stream(
    requests: RecvStream,
    mut respond: SendResponse<Bytes>,
    destination: String,
) -> Result<()> {
    let head = http::Response::builder().header("content-type", "application/grpc");
    let mut replies = respond.send_response(head.body(())?, false)?;
    let mut requests = Messages::new(requests);
    let mut body = Vec::new();
    while let Some(message) = requests.next::<ProcessingRequest>().await? {
        match message.request.context("an empty message")? {
            Request::RequestHeaders(_) => {}
            Request::RequestBody(chunk) => {
                body.extend_from_slice(&chunk.body);
                if chunk.end_of_stream {
                    send(&mut replies, pick(&destination))?;
                    echo(&mut replies, &body)?;
                }
            }
            Request::ResponseHeaders(_) => {
                let response = Response::ResponseHeaders(HeadersResponse::default());
                send(&mut replies, plain(response))?;
            }
            Request::ResponseBody(chunk) => {
                let reply = streamed(chunk.body, chunk.end_of_stream);
                send(&mut replies, plain(Response::ResponseBody(reply)))?;
            }
            Request::ResponseTrailers(_) => {
                let response = Response::ResponseTrailers(TrailersResponse::default());
                send(&mut replies, plain(response))?;
            }
            Request::RequestTrailers(_) => bail!("request trailers: no load sends them"),
        }
    }
    let ok = [(
        http::HeaderName::from_static("grpc-status"),
        http::HeaderValue::from_static("0"),
    )];
    replies.send_trailers(http::HeaderMap::from_iter(ok))?;
    Ok(())
}

fn echo(replies: &mut SendStream<Bytes>, body: &[u8]) -> Result<()> {
    let mut chunks = body.chunks(ECHO).peekable();
    while let Some(chunk) = chunks.next() {
        let reply = streamed(chunk.to_vec(), chunks.peek().is_none());
        send(replies, plain(Response::RequestBody(reply)))?;
    }
    Ok(())
}

fn send(replies: &mut SendStream<Bytes>, message: ProcessingResponse) -> Result<()> {
    Ok(replies.send_data(grpc_frame(&message)?, false)?)
}

fn pick(destination: &str) -> ProcessingResponse {
    let header = HeaderValueOption {
        header: Some(HeaderValue {
            key: DESTINATION.to_owned(),
            raw_value: destination.into(),
            ..HeaderValue::default()
        }),
        ..HeaderValueOption::default()
    };
    let common = CommonResponse {
        header_mutation: Some(HeaderMutation {
            set_headers: vec![header],
            ..HeaderMutation::default()
        }),
        clear_route_cache: true,
        ..CommonResponse::default()
    };
    let value = |kind| Value { kind: Some(kind) };
    let field = |key: &str, kind| Struct {
        fields: [(key.to_owned(), value(kind))].into(),
    };
    let inner = field(DESTINATION, Kind::StringValue(destination.to_owned()));
    let headers = HeadersResponse {
        response: Some(common),
    };
    ProcessingResponse {
        dynamic_metadata: Some(field("envoy.lb", Kind::StructValue(inner))),
        ..plain(Response::RequestHeaders(headers))
    }
}

fn streamed(body: Vec<u8>, end_of_stream: bool) -> BodyResponse {
    let streamed = StreamedBodyResponse {
        body,
        end_of_stream,
        ..StreamedBodyResponse::default()
    };
    let mutation = BodyMutation {
        mutation: Some(Mutation::StreamedResponse(streamed)),
    };
    BodyResponse {
        response: Some(CommonResponse {
            body_mutation: Some(mutation),
            ..CommonResponse::default()
        }),
    }
}

fn plain(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        ..ProcessingResponse::default()
    }
}
