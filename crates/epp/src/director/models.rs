//! Which model a request is for: what clients may ask for, what servers get, and how much it matters (pure).

use std::sync::Arc;

use moment::Moment;
use rand::Rng;

use crate::{
    body::Parsed,
    config::Models,
    extproc::RequestHead,
    llm::{Match, TraceId},
    reject::Reject,
};

/// Whether models that nobody lists are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ModelMatch {
    /// Where the configuration or an InferenceModel of the pool lists models.
    #[default]
    Auto,
    /// Always, as the protocol's text has it.
    Strict,
    /// Never.
    Off,
}

/// What is known of a request beside where it may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The model the client asks for; absent: its body was not read.
    pub(crate) model: Option<Arc<str>>,
    /// The model the server gets.
    pub(crate) target: Option<Arc<str>>,
    /// The higher, the more it matters; below 0 it is shed first.
    pub(crate) priority: i32,
    /// Whose share of the pool it is.
    pub(crate) fairness_id: Option<Arc<str>>,
    /// Where the LLM filter has it go; absent: it has no say.
    pub(crate) found: Option<Box<Match>>,
    /// From when to when that was looked for.
    pub(crate) ruled: Option<[Moment; 2]>,
    /// Of a request under an LLM filter.
    pub(crate) trace_id: Option<TraceId>,
}

/// Names of an objective's header.
const OBJECTIVE: [&str; 2] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
];
const FAIRNESS_ID: [&str; 2] = [
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
];
const MODEL_REWRITE: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// Finds out what a request is for. `is_inference`: its path is one whose bodies are read. `is_cut`: only a part of the
/// body was seen.
///
/// # Errors
/// [`Reject::ModelNotFound`] where the model is none of those that clients may ask for, or one that nothing serves;
/// [`Reject::BodyNotSeen`] where it matters and stands in the part of the body that was not seen.
pub(crate) fn resolve<R: Rng + ?Sized>(
    models: &Models,
    matching: ModelMatch,
    head: &RequestHead,
    is_inference: bool,
    is_cut: bool,
    parsed: Option<&Parsed>,
    rng: &mut R,
) -> Result<Resolved, Reject> {
    let asked = parsed.map(|parsed| parsed.model.as_str());
    let enforced = match matching {
        ModelMatch::Auto => models.is_listed() && is_inference && !head.end,
        ModelMatch::Strict => is_inference || !head.end,
        ModelMatch::Off => false,
    };
    let trusted = models.trusted_headers();
    let forced = forced(models, head);
    if is_cut && (enforced || models.renames()) {
        return Err(Reject::BodyNotSeen);
    }
    let not_found = || Reject::ModelNotFound(asked.map(str::to_owned));
    let listed = asked.and_then(|asked| models.get(asked));
    if enforced && listed.is_none() && forced.is_none() {
        return Err(not_found());
    }
    let model: Option<Arc<str>> = asked.map(Into::into);
    let target = match (&model, forced) {
        (None, _) => None,
        (Some(_), Some(forced)) => Some(forced.into()),
        (Some(asked), None) => {
            let targets = models
                .rewrite(asked)
                .or_else(|| listed.and_then(|listed| listed.targets.as_ref()));
            match targets.map(|targets| targets.choose(rng)) {
                Some(Some(target)) => Some(Arc::clone(target)),
                // reserved: it has targets, and none takes requests
                Some(None) if matching != ModelMatch::Off => return Err(not_found()),
                Some(None) | None => Some(Arc::clone(asked)),
            }
        }
    };
    let objective = head.field(&OBJECTIVE).filter(|_| trusted.objective);
    let priority = objective
        .and_then(|name| models.objective(name))
        .or_else(|| listed.map(|listed| listed.priority));
    let fairness_id = head.field(&FAIRNESS_ID).filter(|_| trusted.fairness);
    Ok(Resolved {
        model,
        target,
        priority: priority.unwrap_or(0),
        fairness_id: fairness_id.map(Into::into),
        found: None,
        ruled: None,
        trace_id: None,
    })
}

/// The model that a trusted header names for the server, before all else.
pub(super) fn forced<'a>(models: &Models, head: &'a RequestHead) -> Option<&'a str> {
    let header = head.field(&MODEL_REWRITE);
    header.filter(|_| models.trusted_headers().model_name_rewrite)
}

#[cfg(test)]
mod tests;
