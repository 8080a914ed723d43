//! Flags of token ids that others made.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use http_call::{BaseUrl, TrustFiles};
use process::ConfigError;
use token_cache::{Endpoint, EndpointError, OpenError, Store, Upkeep};

use crate::duration::HumanDuration;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Token ids")]
pub(super) struct TokenArgs {
    /// Which token ids of others are used in place of the text of chats and completions: none, or
    /// key, body or key,body
    #[arg(
        long,
        env = "ACCEPT_TOKENS",
        value_name = "WHICH",
        default_value = "none"
    )]
    accept_tokens: AcceptTokens,

    /// Where the ids of keys are: http://HOST:PORT of a Processor's token port, or redis://HOST:PORT;
    /// none: nowhere
    // a text: a message about one that cannot be used is not to repeat its password
    #[arg(
        long,
        env = "TOKEN_CACHE_ENDPOINT",
        value_name = "URL",
        default_value = "none",
        hide_env_values = true
    )]
    token_cache_endpoint: String,

    /// File with the bearer token that the token cache wants over HTTP [default: none is sent]
    #[arg(long, env = "TOKEN_CACHE_TOKEN_FILE", value_name = "FILE")]
    token_cache_token_file: Option<PathBuf>,

    /// CAs of the token cache, in PEM, for https and rediss [default: those of the system]
    #[arg(long, env = "TOKEN_CACHE_CA_FILE", value_name = "FILE")]
    token_cache_ca_file: Option<PathBuf>,

    /// Time to fetch the ids of a key; after it those of the body are used, or the text
    #[arg(
        long,
        env = "TOKEN_FETCH_TIMEOUT",
        value_name = "DURATION",
        default_value = "200ms"
    )]
    token_fetch_timeout: HumanDuration,

    /// Processor that makes the ids of text, by its render paths; without it, and where it does not
    /// answer, four bytes of text are an id
    #[arg(long, env = "TOKENIZE_URL", value_name = "URL")]
    tokenize_url: Option<BaseUrl>,
}

/// Which ids of others are used: `none`, or `key`, `body` or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptTokens {
    /// Those of the header's key.
    pub key: bool,
    /// Those of the body.
    pub body: bool,
}

/// A text that names no such choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither none nor key, body or key,body")]
pub struct AcceptError(String);

/// How token ids come to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// Which ids of others are used.
    pub accept: AcceptTokens,
    /// Where those of keys are.
    pub cache: Option<CacheSettings>,
    /// To fetch them.
    pub fetch_timeout: Duration,
    /// The Processor that makes those of text.
    pub tokenize: Option<BaseUrl>,
}

/// Where the token cache is, and the files that its connections need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    endpoint: Endpoint,
    token_file: Option<PathBuf>,
    tls: TrustFiles,
}

// === impl CacheSettings ===

impl CacheSettings {
    /// The cache; nothing is connected to yet.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub(crate) fn open(self) -> Result<(Store, Upkeep), OpenError> {
        let settings = token_cache::Settings {
            tls: self.tls,
            token_file: self.token_file,
            ..token_cache::Settings::default()
        };
        Store::open(self.endpoint, settings)
    }
}

// === impl TokenArgs ===

impl TokenArgs {
    /// # Errors
    /// For a place where there can be no cache, and files that cannot be used.
    pub(super) fn settings(self) -> Result<TokenSettings, ConfigError> {
        let Self {
            accept_tokens,
            token_cache_endpoint,
            token_cache_token_file,
            token_cache_ca_file,
            token_fetch_timeout,
            tokenize_url,
        } = self;
        let refused = |problem: &dyn fmt::Display| {
            ConfigError::new(
                format!("--token-cache-endpoint: {problem}"),
                "the Processor's token port, a Redis, or none",
                "--token-cache-endpoint http://processor:8092",
            )
        };
        let endpoint: Option<Endpoint> = match token_cache_endpoint.as_str() {
            "" | "none" => None,
            text => Some(
                text.parse()
                    .map_err(|error: EndpointError| refused(&error))?,
            ),
        };
        if endpoint == Some(Endpoint::Memory) {
            return Err(refused(&"memory is inside of the Processor"));
        }
        let cache = endpoint.map(|endpoint| CacheSettings {
            endpoint,
            token_file: token_cache_token_file,
            tls: TrustFiles {
                ca_file: token_cache_ca_file,
                cert_dir: None,
            },
        });
        if let Some(cache) = cache.clone() {
            // they are read once more when the server starts
            cache.open().map_err(|error| refused(&error))?;
        }
        Ok(TokenSettings {
            accept: accept_tokens,
            cache,
            fetch_timeout: token_fetch_timeout.get(),
            tokenize: tokenize_url,
        })
    }
}

// === impl AcceptTokens ===

impl FromStr for AcceptTokens {
    type Err = AcceptError;

    fn from_str(text: &str) -> Result<Self, AcceptError> {
        let mut accept = Self::default();
        if text == "none" {
            return Ok(accept);
        }
        for part in text.split(',') {
            match part.trim() {
                "key" => accept.key = true,
                "body" => accept.body = true,
                _ => return Err(AcceptError(text.to_owned())),
            }
        }
        Ok(accept)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("none", Some((false, false)))]
    #[case("key", Some((true, false)))]
    #[case("key,body", Some((true, true)))]
    #[case("body, key", Some((true, true)))]
    #[case("", None)]
    #[case("none,key", None)]
    fn a_choice_is_none_or_some(#[case] text: &str, #[case] expected: Option<(bool, bool)>) {
        let accept = text.parse::<AcceptTokens>().ok();
        assert_eq!(accept.map(|it| (it.key, it.body)), expected);
    }
}
