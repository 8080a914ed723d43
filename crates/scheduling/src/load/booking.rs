//! A request's place at an endpoint.

use super::{Arc, Duration, Endpoint, Load, MAX_TRANSIT, Moment, Ordering};

/// Counts one request as in flight at an endpoint, from the pick until this is dropped, and the tokens of its prompt
/// until its response begins.
#[derive(Debug)]
#[must_use = "dropping the booking ends the request's count"]
pub struct Booking {
    endpoint: Arc<Endpoint>,
    /// Counted; 0 once the response began.
    tokens: u32,
    /// As `tokens`.
    prefill: u64,
    arrival: Moment,
    adapter: Option<Arc<str>>,
    is_released: bool,
}

// === impl Booking ===

impl Booking {
    /// Counts a request with so many uncached prompt tokens at `endpoint` from now on. It arrives there after `transit`.
    /// `adapter` is the model it asks for, where engines may have to load it.
    pub fn new(
        endpoint: Arc<Endpoint>,
        tokens: u32,
        adapter: Option<Arc<str>>,
        now: Moment,
        transit: Duration,
    ) -> Self {
        let arrival = now.plus(transit.min(MAX_TRANSIT));
        endpoint.load().add(tokens, arrival, adapter.clone());
        Self {
            endpoint,
            tokens,
            prefill: 0,
            arrival,
            adapter,
            is_released: false,
        }
    }

    /// Charges the endpoint with so much prefill, too, until the response begins.
    pub fn charged(mut self, prefill: u64) -> Self {
        let load = self.endpoint.load();
        load.prefill.fetch_add(prefill, Ordering::AcqRel);
        self.prefill = self.prefill.saturating_add(prefill);
        self
    }

    /// The charge that is left.
    pub fn prefill(&self) -> u64 {
        self.prefill
    }

    /// Where the request is counted.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// The response began, or must have begun by now: the prompt is computed.
    pub fn respond(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        let prefill = std::mem::take(&mut self.prefill);
        release_prompt(self.endpoint.load(), tokens, prefill);
    }

    /// Records that no endpoint of the pool serves the request: from now on it is counted at none.
    pub fn release(&mut self) {
        if !std::mem::replace(&mut self.is_released, true) {
            let tokens = std::mem::take(&mut self.tokens);
            let prefill = std::mem::take(&mut self.prefill);
            release(self.endpoint.load(), tokens, prefill);
        }
    }

    /// The request turned out to be served elsewhere. No effect on one that is released.
    pub fn move_to(&mut self, endpoint: Arc<Endpoint>) {
        if self.is_released || Arc::ptr_eq(&self.endpoint, &endpoint) {
            return;
        }
        let adapter = self.adapter.clone();
        let load = endpoint.load();
        load.add(self.tokens, self.arrival, adapter);
        if self.prefill > 0 {
            load.prefill.fetch_add(self.prefill, Ordering::AcqRel);
        }
        let former = std::mem::replace(&mut self.endpoint, endpoint);
        release(former.load(), self.tokens, self.prefill);
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.release();
    }
}

fn release(load: &Load, tokens: u32, prefill: u64) {
    load.in_flight.fetch_sub(1, Ordering::AcqRel);
    release_prompt(load, tokens, prefill);
}

fn release_prompt(load: &Load, tokens: u32, prefill: u64) {
    load.tokens.fetch_sub(tokens.into(), Ordering::AcqRel);
    if prefill > 0 {
        load.prefill.fetch_sub(prefill, Ordering::AcqRel);
    }
}
