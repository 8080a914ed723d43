use std::{fs, time::Duration};

use tempfile::TempDir;
use tokenization::sample;
use tokio::{sync::mpsc::Sender, task::JoinSet, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

const ONE: &str = "models: [{name: one, path: one}]";
const TWO: &str = "models: [{name: one, path: one}, {name: two, path: two}]";

/// A models file that is followed.
struct Followed {
    base: TempDir,
    models: Models,
    health: Health,
    metrics: CatalogueMetrics,
    hangups: Sender<()>,
    _tasks: JoinSet<()>,
}

// === impl Followed ===

impl Followed {
    fn start(text: &str) -> Self {
        let base = TempDir::new().unwrap();
        sample::write(&base.path().join("one")).unwrap();
        let path = base.path().join("models.yaml");
        fs::write(&path, text).unwrap();
        let (models, file) = ModelsFile::begin(&path).unwrap();
        let health = Health::new(&[MODELS]);
        let metrics = CatalogueMetrics::default();
        let (hangups, received) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        let hung_up = ReceiverStream::new(received);
        tasks.spawn(file.run(hung_up, health.clone(), metrics.clone()));
        Self {
            base,
            models,
            health,
            metrics,
            hangups,
            _tasks: tasks,
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = timeout(LIMIT, waiting).await;
        waited.unwrap_or_else(|_| panic!("{what}: {}", self.health.report()));
    }

    async fn reload(&self, text: &str) {
        fs::write(self.base.path().join("models.yaml"), text).unwrap();
        self.hangups.send(()).await.unwrap();
    }

    fn has(&self, name: &str) -> bool {
        self.models.find(name).is_ok()
    }
}

#[tokio::test]
async fn it_is_ready_when_every_model_was_tried_and_one_works_and_names_those_that_failed() {
    let followed = Followed::start(TWO);
    assert!(!followed.health.is_ready());
    assert_eq!(followed.models.find("one").err(), Some(Refusal::NotReady));
    followed.until("ready", |it| it.health.is_ready()).await;
    assert!(followed.has("one") && !followed.has("two"));
    let report = followed.health.report();
    assert!(
        report.starts_with("models: ready (1 loaded; two failed: cannot read "),
        "{report}"
    );
}

#[tokio::test]
async fn without_a_model_that_works_it_is_not_ready_until_there_is_one() {
    let followed = Followed::start("models: [{name: two, path: two}]");
    let tried = |it: &Followed| it.models.counts() == (0, 1);
    followed.until("tried", tried).await;
    assert!(!followed.health.is_ready());
    sample::write(&followed.base.path().join("two")).unwrap();
    followed.hangups.send(()).await.unwrap();
    followed.until("ready", |it| it.health.is_ready()).await;
    assert_eq!(followed.health.report(), "models: ready (1 loaded)\n");
}

#[tokio::test]
async fn a_changed_file_is_in_force_if_it_can_be_used_and_else_the_former_one() {
    let followed = Followed::start(ONE);
    followed.until("ready", |it| it.health.is_ready()).await;
    let former = followed.models.find("one").unwrap().model;
    followed.reload("models: [").await;
    let refused = |it: &Followed| it.metrics.read()[1].1 == 1;
    followed.until("refused", refused).await;
    assert!(followed.has("one") && followed.health.is_ready());
    sample::write(&followed.base.path().join("two")).unwrap();
    followed.reload(TWO).await;
    followed.until("two models", |it| it.has("two")).await;
    let model = followed.models.find("one").unwrap().model;
    assert!(Arc::ptr_eq(&model, &former), "it was loaded again");
}

#[test]
fn a_file_that_cannot_be_used_at_the_start_is_an_error() {
    let base = TempDir::new().unwrap();
    let path = base.path().join("models.yaml");
    let error = || {
        ModelsFile::begin(&path)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(error().contains("No such file"), "{}", error());
    fs::write(&path, [0xff]).unwrap();
    assert!(error().contains("UTF-8"), "{}", error());
    fs::write(&path, "models: [{name: a, path: a}, {name: a, path: b}]").unwrap();
    assert!(error().contains("models[1].name"), "{}", error());
}
