//! What the former service knows of some endpoints, where it does not pick itself.

use std::{collections::HashMap, time::Duration};

use metadata::{
    Address, Sum,
    wire::cache::{MAX_TOP_K, PromptHash, Query},
};
use serde::Deserialize;

use crate::{
    answer::Unavailable,
    cache_calls::Ask,
    calls::Named,
    client::{Client, Degraded},
    outboxes::{Charges, Reports},
    transport::{Trace, Transport},
};

/// What is asked of some endpoints.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// As they are reported. Each once.
    pub ips: &'a [Address],
    /// Ask for load.
    pub load: bool,
    /// Ask which of them have seen this prompt.
    pub prompt: Option<&'a PromptHash>,
}

/// What is known of the endpoints, each in the order in which they were asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// What they have to do: as the service reports, with our own requests as they are now. Zeros if it was not asked for.
    pub load: Result<Vec<Sum>, Unavailable>,
    /// How many chunks of the prompt they have seen. Zeros if that was not requested; none if the service does not
    /// support the calls for caches, which is no failure.
    pub matched: Result<Option<Vec<u32>>, Unavailable>,
    /// Our own requests as they are now.
    pub own: Vec<Sum>,
    /// How long load was waited for; none if it was not asked for.
    pub load_took: Option<Duration>,
    /// How long the query for caches took; none also while the service is known not to support it.
    pub matched_took: Option<Duration>,
}

/// One endpoint in the answer to `GET /v1/load/stats`. What another gateway wrote as `ip` may be anything.
#[derive(Deserialize)]
struct Load {
    ip: String,
    queued_req_num: i64,
    prompt_length: i64,
}

/// One endpoint in the answer to `POST /v1/cache/query`.
#[derive(Deserialize)]
struct Location {
    ip: String,
    length: u32,
}

#[derive(Default, Deserialize)]
struct LenientLocations {
    #[serde(default)]
    locations: Option<Vec<Location>>,
}

// === impl View ===

impl View {
    /// What the service did not give.
    pub fn degraded(&self) -> Option<Degraded> {
        match (&self.load, &self.matched) {
            (Ok(_), Ok(_)) => None,
            (Err(_), Ok(_)) => Some(Degraded::Load),
            (Ok(_), Err(_)) => Some(Degraded::Cache),
            (Err(_), Err(_)) => Some(Degraded::Both),
        }
    }
}

// === impl Client ===

impl<T: Transport> Client<T> {
    /// Load and caches of endpoints, asked for at the same time under one deadline; each may fail alone.
    pub async fn view(&self, charges: &Charges, asked: &Asked<'_>, trace: &Trace) -> View {
        let ask = match asked.prompt {
            Some(_) => self.shared.cache_calls.ask(self.shared.service.now()),
            None => Ask::Yes,
        };
        let ((load, load_took), (matched, matched_took)) = tokio::join!(
            self.timed(self.load(charges, asked, trace)),
            self.timed(self.matched(charges, asked, ask, trace)),
        );
        let own = charges.charged(asked.ips);
        let load = load.map(|(remote, acknowledged)| {
            let known = remote.into_iter().zip(acknowledged).zip(&own);
            known
                .map(|((remote, acknowledged), own)| Sum::seen(remote, acknowledged, *own))
                .collect()
        });
        let view = View {
            load,
            matched,
            own,
            load_took: asked.load.then_some(load_took),
            matched_took: asked
                .prompt
                .filter(|_| ask != Ask::No)
                .map(|_| matched_took),
        };
        self.shared.note_read(view.degraded());
        view
    }

    /// What a query came to, and how long it took.
    async fn timed<V>(&self, query: impl Future<Output = V>) -> (V, Duration) {
        let start = self.shared.service.now();
        let value = query.await;
        (value, self.shared.service.now().since(start))
    }

    /// What the service reports, and what of it was ours when the query left.
    async fn load(
        &self,
        charges: &Charges,
        asked: &Asked<'_>,
        trace: &Trace,
    ) -> Result<(Vec<Sum>, Vec<Sum>), Unavailable> {
        let zeros = || vec![Sum::default(); asked.ips.len()];
        if !asked.load {
            return Ok((zeros(), zeros()));
        }
        let acknowledged = charges.acknowledged(asked.ips);
        let named = Named::loads(charges.cluster()).with_trace(trace);
        let within = self.shared.settings.timeout;
        let loads: Option<Vec<Load>> = self.shared.service.read(named, within).await?;
        let (places, mut remote) = (places(asked.ips), zeros());
        for load in loads.unwrap_or_default() {
            if let Some(sum) = of(&places, &load.ip, &mut remote) {
                *sum = Sum {
                    requests: load.queued_req_num,
                    prefill: load.prompt_length,
                };
            }
        }
        Ok((remote, acknowledged))
    }

    async fn matched(
        &self,
        charges: &Charges,
        asked: &Asked<'_>,
        ask: Ask,
        trace: &Trace,
    ) -> Result<Option<Vec<u32>>, Unavailable> {
        let mut matched = vec![0; asked.ips.len()];
        let Some(prompt) = asked.prompt else {
            return Ok(Some(matched));
        };
        if ask == Ask::No {
            return Ok(None);
        }
        // The service does not know who is asked for: others may be among the best.
        let top_k = Some(MAX_TOP_K);
        let named = Named::query(&Query {
            cluster: charges.cluster().clone(),
            prompt_hash: prompt.clone(),
            top_k,
            topk: top_k,
            candidates: None,
        });
        let named = named?.with_trace(trace);
        let within = self.shared.settings.timeout;
        let answer = self.shared.service.read(named, within).await;
        let found: Option<LenientLocations> = match answer {
            Ok(found) => found,
            Err(Unavailable::Refused(call)) if call.is_unknown_call() => {
                let now = self.shared.service.now();
                self.shared.cache_calls.note_missing(now);
                return Ok(None);
            }
            // The failure does not show that the service supports the calls.
            Err(_) if ask == Ask::Again => return Ok(None),
            Err(error) => return Err(error),
        };
        if ask == Ask::Again {
            self.shared.cache_calls.note_found();
        }
        let found = found.unwrap_or_default().locations.unwrap_or_default();
        let chunks = u32::try_from(prompt.hashes().len()).unwrap_or(u32::MAX);
        let places = places(asked.ips);
        for location in found {
            if let Some(length) = of(&places, &location.ip, &mut matched) {
                *length = location.length.min(chunks);
            }
        }
        Ok(Some(matched))
    }
}

/// What is known of one of the endpoints that were asked for, if it is one.
fn of<'a, V>(places: &HashMap<Address, usize>, ip: &str, values: &'a mut [V]) -> Option<&'a mut V> {
    let ip: Address = ip.parse().ok()?;
    values.get_mut(*places.get(&ip)?)
}

fn places(ips: &[Address]) -> HashMap<Address, usize> {
    ips.iter().copied().zip(0..).collect()
}

// === impl Charges ===

impl Charges {
    /// What live requests of ours add to each of these endpoints; zeros where the service picks itself.
    fn charged(&self, ips: &[Address]) -> Vec<Sum> {
        match &self.reports {
            Reports::Singles(outbox) => outbox.charged(ips),
            Reports::Batches(_) => vec![Sum::default(); ips.len()],
        }
    }

    fn acknowledged(&self, ips: &[Address]) -> Vec<Sum> {
        match &self.reports {
            Reports::Singles(outbox) => outbox.acknowledged(ips),
            Reports::Batches(_) => vec![Sum::default(); ips.len()],
        }
    }
}
