//! Calls: from a request to what the engine does, and to its answer.

use std::str::FromStr;

use bytes::Bytes;
use metadata::{
    Fault, RequestId,
    wire::{
        cache::{self, PromptHash},
        load::Drop,
        pick::Pick,
    },
};
use tokio::time::Instant;

use crate::{
    engine::Engine,
    json::parse,
    metrics::Metrics,
    query::Query,
    reply::Data,
    route::{Call, Found},
};

/// One request for the engine.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) found: &'a Found<'a>,
    pub(crate) query: Query<'a>,
    /// Empty where there is none.
    pub(crate) body: &'a Bytes,
}

/// What a service takes beside what all take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accepts {
    /// Hashes of chunks joined by commas.
    pub(crate) joined_hashes: bool,
}

/// Measures what the engine does for a call.
struct Timed<'a>(Call, &'a Metrics);

// === impl Request ===

impl Request<'_> {
    /// Does what the request asks for.
    pub(crate) async fn run<E: Engine>(
        self,
        engine: &E,
        accepts: Accepts,
        metrics: &Metrics,
    ) -> Result<Data, Fault> {
        let Self { found, query, body } = self;
        let timed = Timed(found.call, metrics);
        match found.call {
            Call::Loads => {
                let cluster = query.required("cluster")?;
                timed.of(engine.loads(&cluster)).await.map(Data::Loads)
            }
            Call::Add => {
                let add = parse(body)?;
                timed.of(engine.add(add, query.strict()?)).await.map(null)
            }
            Call::PromptDone => {
                let (id, strict) = (self.request_id()?, query.strict()?);
                timed.of(engine.prompt_done(&id, strict)).await.map(null)
            }
            Call::Remove => {
                let (id, strict) = (self.request_id()?, query.strict()?);
                timed.of(engine.remove(&id, strict)).await.map(null)
            }
            Call::Batch => {
                let applied = timed.of(engine.batch(parse(body)?)).await?;
                if applied.resync {
                    metrics.resync();
                }
                Ok(Data::Applied(applied))
            }
            Call::EndLeases => {
                let instance = self.segment("instance")?;
                let ending = engine.end_leases(&instance, query.required("epoch")?);
                timed.of(ending).await.map(null)
            }
            Call::Pick => {
                let pick: Pick = parse(body)?;
                accepts.check(&pick.prompt_hash)?;
                timed.of(engine.pick(&pick)).await.map(Data::Picks)
            }
            Call::Save => {
                let save: cache::Save = parse(body)?;
                accepts.check(&save.prompt_hash)?;
                timed.of(engine.save(&save)).await.map(null)
            }
            Call::Query => {
                let asked: cache::Query = parse(body)?;
                accepts.check(&asked.prompt_hash)?;
                timed.of(engine.query(&asked)).await.map(Data::Locations)
            }
            Call::Purge => {
                let cluster = query.required("cluster")?;
                let purging = engine.purge(&cluster, query.required("ip")?);
                timed.of(purging).await.map(null)
            }
            Call::Clusters => timed.of(engine.clusters()).await.map(Data::Clusters),
            // These are answered without the engine.
            Call::Metrics | Call::Healthz | Call::Readyz | Call::OpenApi => Err(Fault::Internal),
        }
    }

    /// Of the request that ends: in the path, else in the query, else in the body.
    fn request_id(&self) -> Result<RequestId, Fault> {
        if !self.found.segment.is_empty() {
            return self.segment("request_id");
        }
        match self.query.get("request_id") {
            Some(id) => named("request_id", &id),
            None if self.body.is_empty() => {
                let why = "expected in the body, in the query, or as the last part of the path";
                Err(Fault::invalid("request_id", why))
            }
            None => parse(self.body).map(|Drop { request_id }| request_id),
        }
    }

    fn segment<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<T, Fault> {
        named(name, &self.found.segment)
    }
}

// === impl Timed ===

impl Timed<'_> {
    async fn of<T>(&self, doing: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let begun = Instant::now();
        let result = doing.await;
        let Self(call, metrics) = self;
        metrics.engine(*call, begun.elapsed(), &result);
        result
    }
}

// === impl Accepts ===

impl Accepts {
    fn check(self, hashes: &PromptHash) -> Result<(), Fault> {
        if hashes.is_joined() && !self.joined_hashes {
            let why = "expected numbers: this service takes no strings (--accept-joined-hashes)";
            return Err(Fault::invalid("prompt_hash", why));
        }
        Ok(())
    }
}

fn named<T: FromStr<Err: ToString>>(name: &str, value: &str) -> Result<T, Fault> {
    value
        .parse()
        .map_err(|error: T::Err| Fault::invalid(name, error))
}

fn null(_: ()) -> Data {
    Data::Null
}

#[cfg(test)]
mod tests;
