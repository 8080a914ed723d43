//! How a Metadata-Center is used.

use std::time::Duration;

use metadata::Instance;

/// What a client needs to know. Host, port and security are the transport's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What is spoken.
    pub api: Api,
    /// Whether prompt caches count: with [`Api::Compat`] the service is then queried at the start for whether it has calls for
    /// them.
    pub caches: bool,
    /// Of what a request waits for, over all calls that are made for it.
    pub timeout: Duration,
    /// Of each call that no request waits for.
    pub async_timeout: Duration,
    /// Requests of one cluster whose changes wait, over all workers; beyond it all are sent anew.
    pub queue_size: u32,
    /// Batches on their way at once, 1 to 64.
    pub workers: u8,
    /// Under which name this endpoint picker reports.
    pub instance: Instance,
    /// When it started, in milliseconds since 1970: what it reported before it restarted goes.
    pub epoch: u64,
    /// How long its requests count after its last report: 1 s to 60 s.
    pub lease: Duration,
    /// How long the last reports may take when the program ends.
    pub flush: Duration,
}

/// What is spoken with the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// Picks and ordered batches, over HTTP/2.
    #[default]
    Isthmus,
    /// The calls of the service that the LLM filter for Envoy has, over HTTP/1.1.
    Compat,
}
