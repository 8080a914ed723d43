//! What the pick must know of a request.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;

use crate::{endpoint::Labels, slot::Slot};

/// Longest list of endpoints in one answer: enough for every retry a gateway makes.
pub const MAX_LIST: u8 = 8;

/// A request is assumed to need this long from the pick to its server while nobody measured it.
pub const DEFAULT_TRANSIT: Duration = Duration::from_millis(20);

/// What the pick must know of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The endpoints the proxy allows; absent: all of the pool.
    pub subset: Option<Subset>,
    /// How many endpoints the proxy can try in order, 1 to [`MAX_LIST`].
    pub list: u8,
    /// The model that the server is asked for, which may be one of its LoRA adapters; absent: unknown.
    pub model: Option<Arc<str>>,
    /// Tokens of the prompt, estimated; 0 where no body was seen.
    pub prompt_tokens: u32,
    /// Hashes of the prompt's blocks, each of all before it too; empty where no body was seen.
    pub prefix: Vec<u64>,
    /// Tokens of one block of `prefix`.
    pub block_tokens: u32,
    /// Endpoints must have all of these labels.
    pub labels: SmallVec<[Arc<Labels>; 2]>,
    /// Chunks of the prompt; 0 where nobody asks for them.
    pub chunks: u32,
    /// By member of the table, how many of them it has cached, from the first on; empty: nobody looked.
    pub cached_chunks: Vec<u32>,
    /// Where the session of this request is served, if it has one.
    pub session: Option<SessionAt>,
    /// From the pick until the request arrives at its server.
    pub transit: Duration,
    /// Counts up from request to request, where endpoints take turns.
    pub turn: u64,
}

/// Where a session is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAt {
    /// By this endpoint.
    Slot(Slot),
    /// By the endpoints of this pod.
    Pod {
        /// Namespace of the pod.
        namespace: Arc<str>,
        /// Its name.
        pod: Arc<str>,
    },
}

/// An allow-list of endpoints. An empty one allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset(SmallVec<[Allowed; 4]>);

/// One entry of a [`Subset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Every port of this address.
    Ip(IpAddr),
    /// This address and port.
    Address(SocketAddr),
}

// === impl Request ===

impl Request {
    /// Whether endpoints with these labels have all that it asks for.
    pub fn admits(&self, labels: &Labels) -> bool {
        let mut wanted = self.labels.iter().flat_map(|all| all.iter());
        wanted.all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl Default for Request {
    /// Any endpoint, a list of one; nothing is known of the body.
    fn default() -> Self {
        Self {
            subset: None,
            list: 1,
            model: None,
            prompt_tokens: 0,
            prefix: Vec::new(),
            block_tokens: 0,
            labels: SmallVec::new(),
            chunks: 0,
            cached_chunks: Vec::new(),
            session: None,
            transit: DEFAULT_TRANSIT,
            turn: 0,
        }
    }
}

// === impl Subset ===

impl Subset {
    /// Adds the entries of a comma-separated list; what is no address is skipped.
    pub fn extend_from_list(&mut self, list: &str) {
        self.0.extend(list.split(',').filter_map(Allowed::parse));
    }

    /// Whether it allows nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its entries, in their order.
    pub fn entries(&self) -> &[Allowed] {
        &self.0
    }
}

// === impl Allowed ===

impl Allowed {
    /// Parses `ip`, `ip:port`, `[v6]` or `[v6]:port`, with blanks around it; else `None`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Self::Address(address));
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        bare.parse::<IpAddr>().ok().map(Self::Ip)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.0.0.1", &["10.0.0.1"])]
    #[case(" 10.0.0.2:8000 , 10.0.0.1", &["10.0.0.2:8000", "10.0.0.1"])]
    #[case("[fd00::1]:8000", &["[fd00::1]:8000"])]
    #[case("fd00::1,[fd00::2]", &["fd00::1", "fd00::2"])]
    #[case("pod-a:8000,,x, 10.0.0.1:99999", &[])]
    fn entries_are_addresses_and_all_else_is_skipped(#[case] list: &str, #[case] want: &[&str]) {
        let mut subset = Subset::default();
        subset.extend_from_list(list);
        let shown = subset.entries().iter().map(|entry| match entry {
            Allowed::Ip(ip) => ip.to_string(),
            Allowed::Address(address) => address.to_string(),
        });
        assert_eq!(shown.collect::<Vec<_>>(), want);
        assert_eq!(subset.is_empty(), want.is_empty());
    }
}
