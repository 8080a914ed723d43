//! A Processor that does what a test says.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use processor_api::ProcessReply;
use prometheus_client::registry::Registry;

use super::{CallProcessor, External, ExternalMetrics, LifeCycle, NoReply, Outgoing, Switches};

/// What is answered, and after how long.
pub(crate) type Answer = Result<ProcessReply, NoReply>;

/// Answers each question with the next of its script, and without one never.
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    pub(crate) answers: Mutex<VecDeque<(Duration, Answer)>>,
    pub(crate) questions: Mutex<Vec<Outgoing>>,
    pub(crate) reports: Mutex<Vec<LifeCycle>>,
    pub(crate) is_open: bool,
}

// === impl Scripted ===

impl Scripted {
    pub(crate) fn silent() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn answering(wait: Duration, answer: Answer) -> Arc<Self> {
        let scripted = Self::default();
        scripted.answers.lock().push_back((wait, answer));
        Arc::new(scripted)
    }

    pub(crate) fn external(self: &Arc<Self>) -> Arc<External> {
        self.external_with(Switches::default(), &mut Registry::default())
    }

    pub(crate) fn external_with(
        self: &Arc<Self>,
        switches: Switches,
        registry: &mut Registry,
    ) -> Arc<External> {
        let processor: Arc<dyn CallProcessor> = Arc::<Self>::clone(self);
        let metrics = ExternalMetrics::register(registry);
        Arc::new(External::new(switches, processor, metrics))
    }

    pub(crate) fn take_reports(&self) -> Vec<LifeCycle> {
        std::mem::take(&mut self.reports.lock())
    }

    /// The only question so far, as JSON.
    pub(crate) fn question(&self) -> serde_json::Value {
        let questions = self.questions.lock();
        let [question] = &**questions else {
            panic!("{} questions", questions.len())
        };
        serde_json::from_slice(&question.body.concat()).unwrap()
    }
}

impl CallProcessor for Scripted {
    fn process(&self, question: Outgoing) -> BoxFuture<'static, Answer> {
        self.questions.lock().push(question);
        let next = self.answers.lock().pop_front();
        Box::pin(async move {
            let Some((wait, answer)) = next else {
                return std::future::pending().await;
            };
            tokio::time::sleep(wait).await;
            answer
        })
    }

    fn report(&self, report: LifeCycle) {
        self.reports.lock().push(report);
    }

    fn is_open(&self) -> bool {
        self.is_open
    }
}
