//! What becomes of the bodies of a request: nothing, another model's name, or another protocol.

use bytes::Bytes;
use jiff::Timestamp;
use transcode::{BodyEdit, Call, RequestData, Target, Transcoder, transcoder};

use super::models::Resolved;
use crate::{
    body::{BYTE_ORDER_MARK, Parsed},
    config::InForce,
    edit::Edit,
    extproc::{BodyMode, Query, RequestHead},
    llm::{LlmError, Match, TraceId},
    reject::Reject,
    tap::ResponseTap,
};
use processor_api::Splice;

/// A server that answers in pieces that were compressed cannot be understood.
const ACCEPT_ENCODING: &str = "accept-encoding";

/// Who reads a response.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Reads it as it passes.
    pub(super) tap: Option<ResponseTap>,
    /// Makes another one of it.
    pub(super) transcoder: Option<Box<dyn Transcoder>>,
}

/// # Errors
/// [`LlmError::Transcode`] for a request whose body was not seen: any rule may be its own, also one with a backend of
/// another protocol.
pub(super) fn check_seen(config: &InForce, query: &Query) -> Result<(), Reject> {
    let transcodes = config.llm_filter().is_some_and(|filter| filter.transcodes);
    if transcodes && query.is_inference && query.parsed.is_none() && !query.head.end {
        let problem = "it must see the request's body before the answer to its headers";
        return Err(unseen(problem));
    }
    Ok(())
}

/// Changes the request's body in `edit` as it must be, and says who is to read the response.
///
/// # Errors
/// [`LlmError::Transcode`] when its server speaks another protocol, and the request cannot be put in its terms.
pub(super) fn prepare(
    config: &InForce,
    resolved: &Resolved,
    head: &RequestHead,
    parsed: Option<&Parsed>,
    body: &Bytes,
    edit: &mut Edit,
) -> Result<Readers, Reject> {
    if let Some(transcoder) = transcode(config, resolved, head, parsed, body, edit)? {
        return Ok(Readers {
            tap: None,
            transcoder: Some(transcoder),
        });
    }
    let mut tap = parsed.map(|_| ResponseTap::default());
    if let (Some(parsed), Some(model), Some(target)) = (parsed, &resolved.model, &resolved.target)
        && model != target
        && edit.rewrite_model(parsed.model_at.clone(), target).is_ok()
    {
        tap = Some(ResponseTap::restoring(model));
        // The name cannot be put back into an answer that is compressed.
        if head.field(&[ACCEPT_ENCODING]).is_some() {
            edit.remove_header(ACCEPT_ENCODING);
        }
    }
    Ok(Readers {
        tap,
        transcoder: None,
    })
}

/// The transcoder of a request whose rule names a backend that needs one.
fn transcode(
    config: &InForce,
    resolved: &Resolved,
    head: &RequestHead,
    parsed: Option<&Parsed>,
    body: &Bytes,
    edit: &mut Edit,
) -> Result<Option<Box<dyn Transcoder>>, Reject> {
    let (Some(filter), Some(found)) = (config.llm_filter(), &resolved.found) else {
        return Ok(None);
    };
    let transcoders = &filter.transcoders;
    let backend = &found.rule.backend;
    let Some(target) = resolved.target.as_deref().filter(|_| parsed.is_some()) else {
        return Ok(None);
    };
    if backend.is_passthrough(transcoders) {
        return Ok(None);
    }
    let response = head.modes.map(|modes| modes.response);
    if let Some(BodyMode::None | BodyMode::BufferedPartial) = response {
        return Err(unseen("it must see all of the response's body"));
    }
    let id = resolved.trace_id.as_ref().map(TraceId::as_str);
    let id = id.unwrap_or_default().to_owned();
    let call = Call {
        request_id: id.clone(),
        trace_id: id,
        created: u64::try_from(Timestamp::now().as_second()).unwrap_or_default(),
    };
    let mut transcoder = transcoder(filter.protocol, backend, transcoders, call);
    let path = String::from_utf8_lossy(&head.path);
    let marked = if body.starts_with(BYTE_ORDER_MARK) {
        BYTE_ORDER_MARK.len()
    } else {
        0
    };
    let RequestData { .. } = transcoder
        .read_request(&path, &body.slice(marked..))
        .map_err(LlmError::from)?;
    let target = target_of(found, target, config);
    let edited = transcoder.encode_request(&target).map_err(LlmError::from)?;
    if let Some(path) = edited.path {
        edit.set_header(":path", path);
    }
    let splice = match edited.body {
        BodyEdit::Same => None,
        // Its places are in what it was given.
        BodyEdit::Splice(at, with) => Some(Splice {
            at: at.start.saturating_add(marked)..at.end.saturating_add(marked),
            with,
        }),
        BodyEdit::Whole(with) => Some(Splice {
            at: 0..body.len(),
            with,
        }),
    };
    if let Some(splice) = splice {
        // Nothing else of the body is changed before.
        let spliced = edit.splice(splice);
        debug_assert_eq!(spliced, Ok(()));
    }
    edit.remove_header(ACCEPT_ENCODING);
    Ok(Some(transcoder))
}

/// The model and its adapter, where the server gets an adapter's name: its protocol has a place for both.
fn target_of<'a>(found: &'a Match, target: &'a str, config: &'a InForce) -> Target<'a> {
    let lora = found
        .subset
        .as_ref()
        .and_then(|subset| subset.lora.as_deref());
    let model = found.model.as_deref();
    let (Some(adapter), Some(model)) = (lora.filter(|lora| *lora == target), model) else {
        return Target {
            model: target,
            adapter: None,
        };
    };
    let models = config.models();
    let rewritten = models.rewrite(model);
    let rewritten = rewritten.and_then(|targets| targets.choose(&mut rand::rng()));
    Target {
        model: rewritten.map_or(model, |rewritten| rewritten),
        adapter: Some(adapter),
    }
}

fn unseen(problem: &str) -> Reject {
    let message = format!(
        "the model server may speak another protocol, so the endpoint picker translates: {problem}; change the modes of the proxy's bodies"
    );
    let param = None;
    LlmError::Transcode { message, param }.into()
}
