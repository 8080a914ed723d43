//! Executes one write: its calls, and their outcome.

use bytes::Bytes;
use crd::Condition;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    action::{Action, Failure, Outcome, Slot},
    caller::Caller,
    pool_status::{Merge, merge_pool_status},
    request::{Answer, Call},
};
use crate::{
    name::Key,
    text::{MAX_MESSAGE, clipped},
};

/// What a write needs.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) caller: Caller,
    /// Name of our entry in pool statuses.
    pub(crate) controller_name: String,
}

/// Reads and writes of a pool's status before it is queued again.
const POOL_TRIES: u32 = 5;

// === impl Sender ===

impl Sender {
    pub(crate) async fn execute(&self, slot: &Slot, action: &Action) -> Outcome {
        let outcome = match (slot, action) {
            (
                Slot::Import(key),
                Action::Apply {
                    create,
                    main,
                    status,
                },
            ) => self.apply(key, *create, main, status).await,
            (Slot::Import(key), Action::Patch(body)) => self.patch(key, body.clone()).await,
            (
                Slot::Import(key),
                Action::Delete {
                    uid,
                    resource_version,
                },
            ) => self.delete(key, uid, resource_version).await,
            (Slot::Pool(key), Action::Pool(wanted)) => self.set_pool(key, wanted.as_ref()).await,
            _ => Err(Outcome::Rejected),
        };
        outcome.unwrap_or_else(|outcome| outcome)
    }

    async fn apply(
        &self,
        key: &Key,
        create: bool,
        main: &Bytes,
        status: &Bytes,
    ) -> Result<Outcome, Outcome> {
        if create {
            self.create(key, main).await?;
        }
        let mut answer = self.apply_status(key, status, false).await?;
        if answer.is_object_missing() && !create {
            self.create(key, main).await?;
            answer = self.apply_status(key, status, false).await?;
        }
        if answer.is_field_conflict() {
            // the object is ours: fields of other managers are taken over
            answer = self.apply_status(key, status, true).await?;
        }
        if answer.status == StatusCode::UNPROCESSABLE_ENTITY && self.clear(key, status).await? {
            answer = self.apply_status(key, status, true).await?;
        }
        Ok(judge(key, "apply status", &answer))
    }

    /// Takes out the entries that are not to stay; whether there were any. An apply leaves of an entry what another
    /// manager owns (K3), which may be too little for the CRD: then all that is applied is refused.
    async fn clear(&self, key: &Key, status: &Bytes) -> Result<bool, Outcome> {
        let answer = self.caller.call(Call::get_import(key)).await?;
        if answer.is_object_missing() {
            return Err(Outcome::Superseded);
        }
        if !answer.status.is_success() {
            return Err(judge(key, "get import", &answer));
        }
        let parsed = |body: &Bytes| serde_json::from_slice::<Value>(body).unwrap_or_default();
        let (live, wanted) = (parsed(&answer.body), parsed(status));
        let names = |object: &Value| -> Vec<Value> {
            let entries = object.pointer("/status/clusters").and_then(Value::as_array);
            let entries = entries.into_iter().flatten();
            entries.map(|entry| entry["name"].clone()).collect()
        };
        let wanted = names(&wanted);
        let live_names = names(&live);
        let surplus = live_names.iter().enumerate().rev();
        let surplus = surplus.filter(|(_, name)| !wanted.contains(name));
        let removals = surplus
            .map(|(at, _)| json!({"op": "remove", "path": format!("/status/clusters/{at}")}));
        let version = &live["metadata"]["resourceVersion"];
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
        let patch: Vec<Value> = std::iter::once(test).chain(removals).collect();
        if patch.len() == 1 {
            return Ok(false);
        }
        let patch = json!(patch).to_string().into();
        match self.patch(key, patch).await? {
            Outcome::Done => Ok(true),
            other => Err(other),
        }
    }

    async fn create(&self, key: &Key, main: &Bytes) -> Result<(), Outcome> {
        let answer = self
            .caller
            .call(Call::apply_main(key, main.clone()))
            .await?;
        match judge(key, "apply", &answer) {
            Outcome::Done => Ok(()),
            other => Err(other),
        }
    }

    async fn apply_status(&self, key: &Key, body: &Bytes, force: bool) -> Result<Answer, Outcome> {
        self.caller
            .call(Call::apply_status(key, body.clone(), force))
            .await
    }

    async fn patch(&self, key: &Key, body: Bytes) -> Result<Outcome, Outcome> {
        let answer = self.caller.call(Call::patch_status(key, body)).await?;
        Ok(match answer.status.as_u16() {
            // a failed test: the object has changed, and its watch will show how
            404 | 409 | 422 => Outcome::Superseded,
            _ => judge(key, "patch status", &answer),
        })
    }

    async fn delete(
        &self,
        key: &Key,
        uid: &str,
        resource_version: &str,
    ) -> Result<Outcome, Outcome> {
        let answer = self
            .caller
            .call(Call::delete(key, uid, resource_version))
            .await?;
        Ok(match answer.status.as_u16() {
            404 => Outcome::Done,
            409 => Outcome::Superseded,
            _ => judge(key, "delete", &answer),
        })
    }

    async fn set_pool(&self, key: &Key, wanted: Option<&Condition>) -> Result<Outcome, Outcome> {
        for _ in 0..POOL_TRIES {
            let answer = self.caller.call(Call::get_pool(key)).await?;
            if answer.is_object_missing() {
                return Ok(Outcome::Superseded);
            }
            if !answer.status.is_success() {
                return Ok(judge(key, "get pool", &answer));
            }
            let pool: Value =
                serde_json::from_slice(&answer.body).map_err(|_| Outcome::Retry(Failure::Other))?;
            let merged = merge_pool_status(pool, &self.controller_name, wanted, Timestamp::now());
            let body = match merged {
                Merge::Same => return Ok(Outcome::Done),
                Merge::Full => {
                    tracing::warn!(%key, "the pool's status has no place for one more parent");
                    // the watch will show this, and later that there is room
                    return Ok(Outcome::Superseded);
                }
                Merge::Changed(pool) => pool.to_string().into(),
            };
            let answer = self.caller.call(Call::put_pool_status(key, body)).await?;
            match answer.status.as_u16() {
                409 => {}
                404 => return Ok(Outcome::Superseded),
                _ => return Ok(judge(key, "put pool status", &answer)),
            }
        }
        Ok(Outcome::Retry(Failure::Conflict))
    }
}

/// The outcome of an answer; logs a failure once per attempt.
fn judge(key: &Key, operation: &str, answer: &Answer) -> Outcome {
    let outcome = answer.outcome();
    let message = clipped(answer.message(), MAX_MESSAGE);
    match outcome {
        Outcome::Done => {}
        Outcome::Rejected | Outcome::Retry(Failure::Denied | Failure::Unauthorised) => {
            tracing::warn!(%key, operation, status = answer.status.as_u16(), message, "write refused");
        }
        _ => {
            tracing::debug!(%key, operation, status = answer.status.as_u16(), message, "write failed");
        }
    }
    outcome
}
