//! Seeing that something comes, and that it then stays: by watches, not by sleeping.

use std::{
    fmt::{Debug, Display},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

/// An import, a condition or their end is there within this.
pub const APPEARS: Duration = Duration::from_secs(20);
/// What must not come is watched for so long.
pub const HELD: Duration = Duration::from_secs(5);
/// A watch has seen by then what happened before.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// One request.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two checks of a state that must not change.
const PAUSE: Duration = Duration::from_millis(200);

/// A request with a deadline, and what it was for.
///
/// # Errors
/// With what it was for, when the API server refuses or is silent.
pub async fn within<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T> {
    let answer = timeout(REQUEST_LIMIT, request).await;
    let answer = answer.with_context(|| format!("{what}: no answer within {REQUEST_LIMIT:?}"))?;
    answer.with_context(|| what.to_owned())
}

/// Waits until one object, or its absence, is as `wanted` says, and returns what that made of it. An `Err` of `wanted`
/// says what it saw instead.
///
/// # Errors
/// After [`APPEARS`], with what was seen last.
pub async fn becomes<K, T>(
    api: &Api<K>,
    name: &str,
    what: &str,
    wanted: impl Fn(Option<&K>) -> Result<T, String>,
) -> Result<T>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let deadline = Instant::now() + APPEARS;
    let mut last = "nothing yet".to_owned();
    let outcome = timeout_at(deadline, async {
        loop {
            let seen = follow(api, name, |object| match wanted(object) {
                Ok(made) => Some(made),
                Err(other) => {
                    last = other;
                    None
                }
            })
            .await;
            match seen {
                Ok(Some(made)) => return made,
                Ok(None) => {}
                Err(error) => last = format!("{error:#}"),
            }
            // a watch that broke is begun anew, without haste
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    match outcome {
        Ok(made) => Ok(made),
        Err(_) => bail!("{what}: not within {APPEARS:?}; last seen: {last}"),
    }
}

/// Watches one object for [`HELD`]: every state of it, from now on, must be as `wanted` says.
///
/// # Errors
/// At once, when a state is not; its text is that of `wanted`.
pub async fn holds<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    wanted: impl Fn(Option<&K>) -> Result<(), String>,
) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    holds_for(api, name, what, HELD, wanted).await
}

/// Like [`holds`], for this long.
///
/// # Errors
/// As soon as a state is not the wanted one, with the text of `wanted`.
pub async fn holds_for<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    long: Duration,
    wanted: impl Fn(Option<&K>) -> Result<(), String>,
) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let deadline = Instant::now() + long;
    while Instant::now() < deadline {
        let broken = follow(api, name, |object| wanted(object).err());
        match timeout_at(deadline, broken).await {
            Ok(Ok(Some(other))) => bail!("{what}: it did not stay so; seen: {other}"),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return Err(error.context(format!("{what}: watching"))),
            Err(_) => break,
        }
    }
    Ok(())
}

/// Watches one object while `work` goes on and for a second after it: every state of it must be as `wanted` says. The work begins
/// when the first state was seen, so that none is missed.
///
/// # Errors
/// As soon as a state is not the wanted one, with the text of `wanted`; and when the work fails.
pub async fn holds_during<K, T>(
    api: &Api<K>,
    name: &str,
    what: &str,
    work: impl Future<Output = Result<T>>,
    wanted: impl Fn(Option<&K>) -> Result<(), String>,
) -> Result<T>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let begun = Notify::new();
    let work = async {
        begun.notified().await;
        let outcome = work.await?;
        sleep(AFTERWARDS).await;
        Ok(outcome)
    };
    let mut work = pin!(work);
    loop {
        let broken = follow(api, name, |object| {
            begun.notify_one();
            wanted(object).err()
        });
        tokio::select! {
            biased;
            seen = broken => match seen {
                Ok(Some(other)) => bail!("{what}: it did not stay so; seen: {other}"),
                Ok(None) => {}
                Err(error) => return Err(error.context(format!("{what}: watching"))),
            },
            outcome = &mut work => return outcome,
        }
    }
}

/// Checks something that cannot be watched, again and again until `deadline`: every check must return `Ok`. A check
/// that has begun is awaited.
///
/// # Errors
/// The error of the first check that fails, at once.
pub async fn remains_until<E: Display>(
    what: &str,
    deadline: Instant,
    mut look: impl AsyncFnMut() -> Result<(), E>,
) -> Result<()> {
    loop {
        if let Err(other) = look().await {
            bail!("{what}: it did not stay so; seen: {other}");
        }
        if Instant::now() >= deadline {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// Shows `look` each state of one object until it answers; nothing if the watch ends before.
async fn follow<K, T>(
    api: &Api<K>,
    name: &str,
    mut look: impl FnMut(Option<&K>) -> Option<T>,
) -> Result<Option<T>>
where
    K: Resource + Clone + Debug + DeserializeOwned + 'static,
{
    let field = format!("metadata.name={name}");
    let params = ListParams::default().fields(&field);
    let list = within("listing", api.list(&params)).await?;
    if let Some(made) = look(list.items.first()) {
        return Ok(Some(made));
    }
    let version = list.metadata.resource_version.unwrap_or_default();
    let params = WatchParams::default().fields(&field).disable_bookmarks();
    let events = within("watching", api.watch(&params, &version)).await?;
    let mut events = pin!(events);
    while let Some(event) = events.try_next().await? {
        let made = match &event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => look(Some(object)),
            WatchEvent::Deleted(_) => look(None),
            WatchEvent::Bookmark(_) => None,
            WatchEvent::Error(status) => bail!("{status:?}"),
        };
        if made.is_some() {
            return Ok(made);
        }
    }
    Ok(None)
}
