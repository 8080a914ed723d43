//! The catalogue in force: loaded at the start, loaded again when its file changes.
//!
//! ```text
//!  models file ─ reread ─► Wishes (pure) ─ text ─► load, on a thread ─► Models ◄─ requests
//!                                                        └─► readiness, metrics
//! ```

mod wishes;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use futures::Stream;
use process::Health;
use processor_api::Refusal;
use reread::{Content, read_at_most, reread};
use tokenization::{Catalogue, CatalogueError, Model};
use tokio::{sync::mpsc, task::spawn_blocking, time::Instant};
use tracing::{error, info, warn};

use crate::{metrics::CatalogueMetrics, models::wishes::Wishes};

/// The part of readiness that the models are.
pub(crate) const MODELS: &str = "models";

/// Of a models file: a thousand models of some hundred bytes each.
const MAX_BYTES: usize = 1 << 20;

/// Longest part of an unknown model's name in the message about it, in characters.
const MAX_SHOWN: usize = 256;

/// The models that requests find. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Models(Arc<ArcSwap<State>>);

/// Keeps the models up to date with their file.
#[derive(Debug)]
pub struct ModelsFile {
    path: PathBuf,
    first: String,
    models: Models,
}

/// Why there is no catalogue.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(String),
    /// It cannot be used.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

/// A model that a request names.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) model: Arc<Model>,
    /// In metrics, and to the Router.
    pub(crate) name: Arc<str>,
    pub(crate) lora_name: Option<Arc<str>>,
}

#[derive(Debug)]
enum State {
    /// For the first time.
    Loading,
    Loaded(Catalogue),
}

/// Makes catalogues.
#[derive(Debug)]
struct Loader {
    base: PathBuf,
    models: Models,
    /// The last that a model got: those in the segment cache are told apart by it.
    number: AtomicU64,
}

// === impl Models ===

impl Models {
    pub(crate) fn loading() -> Self {
        Self(Arc::new(ArcSwap::from_pointee(State::Loading)))
    }

    /// These, for ever.
    pub fn fixed(catalogue: Catalogue) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(State::Loaded(catalogue))))
    }

    /// # Errors
    /// [`Refusal`] when there is no such model, or none yet.
    pub(crate) fn find(&self, name: &str) -> Result<Found, Refusal> {
        let state = self.0.load();
        let State::Loaded(catalogue) = &**state else {
            return Err(Refusal::NotReady);
        };
        let served = catalogue.get(name);
        let found = served.and_then(|served| {
            Some(Found {
                // one that failed is none: to the caller this is the state of one model, not of the Processor
                model: served.model.clone()?,
                name: served.name.clone(),
                lora_name: served.lora_name.clone(),
            })
        });
        // the message repeats it, and a client may send a long one
        let shown = || name.chars().take(MAX_SHOWN).collect();
        found.ok_or_else(|| Refusal::UnknownModel(shown()))
    }

    /// Calls `each` with the name of every model that works.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&str, &Model)) {
        if let State::Loaded(catalogue) = &**self.0.load() {
            for (name, model) in catalogue.loaded() {
                each(name, model);
            }
        }
    }

    /// How many work, and how many failed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        match &**self.0.load() {
            State::Loading => (0, 0),
            State::Loaded(catalogue) => (catalogue.loaded().count(), catalogue.failed().count()),
        }
    }
}

// === impl ModelsFile ===

impl ModelsFile {
    /// Reads the file for the first time; its models are not loaded yet.
    ///
    /// # Errors
    /// [`ModelsError`] when it cannot be used.
    pub fn begin(path: &Path) -> Result<(Models, Self), ModelsError> {
        let first = text_of(read_at_most(path, MAX_BYTES)).map_err(ModelsError::Read)?;
        Catalogue::check(&first)?;
        let models = Models::loading();
        let file = Self {
            path: path.to_owned(),
            first,
            models: models.clone(),
        };
        Ok((models, file))
    }

    /// Loads the models, then follows the file: every 5 s and at each of `hangups`. Never returns.
    pub(crate) async fn run(
        self,
        hangups: impl Stream<Item = ()> + Unpin,
        health: Health,
        metrics: CatalogueMetrics,
    ) {
        let Self {
            path,
            first,
            models,
        } = self;
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        let loader = Arc::new(Loader {
            base,
            models,
            number: AtomicU64::new(0),
        });
        // one: a wish that finds no room is made again at the next look
        let (wishes, mut wanted) = mpsc::channel::<String>(1);
        let mut state = Wishes::of(first.clone());
        let mut was_asked = false;
        let loading = async {
            let mut next = Some(first);
            while let Some(text) = next {
                loader.load(text, &health, &metrics).await;
                next = wanted.recv().await;
            }
        };
        let reading = reread(
            move || text_of(read_at_most(&path, MAX_BYTES)),
            hangups,
            |content, asked| {
                was_asked |= asked;
                let Ok(place) = wishes.try_reserve() else {
                    return; // it loads: later
                };
                let asked = std::mem::take(&mut was_asked);
                let (_, failed) = loader.models.counts();
                match state.look(content, asked, failed > 0, Instant::now()) {
                    Ok(Some(text)) => place.send(text),
                    Ok(None) => {}
                    Err(error) => {
                        metrics.reload_failed();
                        error!(%error, "the changed models file cannot be used: the former one is in force");
                    }
                }
            },
        );
        tokio::join!(loading, reading);
    }
}

fn text_of(content: Content<Vec<u8>>) -> Content<String> {
    String::from_utf8(content?).map_err(|_| "it is no text in UTF-8".to_owned())
}

// === impl Loader ===

impl Loader {
    async fn load(self: &Arc<Self>, text: String, health: &Health, metrics: &CatalogueMetrics) {
        let begun = Instant::now();
        let loader = Arc::clone(self);
        let loaded = spawn_blocking(move || loader.load_here(&text)).await;
        match loaded {
            Ok(Ok(catalogue)) => {
                let (note, works) = judge(&catalogue);
                let loaded = catalogue.loaded().count();
                info!(loaded, took = ?begun.elapsed(), "the models are tried");
                for (name, error) in catalogue.failed() {
                    warn!(model = name, error, "the model cannot be loaded");
                }
                self.models.0.store(Arc::new(State::Loaded(catalogue)));
                metrics.reloaded();
                health.note(MODELS, note);
                health.set(MODELS, works);
            }
            Ok(Err(error)) => {
                metrics.reload_failed();
                error!(%error, "the models file cannot be used: the former one is in force");
            }
            Err(error) => {
                metrics.reload_failed();
                error!(%error, "the models could not be loaded: the former ones are in force");
            }
        }
    }

    fn load_here(&self, text: &str) -> Result<Catalogue, CatalogueError> {
        let former = self.models.0.load_full();
        let none = Catalogue::default();
        let former = match &*former {
            State::Loading => &none,
            State::Loaded(catalogue) => catalogue,
        };
        let next_number = || self.number.fetch_add(1, Relaxed) + 1;
        Catalogue::load(text, &self.base, former, next_number)
    }
}

/// What to show of a catalogue whose models were all tried, and whether it is of use.
fn judge(catalogue: &Catalogue) -> (String, bool) {
    let loaded = catalogue.loaded().count();
    let failed = catalogue.failed();
    let failed = failed.map(|(name, error)| format!("{name} failed: {error}"));
    let notes: Vec<_> = [format!("{loaded} loaded")]
        .into_iter()
        .chain(failed)
        .collect();
    (notes.join("; "), loaded > 0)
}

#[cfg(test)]
mod tests;
