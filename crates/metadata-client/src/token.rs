//! The token of a service that wants one, and the file that it stands in.

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwapOption;
use futures::Stream;
use http::{HeaderValue, header::InvalidHeaderValue};
use reread::{Content, read_at_most, reread};
use tracing::{error, info};

/// 64 KiB: more than any header takes.
const MAX_BYTES: usize = 64 << 10;

/// What calls are made with, replaced whenever its file changes.
#[derive(Debug, Default)]
pub struct BearerToken(ArcSwapOption<HeaderValue>);

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("{0}")]
    Read(String),
    /// It is empty.
    #[error("there is no token in it")]
    Empty,
    /// It is not one word.
    #[error("what is in it is no token: expected one word of visible ASCII characters")]
    Characters,
}

/// Keeps a token up to date with its file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    last: Reading,
    token: Arc<BearerToken>,
}

#[derive(Clone, PartialEq, Eq)]
struct Reading(Content<Vec<u8>>);

// === impl BearerToken ===

impl BearerToken {
    /// Calls from now on have this token, or none.
    ///
    /// # Errors
    /// For a token that cannot stand in a header.
    pub fn set(&self, token: Option<&str>) -> Result<(), InvalidHeaderValue> {
        let header = |token: &str| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
            value.set_sensitive(true);
            Ok(Arc::new(value))
        };
        self.0.store(token.map(header).transpose()?);
        Ok(())
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let token = self.0.load();
        token.as_ref().map(|token| HeaderValue::clone(token))
    }
}

// === impl TokenFile ===

impl TokenFile {
    /// Reads the file for the first time, and puts what it holds where calls look for it.
    ///
    /// # Errors
    /// [`TokenError`] for a file without a token.
    pub fn begin(path: PathBuf, token: Arc<BearerToken>) -> Result<Self, TokenError> {
        let last = Reading(read_at_most(&path, MAX_BYTES));
        last.put(&token)?;
        Ok(Self { path, last, token })
    }

    /// Reads it every 5 s and at each of `hangups`. Never returns.
    pub async fn run(mut self, hangups: impl Stream<Item = ()> + Unpin) {
        let path = self.path.clone();
        let read = move || Reading(read_at_most(&path, MAX_BYTES));
        reread(read, hangups, |reading, _| self.judge(reading)).await;
    }

    fn judge(&mut self, reading: Reading) {
        if reading == self.last {
            return;
        }
        match reading.put(&self.token) {
            Ok(()) => info!("the changed token for the Metadata-Center is in force"),
            Err(error) => {
                error!(%error, "the changed token for the Metadata-Center cannot be used: the former one is in force");
            }
        }
        self.last = reading;
    }
}

// === impl Reading ===

impl Reading {
    fn put(&self, token: &BearerToken) -> Result<(), TokenError> {
        let bytes = self.0.as_ref();
        let bytes = bytes.map_err(|error| TokenError::Read(error.clone()))?;
        let text = bytes.trim_ascii();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        let text = str::from_utf8(text).ok();
        let text = text.filter(|it| it.bytes().all(|byte| byte.is_ascii_graphic()));
        let text = text.ok_or(TokenError::Characters)?;
        token.set(Some(text)).map_err(|_| TokenError::Characters)
    }
}

impl std::fmt::Debug for Reading {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_token_is_used_if_it_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = Arc::<BearerToken>::default();
        let begin = || TokenFile::begin(path.clone(), Arc::clone(&token));
        assert!(matches!(begin(), Err(TokenError::Read(_))));
        let sent = || token.header().map(|it| it.to_str().unwrap().to_owned());
        assert_eq!(sent(), None);
        fs::write(&path, "one\n").unwrap();
        let mut file = begin().unwrap();
        assert_eq!(sent().as_deref(), Some("Bearer one"));
        let mut change = |text: &str| {
            fs::write(&path, text).unwrap();
            file.judge(Reading(read_at_most(&path, MAX_BYTES)));
        };
        for (text, want) in [
            ("two", "two"),
            ("", "two"),
            ("a b", "two"),
            ("three", "three"),
        ] {
            change(text);
            assert_eq!(sent(), Some(format!("Bearer {want}")), "{text:?}");
        }
    }
}
