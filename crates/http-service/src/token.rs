//! Bearer tokens of callers, from a file that may change.

use std::{fmt, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use futures::Stream;
use http::{HeaderMap, header};
use reread::{Content, read_at_most, reread};
use subtle::ConstantTimeEq;
use tracing::{error, info};

/// Some tokens of some hundred bytes each.
const MAX_BYTES: usize = 64 << 10;

/// What a caller must send one of. Cheap to clone.
#[derive(Clone)]
pub struct Tokens(Arc<ArcSwap<Vec<String>>>);

/// No token was sent, or none that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call has no token, or an unknown one")]
pub struct Unauthorized;

/// Why a file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("{0}")]
    Read(String),
    /// It holds blank lines only.
    #[error("there is no token in it")]
    Empty,
    /// A line of it, counted from 1, can be no token.
    #[error("line {0} has other characters than visible ASCII")]
    Characters(usize),
}

/// Keeps tokens up to date with their file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    last: Reading,
    tokens: Tokens,
}

#[derive(Clone, PartialEq, Eq)]
struct Reading(Content<Vec<u8>>);

// === impl Tokens ===

impl Tokens {
    /// These, for ever.
    pub fn new(tokens: Vec<String>) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(tokens)))
    }

    /// Whether the call may go on.
    ///
    /// # Errors
    /// Unless the request has one of them.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Unauthorized> {
        let sent = headers.get(header::AUTHORIZATION);
        let sent = sent.and_then(|value| value.to_str().ok()?.split_once(' '));
        let Some((_, token)) = sent.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")) else {
            return Err(Unauthorized);
        };
        let is_it = |known: &String| bool::from(known.as_bytes().ct_eq(token.trim().as_bytes()));
        if self.0.load().iter().any(is_it) {
            Ok(())
        } else {
            Err(Unauthorized)
        }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

// === impl TokenFile ===

impl TokenFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn begin(path: PathBuf) -> Result<(Tokens, Self), TokenError> {
        let last = Reading(read_at_most(&path, MAX_BYTES));
        let tokens = Tokens::new(last.parse()?);
        let file = Self {
            path,
            last,
            tokens: tokens.clone(),
        };
        Ok((tokens, file))
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
        match reading.parse() {
            Ok(tokens) => {
                self.tokens.0.store(Arc::new(tokens));
                info!("the changed tokens are in force");
            }
            Err(error) => {
                error!(%error, "the changed tokens cannot be used: the former ones are in force");
            }
        }
        self.last = reading;
    }
}

// === impl Reading ===

impl Reading {
    /// One on each line, so that callers can change theirs one after the other.
    fn parse(&self) -> Result<Vec<String>, TokenError> {
        let bytes = self.0.as_ref();
        let bytes = bytes.map_err(|error| TokenError::Read(error.clone()))?;
        let mut tokens = Vec::new();
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let token = str::from_utf8(line).ok();
            let token = token.filter(|it| it.bytes().all(|byte| byte.is_ascii_graphic()));
            tokens.push(token.ok_or(TokenError::Characters(at + 1))?.to_owned());
        }
        if tokens.is_empty() {
            return Err(TokenError::Empty);
        }
        Ok(tokens)
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http::HeaderValue;

    use super::*;

    fn lets(tokens: &Tokens, sent: &'static str) -> bool {
        let value = HeaderValue::from_static(sent);
        let headers = [(header::AUTHORIZATION, value)].into_iter().collect();
        tokens.check(&headers).is_ok()
    }

    #[test]
    fn any_token_of_the_file_is_taken_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "old-token\n\n new-token \r\n").unwrap();
        let (tokens, _) = TokenFile::begin(path).unwrap();
        assert!(lets(&tokens, "Bearer old-token"));
        assert!(lets(&tokens, "bearer new-token"));
        for sent in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer old-toke",
            "Bearer old-tokenx",
            "Basic old-token",
        ] {
            assert!(!lets(&tokens, sent), "{sent}");
        }
        assert_eq!(tokens.check(&HeaderMap::new()), Err(Unauthorized));
    }

    #[test]
    fn a_changed_file_is_in_force_if_it_can_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "one").unwrap();
        let (tokens, mut file) = TokenFile::begin(path).unwrap();
        let reading = |text: &str| Reading(Ok(text.as_bytes().to_vec()));
        file.judge(reading("two"));
        assert!(lets(&tokens, "Bearer two") && !lets(&tokens, "Bearer one"));
        for bad in [reading("a b"), reading(" \n"), Reading(Err("gone".into()))] {
            file.judge(bad);
            assert!(lets(&tokens, "Bearer two"));
        }
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        let reading = |text: &str| Reading(Ok(text.as_bytes().to_vec())).parse();
        assert_eq!(reading("\n"), Err(TokenError::Empty));
        assert_eq!(reading("a\nb c"), Err(TokenError::Characters(2)));
    }
}
