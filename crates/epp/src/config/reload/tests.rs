use std::{fs, time::Duration};

use futures::stream;
use tokio::{
    sync::mpsc,
    time::{advance, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use super::*;

const GOOD: &str = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig}";

fn mk_text(endpoints: u8) -> String {
    format!(
        "{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, \
         plugins: [{{type: max-score-picker, parameters: {{maxNumOfEndpoints: {endpoints}}}}}]}}"
    )
}

fn mk_file(path: PathBuf) -> ConfigFile {
    ConfigFile {
        path,
        compat: Compat::Strict,
        freshness: Freshness::default(),
        check: |_| Ok(()),
        has_filter_file: false,
        counts_tokens: false,
    }
}

fn endpoints(config: &CurrentConfig) -> u8 {
    config.load().profile.picker.max_endpoints
}

/// A reload over texts that tests give it.
struct Judge {
    reload: Reload,
    current: CurrentConfig,
}

impl Judge {
    fn begin(text: &str) -> Self {
        let last = Ok(text.to_owned());
        let file = mk_file("epp.yaml".into());
        let current = CurrentConfig::new(file.parse(text).expect("a config"));
        let reload = Reload { file, last };
        Self { reload, current }
    }

    fn judge(&mut self, content: Content) -> Outcome {
        self.reload.judge(content, &self.current)
    }
}

/// Such as a certificate that the file names.
#[test]
fn a_file_that_names_what_cannot_be_used_changes_nothing() {
    let mut judge = Judge::begin(GOOD);
    judge.reload.file.check = |config| {
        let refusal = Refusal {
            item: "parameters.caCertPath".to_owned(),
            line: None,
            problem: "/none: no such file".to_owned(),
            expected: "a file".to_owned(),
            example: "caCertPath: /ca.crt".to_owned(),
        };
        if config.profile.picker.max_endpoints == 2 {
            Err(refusal)
        } else {
            Ok(())
        }
    };
    assert_eq!(judge.judge(Ok(mk_text(2))), Outcome::Kept);
    assert_eq!(judge.judge(Ok(mk_text(3))), Outcome::Replaced);
}

#[test]
fn a_change_is_put_in_force_once() {
    let mut judge = Judge::begin(GOOD);
    assert_eq!(judge.judge(Ok(mk_text(2))), Outcome::Replaced);
    assert_eq!(endpoints(&judge.current), 2);
    assert_eq!(judge.judge(Ok(mk_text(2))), Outcome::Unchanged);
}

#[test]
fn a_bad_file_keeps_the_former_and_is_judged_once() {
    let mut judge = Judge::begin(&mk_text(3));
    for bad in [Ok("{".to_owned()), Ok(mk_text(9)), Err("gone".to_owned())] {
        assert_eq!(judge.judge(bad.clone()), Outcome::Kept, "{bad:?}");
        assert_eq!(judge.judge(bad.clone()), Outcome::Unchanged, "{bad:?}");
        assert_eq!(endpoints(&judge.current), 3, "{bad:?}");
    }
    let back = Ok(mk_text(3));
    assert_eq!(judge.judge(back), Outcome::Replaced, "it can be used again");
}

#[test]
fn the_freshness_of_the_flags_holds_for_every_reading() {
    let mut judge = Judge::begin(GOOD);
    let fresh_for = Duration::from_millis(7);
    judge.reload.file.freshness.fresh_for = fresh_for;
    judge.judge(Ok(mk_text(2)));
    assert_eq!(judge.current.load().profile.freshness.fresh_for, fresh_for);
}

#[test]
fn the_first_reading_must_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("epp.yaml");
    let begin = || Reload::begin(mk_file(path.clone())).map(|_| ());
    assert!(matches!(begin(), Err(LoadError::Unreadable(_))));
    fs::write(&path, [0xff]).unwrap();
    assert!(matches!(begin(), Err(LoadError::Unreadable(_))));
    fs::write(&path, " ".repeat(LIMITS.text + 1)).unwrap();
    assert!(matches!(begin(), Err(LoadError::Unreadable(_))));
    fs::write(&path, mk_text(9)).unwrap();
    assert!(matches!(begin(), Err(LoadError::Refused(_))));
    fs::write(&path, GOOD).unwrap();
    assert_eq!(begin(), Ok(()));
}

/// What the page says of a metric.
fn page_of(registry: &Registry, name: &str) -> Vec<String> {
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, registry).unwrap();
    let lines = page.lines().filter(|line| line.starts_with(name));
    let mut lines: Vec<_> = lines.map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// A program's loop over a real file; `wait` lets it take its next steps.
struct Loop {
    current: CurrentConfig,
    registry: Registry,
    task: tokio_util::task::AbortOnDropHandle<()>,
}

impl Loop {
    fn begin(path: PathBuf, hangups: impl Stream<Item = ()> + Unpin + Send + 'static) -> Self {
        let mut registry = Registry::default();
        let metrics = ConfigMetrics::register(&mut registry);
        let (config, reload) = Reload::begin(mk_file(path)).unwrap();
        let current = CurrentConfig::new(config);
        let run = reload.run(current.clone(), metrics, hangups);
        #[expect(clippy::disallowed_methods, reason = "the handle is owned")]
        let task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(run));
        Self {
            current,
            registry,
            task,
        }
    }

    /// Until a number of endpoints is in force, for at most `limit` of paused time.
    async fn wait(&self, want: u8, limit: Duration) -> bool {
        let reached = async {
            while endpoints(&self.current) != want {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(limit, reached).await.is_ok()
    }
}

#[tokio::test(start_paused = true)]
async fn the_file_is_polled_each_five_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("epp.yaml");
    fs::write(&path, mk_text(1)).unwrap();
    let program = Loop::begin(path.clone(), stream::pending());
    assert!(
        !program.wait(2, Duration::from_secs(1)).await,
        "nothing changes"
    );
    fs::write(&path, mk_text(2)).unwrap();
    assert!(!program.wait(2, Duration::from_secs(3)).await, "not yet");
    assert!(program.wait(2, Duration::from_secs(6)).await);
    fs::write(&path, "{").unwrap();
    advance(Duration::from_secs(1)).await;
    assert!(!program.wait(1, Duration::from_secs(30)).await, "kept");
    assert_eq!(endpoints(&program.current), 2);
    assert_eq!(
        page_of(&program.registry, "epp_config_reloads_total"),
        [
            "epp_config_reloads_total{result=\"failure\"} 1",
            "epp_config_reloads_total{result=\"success\"} 1"
        ]
        .map(str::to_owned),
        "each change counts once"
    );
    assert!(!program.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_hangup_reads_the_file_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("epp.yaml");
    fs::write(&path, mk_text(1)).unwrap();
    let (hang_up, hangups) = mpsc::channel(1);
    let program = Loop::begin(path.clone(), ReceiverStream::new(hangups));
    tokio::time::sleep(Duration::from_secs(1)).await;
    fs::write(&path, mk_text(2)).unwrap();
    hang_up.send(()).await.unwrap();
    assert!(program.wait(2, Duration::from_secs(1)).await);
    // without a sender the stream ends, and the polls go on
    drop(hang_up);
    fs::write(&path, mk_text(3)).unwrap();
    assert!(program.wait(3, Duration::from_secs(6)).await);
}

/// As the kubelet does: the file is a link through `..data`, which is replaced.
#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn a_mounted_config_map_that_is_swapped_is_read() {
    use std::os::unix::fs::symlink;

    let dir = tempfile::tempdir().unwrap();
    let version = |name: &str, endpoints| {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("epp.yaml"), mk_text(endpoints)).unwrap();
    };
    version("..1", 1);
    version("..2", 2);
    let data = dir.path().join("..data");
    symlink("..1", &data).unwrap();
    let path = dir.path().join("epp.yaml");
    symlink("..data/epp.yaml", &path).unwrap();
    let program = Loop::begin(path, stream::pending());
    symlink("..2", dir.path().join("..new")).unwrap();
    fs::rename(dir.path().join("..new"), &data).unwrap();
    assert!(program.wait(2, Duration::from_secs(6)).await);
}

#[test]
fn what_has_no_effect_is_shown_while_it_is_so() {
    let mut registry = Registry::default();
    let metrics = ConfigMetrics::register(&mut registry);
    let text = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, featureGates: [x]}";
    metrics.report(&Config::parse(text, Compat::Strict).unwrap().ignored);
    let shown = || page_of(&registry, "epp_config_ignored");
    assert_eq!(shown(), ["epp_config_ignored{item=\"featureGates[0]\"} 1"]);
    metrics.report([]);
    assert_eq!(shown(), Vec::<String>::new());
}

/// Each keeps the other, and a filter in both is refused.
#[test]
fn a_changed_llm_filter_is_put_in_force_beside_the_configuration() {
    let mk_filter = |model: &str| {
        format!(
            "{{protocol: openai, model_mapping_rule: {{{model}: {{rules: [{{cluster: c}}]}}}}}}"
        )
    };
    let mut judge = Judge::begin(GOOD);
    judge.reload.file.has_filter_file = true;
    let file = LlmFilterFile {
        path: "llm.yaml".into(),
        compat: Compat::Strict,
        counts_tokens: false,
    };
    let last = Ok(String::new());
    let mut filter = Reload { file, last };
    let seen = |current: &CurrentConfig| {
        let in_force = current.load();
        let names = in_force
            .llm_filter()
            .map(|filter| filter.rules.names().collect::<String>());
        (names, endpoints(current))
    };
    for (text, want) in [
        (Ok(mk_filter("a")), Outcome::Replaced),
        (Ok("{".to_owned()), Outcome::Kept),
        // nobody counts them
        (
            Ok(mk_filter("b").replace("{protocol", "{length_unit: tokens, protocol")),
            Outcome::Kept,
        ),
    ] {
        assert_eq!(filter.judge(text, &judge.current), want);
        assert_eq!(seen(&judge.current), (Some("a".to_owned()), 1));
    }
    assert_eq!(judge.judge(Ok(mk_text(2))), Outcome::Replaced);
    assert_eq!(seen(&judge.current), (Some("a".to_owned()), 2));
    let both = GOOD.replace(
        '}',
        &format!(", isthmus: {{llmFilter: {}}}}}", mk_filter("b")),
    );
    assert_eq!(judge.judge(Ok(both)), Outcome::Kept);
    assert_eq!(
        filter.judge(Ok(mk_filter("c")), &judge.current),
        Outcome::Replaced
    );
    assert_eq!(seen(&judge.current), (Some("c".to_owned()), 2));
}
