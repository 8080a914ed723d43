//! A cache in Redis.

mod link;

use std::time::Duration;

use ::redis::{Cmd, cmd};
use processor_api::TokenKey;

pub(crate) use self::link::Link;
use crate::{
    entry::{Entry, MAX_BYTES},
    error::StoreError,
    memory::Put,
    redis_value::{decode, encode, redis_key},
};

/// Bytes of the largest value: the ids, a header of 64 KiB, and what frames them. Of a larger one no more is read, and so
/// it is damaged.
const MAX_VALUE: usize = MAX_BYTES + (64 << 10) + 64;

/// Asks a Redis.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) link: Link,
    pub(crate) ttl: Duration,
}

// === impl Redis ===

impl Redis {
    pub(crate) async fn put(
        &self,
        key: &TokenKey,
        entry: &Entry,
        within: Duration,
    ) -> Result<Put, StoreError> {
        let value = encode(entry).filter(|value| value.len() <= MAX_VALUE);
        let value = value.ok_or(StoreError::TooLarge)?;
        let until = tokio::time::Instant::now() + within;
        let mut set = cmd("SET");
        set.arg(redis_key(key)).arg(value.as_slice());
        set.arg("EX").arg(self.ttl.as_secs().max(1)).arg("NX");
        if self
            .link
            .query::<Option<String>>(&set, within)
            .await?
            .is_some()
        {
            return Ok(Put::Stored);
        }
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        let known = self.link.query::<Vec<u8>>(&get(key), left).await?;
        if known == value {
            Ok(Put::Same)
        } else {
            Err(StoreError::Conflict)
        }
    }

    pub(crate) async fn get(
        &self,
        key: &TokenKey,
        within: Duration,
    ) -> Result<Option<Entry>, StoreError> {
        let value = self.link.query::<Vec<u8>>(&get(key), within).await?;
        if value.is_empty() {
            return Ok(None);
        }
        decode(&value).map(Some).map_err(|_| StoreError::Damaged)
    }

    pub(crate) async fn delete(&self, key: &TokenKey, within: Duration) -> Result<(), StoreError> {
        let mut delete = cmd("DEL");
        delete.arg(redis_key(key));
        self.link.query::<u64>(&delete, within).await?;
        Ok(())
    }
}

/// Within the bound; empty where there is nothing.
fn get(key: &TokenKey) -> Cmd {
    let mut get = cmd("GETRANGE");
    get.arg(redis_key(key)).arg(0).arg(MAX_VALUE);
    get
}
