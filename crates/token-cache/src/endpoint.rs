//! Where the cache is, as a flag says it.

use std::{fmt, str::FromStr};

use ::redis::{ConnectionInfo, IntoConnectionInfo};
use http_call::{BaseUrl, UrlError};

/// Where the cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// In this process.
    Memory,
    /// At a Processor's token port, or what speaks like it.
    Http(BaseUrl),
    /// In a Redis, or a Valkey.
    Redis(RedisUrl),
}

/// `redis://`, `rediss://` or `unix://`, with the password if it needs one, which no output has.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

/// A text that is no place of a cache. What may be a password is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It begins with none of them.
    #[error(
        "it is none of memory, http://HOST:PORT, https://HOST:PORT, redis://HOST:PORT and rediss://HOST:PORT"
    )]
    Unknown,
    /// Over HTTP.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// In Redis.
    #[error("it leads to no Redis: expected redis://HOST:PORT or rediss://HOST:PORT")]
    Redis,
}

// === impl Endpoint ===

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            None if text == "memory" => Ok(Self::Memory),
            Some("http" | "https") => Ok(Self::Http(text.parse()?)),
            Some("redis" | "rediss" | "unix") => {
                let url = RedisUrl(text.to_owned());
                url.info().map_err(|_| EndpointError::Redis)?;
                Ok(Self::Redis(url))
            }
            _ => Err(EndpointError::Unknown),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Http(base) => base.fmt(f),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

// === impl RedisUrl ===

impl RedisUrl {
    pub(crate) fn is_tls(&self) -> bool {
        self.0.starts_with("rediss://")
    }

    pub(crate) fn info(&self) -> ::redis::RedisResult<ConnectionInfo> {
        self.0.as_str().into_connection_info()
    }
}

impl fmt::Display for RedisUrl {
    /// The address alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Ok(info) => write!(f, "redis at {}", info.addr()),
            Err(_) => f.write_str("redis"),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("memory", "memory")]
    #[case("http://processor:8092", "http://processor:8092")]
    #[case("https://processor:8092/x/", "https://processor:8092/x")]
    #[case("redis://me:secret@redis:6380/2", "redis at redis:6380")]
    #[case("rediss://:secret@redis", "redis at redis:6379")]
    fn each_kind_is_known_by_its_text_and_shown_without_a_password(
        #[case] text: &str,
        #[case] shown: &str,
    ) {
        let endpoint: Endpoint = text.parse().unwrap();
        assert_eq!(endpoint.to_string(), shown);
        if let Endpoint::Redis(url) = endpoint {
            assert_eq!(format!("{url:?}"), shown);
        }
    }

    #[rstest]
    #[case("", "none of memory")]
    #[case("Memory", "none of memory")]
    #[case("processor:8092", "none of memory")]
    #[case("ftp://processor", "none of memory")]
    #[case("http://me:secret@processor", "a user or a password")]
    #[case("redis://:secret@", "leads to no Redis")]
    #[case("redis://:secret@redis:port", "leads to no Redis")]
    fn what_is_no_cache_is_refused_without_its_password(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<Endpoint>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
