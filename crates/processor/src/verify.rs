//! `processor verify`: are the ids of sample requests those that an engine makes of them?

use std::{
    fmt, fs,
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::PathAndQuery};
use http_call::{BaseUrl, Call, Hop, Settings};
use process::{ConfigError, Exit};
use processor_api::parse_ids;
use serde_json::Value;
use tokenization::{Api, Catalogue, EncodeOptions, SegmentCache};

use crate::{
    args::{PromptArgs, VerifyArgs},
    metrics::Metrics,
    models::Models,
    steps::{Ids, Shared, ids_of},
};

/// For one answer of the engine.
const WITHIN: Duration = Duration::from_secs(30);

/// Ids of the engine's answer.
const MAX_IDS: usize = 16 << 20;

/// Of the engine's answer, with all that it says beside the ids.
const MAX_REPLY: usize = 256 << 20;

/// What came out for one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// So many ids.
    Equal(usize),
    /// At this place. Absent: the list ends there.
    Differs {
        at: usize,
        ours: Option<u32>,
        engines: Option<u32>,
    },
    /// Calls like it are left to the engine.
    Left(String),
    /// The engine takes what would be refused here.
    RefusedHere(String),
    /// The engine refuses it, and it would be taken here.
    RefusedByEngine(StatusCode),
    /// Both refuse it.
    RefusedByBoth,
}

/// An engine that is asked.
struct Engine {
    hop: Hop,
    /// It has no render endpoints.
    tokenizes: bool,
}

/// Compares all samples, prints a line for each, and fails when one differs.
///
/// # Errors
/// [`ConfigError`] for files that cannot be used, [`Exit`] when a sample differs, else what made it end early.
pub(crate) async fn run(args: VerifyArgs, prompts: &PromptArgs) -> anyhow::Result<()> {
    let VerifyArgs { engine, samples } = args;
    let shared = Arc::new(shared(prompts).context("cannot load the models")?);
    let text = fs::read_to_string(&samples).map_err(|error| {
        ConfigError::new(
            format!("--samples {}: {error}", samples.display()),
            "a file with a request on each line",
            "--samples samples.jsonl",
        )
    })?;
    let mut engine = Engine::new(engine);
    let (mut tried, mut wrong) = (0, 0);
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let sample = Bytes::copy_from_slice(line.as_bytes());
        let finding = find(&shared, &mut engine, sample).await?;
        tried += 1;
        wrong += usize::from(finding.is_wrong());
        let name = format!("{}:{}", samples.display(), at + 1);
        writeln!(io::stdout(), "{name}: {finding}").context("cannot write")?;
    }
    if wrong > 0 {
        let text = format!("{wrong} of {tried} samples are not as the engine has them");
        return Err(Exit::new(1, text).into());
    }
    Ok(writeln!(
        io::stdout(),
        "{tried} samples, all as the engine has them"
    )?)
}

fn shared(args: &PromptArgs) -> anyhow::Result<Shared> {
    let path = args.models_file()?;
    let base = path.parent().unwrap_or(Path::new(""));
    let unusable = |error: String| {
        ConfigError::new(
            format!("--models-file {}: {error}", path.display()),
            "a file that names models",
            "--models-file /etc/processor/models.yaml",
        )
    };
    let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let mut number = 0;
    let next_number = || {
        number += 1;
        number
    };
    let catalogue = Catalogue::load(&text, base, &Catalogue::default(), next_number);
    let catalogue = catalogue.map_err(|error| unusable(error.to_string()))?;
    let failed: Vec<_> = catalogue
        .failed()
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    let max_prompt_bytes = args.max_prompt_bytes.0;
    Ok(Shared {
        models: Models::fixed(catalogue),
        options: EncodeOptions {
            cache: SegmentCache::new(args.segment_cache_max_bytes.0, rand::random()),
            verify_sample: args.verify_sample,
        },
        max_prompt_bytes: usize::try_from(max_prompt_bytes).unwrap_or(usize::MAX),
        metrics: Metrics::default(),
    })
}

/// It has the thread for itself: nothing else runs.
async fn find(shared: &Shared, engine: &mut Engine, sample: Bytes) -> anyhow::Result<Finding> {
    let ours = ids_of(shared, &sample);
    let api = match &ours {
        Ok(ids) => Ok(ids.api),
        Err(_) => api_of(&sample),
    };
    let Ok(api) = api else {
        return Ok(Finding::Left("no prompt is in it".to_owned()));
    };
    let engines = engine.ids(api, sample).await?;
    Ok(match (ours, engines) {
        (Ok(Ids { ids, .. }), Ok(engines)) => Finding::compare(&ids, &engines),
        (Ok(_), Err(status)) => Finding::RefusedByEngine(status),
        (Err(refusal), Ok(_)) if refusal.status() == 422 => Finding::Left(refusal.to_string()),
        (Err(refusal), Ok(_)) => Finding::RefusedHere(refusal.to_string()),
        (Err(_), Err(_)) => Finding::RefusedByBoth,
    })
}

fn api_of(sample: &[u8]) -> Result<Api, ()> {
    let body = str::from_utf8(sample).map_err(|_| ())?;
    Api::of(None, body).ok().flatten().ok_or(())
}

// === impl Finding ===

impl Finding {
    fn compare(ours: &[u32], engines: &[u32]) -> Self {
        let length = ours.len().max(engines.len());
        match (0..length).find(|at| ours.get(*at) != engines.get(*at)) {
            None => Self::Equal(length),
            Some(at) => Self::Differs {
                at,
                ours: ours.get(at).copied(),
                engines: engines.get(at).copied(),
            },
        }
    }

    fn is_wrong(&self) -> bool {
        matches!(
            self,
            Self::Differs { .. } | Self::RefusedHere(_) | Self::RefusedByEngine(_)
        )
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: &Option<u32>| id.map_or("the end".to_owned(), |id| id.to_string());
        match self {
            Self::Equal(count) => write!(f, "{count} ids, all equal"),
            Self::Differs { at, ours, engines } => {
                let (ours, engines) = (id(ours), id(engines));
                write!(f, "id {at} differs: {ours} here, {engines} in the engine")
            }
            Self::Left(why) => write!(f, "left to the engine: {why}"),
            Self::RefusedHere(why) => write!(f, "refused here, and not by the engine: {why}"),
            Self::RefusedByEngine(status) => {
                write!(
                    f,
                    "the engine refuses it with {status}, and it is taken here"
                )
            }
            Self::RefusedByBoth => f.write_str("refused by both"),
        }
    }
}

// === impl Engine ===

impl Engine {
    fn new(base: BaseUrl) -> Self {
        let settings = Settings {
            max_in_flight: 1,
            max_reply: MAX_REPLY,
            tls: None,
            isthmus: false,
        };
        Self {
            hop: Hop::new(base, settings),
            tokenizes: false,
        }
    }

    /// The ids of a client's body, or the status of the refusal.
    async fn ids(&mut self, api: Api, body: Bytes) -> anyhow::Result<Result<Vec<u32>, StatusCode>> {
        if !self.tokenizes {
            let path = match api {
                Api::Chat => "/v1/chat/completions/render",
                Api::Completions => "/v1/completions/render",
            };
            let rendered = self.ask(path, body.clone()).await?;
            let is_served = |status: StatusCode| {
                !matches!(
                    status,
                    StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
                )
            };
            match rendered {
                Err(status) if !is_served(status) => self.tokenizes = true,
                rendered => return Ok(rendered),
            }
        }
        self.ask("/tokenize", body).await
    }

    async fn ask(
        &self,
        path: &'static str,
        body: Bytes,
    ) -> anyhow::Result<Result<Vec<u32>, StatusCode>> {
        let json = HeaderValue::from_static("application/json");
        let call = Call {
            method: Method::POST,
            path: PathAndQuery::from_static(path),
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
            body: vec![body],
        };
        let reply = self.hop.call(call, WITHIN).await;
        let reply = reply.with_context(|| format!("cannot ask {}{path}", self.hop.base()))?;
        if !reply.status.is_success() {
            return Ok(Err(reply.status));
        }
        let value: Value = serde_json::from_slice(&reply.body)
            .with_context(|| format!("{path} of the engine answers without JSON"))?;
        let list = list_of(&value).with_context(|| {
            format!("{path} of the engine answers without token_ids, prompt_token_ids or tokens")
        })?;
        let ids = parse_ids(list.to_string().as_bytes(), MAX_IDS)?;
        Ok(Ok(ids))
    }
}

/// In an object, or in the first of a list of objects: engines differ, and their versions too.
fn list_of(value: &Value) -> Option<&Value> {
    let object = match value {
        Value::Array(list) => list.first()?,
        value => value,
    };
    let names = ["token_ids", "prompt_token_ids", "tokens"];
    names.iter().find_map(|name| object.get(name))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&[1, 2], &[1, 2], "2 ids, all equal", false)]
    #[case(&[1, 2, 3], &[1, 9, 3], "id 1 differs: 2 here, 9 in the engine", true)]
    #[case(&[1, 2], &[1], "id 1 differs: 2 here, the end in the engine", true)]
    #[case(&[], &[7], "id 0 differs: the end here, 7 in the engine", true)]
    fn the_first_id_that_differs_is_named(
        #[case] ours: &[u32],
        #[case] engines: &[u32],
        #[case] text: &str,
        #[case] wrong: bool,
    ) {
        let finding = Finding::compare(ours, engines);
        assert_eq!(
            (finding.to_string().as_str(), finding.is_wrong()),
            (text, wrong)
        );
    }

    #[rstest]
    #[case::render(r#"{"request_id":"r","token_ids":[1]}"#)]
    #[case::render_of_completions(r#"[{"token_ids":[1]}]"#)]
    #[case::former_render(r#"[{"prompt":"a","prompt_token_ids":[1]}]"#)]
    #[case::tokenize(r#"{"count":1,"tokens":[1]}"#)]
    fn the_ids_are_found_in_each_form_of_answer(#[case] answer: &str) {
        let value: Value = serde_json::from_str(answer).unwrap();
        assert_eq!(list_of(&value), Some(&serde_json::json!([1])));
    }
}
