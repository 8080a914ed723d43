//! Calls: from a request to what the engine does, and to its answer.

use bytes::Bytes;
use metadata::{
    Fault, RequestId,
    wire::{cache::PromptHash, load::Drop},
};

use crate::{
    engine::Engine,
    json::parse,
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

// === impl Request ===

impl Request<'_> {
    /// Does what the request asks for.
    pub(crate) async fn run<E: Engine>(self, engine: &E, accepts: Accepts) -> Result<Data, Fault> {
        let Self { found, query, body } = self;
        match found.call {
            Call::Loads => {
                let cluster = query.required("cluster")?;
                engine.loads(&cluster).await.map(Data::Loads)
            }
            Call::Add => {
                let add = parse(body)?;
                engine.add(add, query.strict()?).await.map(null)
            }
            Call::PromptDone => {
                let (id, strict) = (self.request_id()?, query.strict()?);
                engine.prompt_done(&id, strict).await.map(null)
            }
            Call::Remove => {
                let (id, strict) = (self.request_id()?, query.strict()?);
                engine.remove(&id, strict).await.map(null)
            }
            Call::Batch => engine.batch(parse(body)?).await.map(Data::Applied),
            Call::EndLeases => {
                let instance = self.segment("instance")?;
                let epoch = query.required("epoch")?;
                engine.end_leases(&instance, epoch).await.map(null)
            }
            Call::Pick => {
                let pick: metadata::wire::pick::Pick = parse(body)?;
                accepts.check(&pick.prompt_hash)?;
                engine.pick(&pick).await.map(Data::Picks)
            }
            Call::Save => {
                let save: metadata::wire::cache::Save = parse(body)?;
                accepts.check(&save.prompt_hash)?;
                engine.save(&save).await.map(null)
            }
            Call::Query => {
                let asked: metadata::wire::cache::Query = parse(body)?;
                accepts.check(&asked.prompt_hash)?;
                engine.query(&asked).await.map(Data::Locations)
            }
            Call::Purge => {
                let cluster = query.required("cluster")?;
                engine
                    .purge(&cluster, query.required("ip")?)
                    .await
                    .map(null)
            }
            Call::Clusters => engine.clusters().await.map(Data::Clusters),
            // These are answered without the engine.
            Call::Metrics | Call::Healthz | Call::Readyz => Err(Fault::Internal),
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

    fn segment<T: std::str::FromStr<Err: ToString>>(&self, name: &str) -> Result<T, Fault> {
        named(name, &self.found.segment)
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

fn named<T: std::str::FromStr<Err: ToString>>(name: &str, value: &str) -> Result<T, Fault> {
    value
        .parse()
        .map_err(|error: T::Err| Fault::invalid(name, error))
}

fn null(_: ()) -> Data {
    Data::Null
}
