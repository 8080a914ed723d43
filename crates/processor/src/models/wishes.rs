//! When the models are to be loaded again. Pure.

use std::time::Duration;

use reread::Content;
use tokenization::{Catalogue, CatalogueError};
use tokio::time::Instant;

/// A model that failed, for a file that was not there yet, is tried again after so long.
const RETRY: Duration = Duration::from_secs(30);

/// What is known of the file.
#[derive(Debug)]
pub(super) struct Wishes {
    last: Content<String>,
    tried: Instant,
}

/// Why a changed file is not loaded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it cannot be read: {0}")]
    Read(String),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

// === impl Wishes ===

impl Wishes {
    /// `first` is being loaded.
    pub(super) fn of(first: String) -> Self {
        Self {
            last: Ok(first),
            tried: Instant::now(),
        }
    }

    /// The text to load, if any: it has changed, it was `asked` for, or models have `failed` for a while. An error is
    /// returned once.
    pub(super) fn look(
        &mut self,
        content: Content<String>,
        asked: bool,
        failed: bool,
        now: Instant,
    ) -> Result<Option<String>, Unusable> {
        let changed = content != self.last;
        let retry = failed && now.duration_since(self.tried) >= RETRY;
        if !changed && !asked && !retry {
            return Ok(None);
        }
        self.last.clone_from(&content);
        let text = match content {
            Ok(text) => text,
            Err(_) if !changed && !asked => return Ok(None),
            Err(error) => return Err(Unusable::Read(error)),
        };
        match Catalogue::check(&text) {
            Ok(()) => {
                self.tried = now;
                Ok(Some(text))
            }
            Err(_) if !changed && !asked => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "models: [{name: one, path: one}]";
    const TWO: &str = "models: [{name: two, path: two}]";

    #[test]
    fn a_file_is_loaded_when_it_changed_or_is_asked_for() {
        let mut wishes = Wishes::of(ONE.to_owned());
        let now = Instant::now();
        assert_eq!(wishes.look(Ok(ONE.to_owned()), false, false, now), Ok(None));
        let load = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(
            wishes.look(Ok(TWO.to_owned()), false, false, now),
            load(TWO)
        );
        assert_eq!(wishes.look(Ok(TWO.to_owned()), false, false, now), Ok(None));
        assert_eq!(wishes.look(Ok(TWO.to_owned()), true, false, now), load(TWO));
    }

    #[test]
    fn failed_models_are_tried_again_after_a_while() {
        let mut wishes = Wishes::of(ONE.to_owned());
        let begin = wishes.tried;
        let mut look = |after: u64| {
            let now = begin + Duration::from_secs(after);
            wishes
                .look(Ok(ONE.to_owned()), false, true, now)
                .unwrap()
                .is_some()
        };
        let looks = [29, 30, 35, 60].map(&mut look);
        assert_eq!(looks, [false, true, false, true]);
    }

    #[test]
    fn a_file_that_cannot_be_used_is_reported_once_and_loaded_once_it_can() {
        let mut wishes = Wishes::of(ONE.to_owned());
        let now = Instant::now();
        let long_after = now + 10 * RETRY;
        for bad in [Ok("models: []".to_owned()), Err("gone".to_owned())] {
            assert!(wishes.look(bad.clone(), false, false, now).is_err());
            assert_eq!(wishes.look(bad, false, true, long_after), Ok(None));
        }
        let again = wishes.look(Ok(ONE.to_owned()), false, false, now);
        assert_eq!(again, Ok(Some(ONE.to_owned())));
    }
}
