//! One request, as the proxy has it: what is sent, and what must come back.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, ProcessingResponse, body_mutation::Mutation, processing_response::Response,
};
use h2::{Reason, SendStream, client::SendRequest};
use tokio::{sync::Barrier, time::Instant};

use super::frames::{Script, request_headers};
use crate::grpc::Messages;

/// What all requests have in common.
pub(super) struct Terms {
    pub(super) script: Script,
    /// What may be picked.
    pub(super) members: BTreeSet<String>,
    /// Where bodies wait until all of them are there, but for their end.
    pub(super) meeting: Option<Barrier>,
}

/// When what happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The end of the body was sent.
    pub(super) asked: Instant,
    /// The answer was here.
    pub(super) picked: Instant,
}

const DESTINATION: &str = "x-gateway-destination-endpoint";
const PROCESS: &str = "http://epp/envoy.service.ext_proc.v3.ExternalProcessor/Process";

// === impl Terms ===

impl Terms {
    /// One request and its response.
    pub(super) async fn exchange(
        &self,
        connection: SendRequest<Bytes>,
        number: usize,
    ) -> Result<Times> {
        let request = self.script.request(number)?;
        let mut connection = connection.ready().await?;
        let (response, mut stream) = connection.send_request(head()?, false)?;
        stream.send_data(request_headers(number)?, false)?;
        for frame in &request.frames {
            stream.send_data(frame.clone(), false)?;
        }
        if let Some(meeting) = &self.meeting {
            meeting.wait().await;
        }
        let asked = Instant::now();
        stream.send_data(request.end.clone(), false)?;
        let response = response.await?;
        ensure!(response.status() == 200, "status {}", response.status());
        let mut replies = Messages::new(response.into_body());
        let answer = next(&mut replies).await?;
        let picked = Instant::now();
        self.check_pick(answer)?;
        echoed(&mut replies, &request.bytes, true, request_body).await?;
        self.respond(number, &mut stream, &mut replies).await?;
        end(stream, replies, number.is_multiple_of(2)).await?;
        Ok(Times { asked, picked })
    }

    /// The response; each body is sent when the one before is back.
    async fn respond(
        &self,
        number: usize,
        stream: &mut SendStream<Bytes>,
        replies: &mut Messages,
    ) -> Result<()> {
        let response = self.script.response(number);
        stream.send_data(response.headers.clone(), false)?;
        let Some(Response::ResponseHeaders(_)) = next(replies).await?.response else {
            bail!("no answer to response headers");
        };
        for body in &response.bodies {
            stream.send_data(body.frame.clone(), false)?;
            echoed(replies, &body.bytes, body.end, response_body).await?;
        }
        Ok(())
    }

    /// It must name one of the members.
    fn check_pick(&self, answer: ProcessingResponse) -> Result<()> {
        let response = answer.response.context("an empty answer")?;
        let Response::RequestHeaders(headers) = response else {
            bail!("no pick, but {response:?}");
        };
        let mutation = headers.response.and_then(|common| common.header_mutation);
        let set = mutation.context("a pick without a header")?.set_headers;
        let mut headers = set.into_iter().filter_map(|option| option.header);
        let header = headers.find(|header| header.key == DESTINATION);
        let value = header.context("a pick without its header")?.raw_value;
        let picked = String::from_utf8(value)?;
        ensure!(self.members.contains(&picked), "{picked} is no member");
        ensure!(answer.dynamic_metadata.is_some(), "a pick without metadata");
        Ok(())
    }
}

/// Half of the streams end in order, half as a client that goes away ends them.
async fn end(mut stream: SendStream<Bytes>, mut replies: Messages, in_order: bool) -> Result<()> {
    if !in_order {
        stream.send_reset(Reason::CANCEL);
        return Ok(());
    }
    stream.send_data(Bytes::new(), true)?;
    let more: Option<ProcessingResponse> = replies.next().await?;
    ensure!(more.is_none(), "an answer to nothing");
    let trailers = replies.trailers().await?;
    let status = trailers.get("grpc-status").context("no gRPC status")?;
    ensure!(status == "0", "gRPC status {status:?}");
    Ok(())
}

fn head() -> Result<http::Request<()>> {
    let request = http::Request::post(PROCESS)
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .header("grpc-timeout", "300S");
    Ok(request.body(())?)
}

async fn next(replies: &mut Messages) -> Result<ProcessingResponse> {
    replies.next().await?.context("the stream ended early")
}

fn request_body(response: Response) -> Option<BodyResponse> {
    match response {
        Response::RequestBody(body) => Some(body),
        _ => None,
    }
}

fn response_body(response: Response) -> Option<BodyResponse> {
    match response {
        Response::ResponseBody(body) => Some(body),
        _ => None,
    }
}

/// These bytes must come back, in as many messages as it takes, and the end with the last if it was sent.
async fn echoed(
    replies: &mut Messages,
    bytes: &[u8],
    end: bool,
    body_of: fn(Response) -> Option<BodyResponse>,
) -> Result<()> {
    let mut rest = bytes;
    loop {
        let response = next(replies).await?.response.context("an empty answer")?;
        let common = body_of(response).and_then(|body| body.response);
        let mutation = common.and_then(|common| common.body_mutation?.mutation);
        let Some(Mutation::StreamedResponse(streamed)) = mutation else {
            bail!("no streamed answer");
        };
        let after = rest.strip_prefix(streamed.body.as_slice());
        rest = after.context("other bytes came back")?;
        if rest.is_empty() && (streamed.end_of_stream || !end) {
            ensure!(streamed.end_of_stream == end, "an end that was not sent");
            return Ok(());
        }
        ensure!(!streamed.end_of_stream, "an end before the last byte");
        ensure!(!streamed.body.is_empty(), "an answer to nothing");
    }
}
