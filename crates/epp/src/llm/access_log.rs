//! The access log: a line of JSON for each request under the LLM filter, written by a thread of its own.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use moment::Moment;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Algorithm, Ended, LlmFilter, LlmRequest, PromptFacts};
use crate::config::CurrentConfig;

/// Lines that wait to be written: at 10,000 requests a second, those of a disk that takes none for most of a second.
const MAX_WAITING: usize = 8192;

/// Lines that are written at once.
const MAX_BATCH: usize = 256;

/// Where requests hand in their lines. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AccessLogger {
    lines: mpsc::Sender<Line>,
    dropped: Counter,
}

/// Writes them.
#[derive(Debug)]
pub(crate) struct LogWriter {
    lines: mpsc::Receiver<Line>,
    config: CurrentConfig,
}

/// One request. Times are milliseconds; what is not known is null.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the fields of the log")]
pub(crate) struct Line {
    time: String,
    trace_id: Option<String>,
    metacenter_reqid: Option<String>,
    model: Option<String>,
    target_model_name: Option<String>,
    scene_name: Option<String>,
    chain_name: Option<String>,
    route_name: Option<String>,
    cluster: Option<String>,
    ai_backend_protocol: String,
    ai_stream_request: bool,
    lora_id: Option<String>,
    header_num: usize,
    is_vl: bool,
    prompt_len: u64,
    candidates: u32,
    selected: Option<String>,
    served: Option<String>,
    score: f64,
    cache_hit: f64,
    use_load: bool,
    load_duration: Option<f64>,
    use_cache: bool,
    cache_duration: Option<f64>,
    degraded: Option<&'static str>,
    ttft: Option<f64>,
    upstream_ttft: Option<f64>,
    first_rt: Option<f64>,
    last_rt: Option<f64>,
    duration: f64,
    status: u16,
    is_local_error: bool,
    reason: Option<&'static str>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    end: &'static str,
}

/// Where the lines go now.
#[derive(Debug)]
struct Output {
    /// Absent: stdout.
    path: Option<PathBuf>,
    /// Absent: stdout, or it cannot be opened.
    file: Option<File>,
}

// === impl AccessLogger ===

impl AccessLogger {
    /// The two ends of the log, which is where the LLM filter in force says.
    pub(crate) fn begin(config: CurrentConfig, registry: &mut Registry) -> (Self, LogWriter) {
        let dropped = Counter::default();
        registry.register(
            "llm_access_log_dropped",
            "Lines of the access log that were not written: too many waited",
            dropped.clone(),
        );
        let (sender, lines) = mpsc::channel(MAX_WAITING);
        let logger = Self {
            lines: sender,
            dropped,
        };
        (logger, LogWriter { lines, config })
    }

    /// Hands in a line; drops it where too many wait.
    pub(crate) fn log(&self, line: impl FnOnce() -> Line) {
        match self.lines.try_reserve() {
            Ok(place) => place.send(line()),
            Err(_) => {
                self.dropped.inc();
            }
        }
    }
}

// === impl LogWriter ===

impl LogWriter {
    /// Writes until it is to stop, then what is left. A hangup opens the file again, for who moved it away.
    pub(crate) async fn run(mut self, hangups: impl Stream<Item = ()>, stop: CancellationToken) {
        let mut hangups = std::pin::pin!(hangups.fuse());
        let mut output = Output::open(None);
        let mut lines = Vec::with_capacity(MAX_BATCH);
        loop {
            tokio::select! {
                Some(()) = hangups.next() => output = Output::open(output.path),
                () = stop.cancelled(), if !self.lines.is_closed() => self.lines.close(),
                count = self.lines.recv_many(&mut lines, MAX_BATCH) => {
                    if count == 0 {
                        return;
                    }
                    let path = self.path();
                    if output.path != path {
                        output = Output::open(path);
                    }
                    output.write(&mut lines);
                }
            }
        }
    }

    /// As the filter in force has it.
    fn path(&self) -> Option<PathBuf> {
        let config = self.config.load();
        let filter = config.llm_filter();
        filter.and_then(|filter| filter.log.path.clone())
    }
}

// === impl Output ===

impl Output {
    fn open(path: Option<PathBuf>) -> Self {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
        let file = path.as_deref().and_then(|path| match open(path) {
            Ok(file) => Some(file),
            Err(error) => {
                warn!(path = %path.display(), %error, "the access log cannot be opened: its lines are lost until a hangup");
                None
            }
        });
        Self { path, file }
    }

    /// Writes the lines at once. Those that cannot be written are lost: the disk is full.
    fn write(&mut self, lines: &mut Vec<Line>) {
        let mut text = Vec::new();
        for line in lines.drain(..) {
            // Only maps with keys that are no texts cannot be written.
            if serde_json::to_writer(&mut text, &line).is_ok() {
                text.push(b'\n');
            }
        }
        let written = match (&mut self.file, &self.path) {
            (Some(file), _) => file.write_all(&text),
            (None, None) => io::stdout().lock().write_all(&text),
            (None, Some(_)) => Ok(()),
        };
        if let Err(error) = written {
            warn!(%error, "lines of the access log are lost");
        }
    }
}

// === impl Ended ===

impl Ended {
    /// Its line in the access log; without a match the `request` is absent.
    pub(crate) fn line(
        &self,
        request: Option<&LlmRequest>,
        filter: &LlmFilter,
        now: Moment,
    ) -> Line {
        let found = request.map(|request| &request.found);
        let rule = found.map(|found| &found.rule);
        let model = found.and_then(|found| found.model.as_deref());
        let balance = filter.balance(model.unwrap_or_default());
        let weighs = found.is_some() && filter.algorithm == Algorithm::InferenceLb;
        let text = |text: Option<&str>| text.map(str::to_owned);
        let asked = request.map(|request| request.asked).unwrap_or_default();
        let between = |from: Option<Moment>, to: Option<Moment>| Some(ms(to?.since(from?)));
        Line {
            time: Timestamp::now().to_string(),
            trace_id: self.trace_id().map(str::to_owned),
            metacenter_reqid: request.map(|request| request.id.to_string()),
            model: text(self.model.as_deref()),
            target_model_name: text(request.and_then(|request| request.target.as_deref())),
            scene_name: text(rule.map(|rule| &*rule.scene_name)),
            chain_name: text(rule.map(|rule| &*rule.chain_name)),
            route_name: text(rule.map(|rule| &*rule.route_name)),
            cluster: found.map(|found| found.cluster.to_string()),
            ai_backend_protocol: rule.map_or_else(
                || filter.protocol.name().to_owned(),
                |rule| rule.backend.name().to_owned(),
            ),
            ai_stream_request: request.is_some_and(|request| request.is_streaming),
            lora_id: text(found.and_then(|found| found.subset.as_ref()?.lora.as_deref())),
            header_num: rule.map_or(0, |rule| rule.headers.len()),
            is_vl: request.is_some_and(|request| {
                request
                    .prompt
                    .as_ref()
                    .is_some_and(|prompt: &PromptFacts| prompt.is_vl)
            }),
            prompt_len: request.map_or(0, LlmRequest::prompt_length),
            candidates: request.map_or(0, |request| request.pick.candidates),
            selected: self.selected.map(|address| address.to_string()),
            served: self.served.map(|address| address.to_string()),
            score: request.map_or(0.0, |request| request.pick.score),
            cache_hit: request.map_or(0.0, LlmRequest::cache_ratio),
            use_load: weighs && balance.load_aware,
            load_duration: asked.load.map(ms),
            use_cache: weighs && balance.cache_aware,
            cache_duration: asked.cache.map(ms),
            degraded: asked.missing,
            ttft: between(Some(self.opened), self.first_byte),
            upstream_ttft: between(self.answered, self.first_byte),
            first_rt: between(self.answered, self.responding),
            last_rt: between(self.answered, self.last_byte),
            duration: ms(now.since(self.opened)),
            status: self.status,
            is_local_error: self.refused.is_some(),
            reason: self.refused,
            prompt_tokens: self.usage.input_tokens,
            completion_tokens: self.usage.output_tokens,
            cached_tokens: self.usage.cached_tokens,
            end: self.end,
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::{
        config::{Compat, Config},
        llm::{Ended, LlmFilter},
    };

    fn mk_filter(path: &Path) -> LlmFilter {
        let text = format!(
            "{{protocol: openai, model_mapping_rule: {{m: {{rules: [{{cluster: c}}]}}}}, log: {{enabled: true, path: {path:?}}}}}"
        );
        LlmFilter::parse(&text, Compat::Strict).unwrap()
    }

    fn mk_line(filter: &LlmFilter) -> Line {
        Ended::new(None, Moment::START).line(None, filter, Moment::START)
    }

    fn lines(path: &Path) -> usize {
        fs::read_to_string(path).map_or(0, |text| text.lines().count())
    }

    #[tokio::test]
    async fn lines_go_where_the_file_is_now_and_a_hangup_opens_it_anew() {
        let dir = tempfile::tempdir().unwrap();
        let [path, moved, other] = ["log", "moved", "other"].map(|name| dir.path().join(name));
        let config = CurrentConfig::new(Config::default());
        config.set_llm_filter(mk_filter(&path));
        let (logger, writer) = AccessLogger::begin(config.clone(), &mut Registry::default());
        let (hangup, hangups) = mpsc::channel(1);
        let hangups = tokio_stream::wrappers::ReceiverStream::new(hangups);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let steps = async {
            let written = async |path: &Path, want: usize| {
                for _ in 0..1000 {
                    if lines(path) == want {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                panic!("{} lines in {path:?}, not {want}", lines(path));
            };
            logger.log(|| mk_line(&mk_filter(&path)));
            written(&path, 1).await;
            fs::rename(&path, &moved).unwrap();
            hangup.send(()).await.unwrap();
            while !path.exists() {
                tokio::task::yield_now().await;
            }
            logger.log(|| mk_line(&mk_filter(&path)));
            written(&path, 1).await;
            config.set_llm_filter(mk_filter(&other));
            logger.log(|| mk_line(&mk_filter(&other)));
            written(&other, 1).await;
            stop.cancel();
        };
        tokio::join!(writer.run(hangups, stopped), steps);
        assert_eq!([&path, &moved, &other].map(|path| lines(path)), [1, 1, 1]);
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_and_counted() {
        let mut registry = Registry::default();
        let config = CurrentConfig::new(Config::default());
        let (logger, _writer) = AccessLogger::begin(config, &mut registry);
        let filter = mk_filter(Path::new("/nowhere"));
        for _ in 0..MAX_WAITING + 3 {
            logger.log(|| mk_line(&filter));
        }
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        assert!(page.contains("llm_access_log_dropped_total 3"), "{page}");
    }
}
