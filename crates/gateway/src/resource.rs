//! Resources of Envoy, encoded once and shared by all that hold them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

mod secret;

pub(crate) use secret::{
    authorities, authorities_name, certificate, certificate_name, is_authorities,
    pem_of_authorities,
};

/// One encoded resource. Its debug text has no bytes: they may be a private key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    /// xxh3 of the bytes: equal content has equal version, also after a restart.
    pub(crate) version: u64,
    pub(crate) bytes: Bytes,
    /// A cluster that waits for its assignment by EDS.
    pub(crate) needs_endpoints: bool,
}

// === impl Resource ===

impl Resource {
    pub(crate) fn new(message: &impl prost::Message, needs_endpoints: bool) -> Arc<Self> {
        let bytes = Bytes::from(message.encode_to_vec());
        Arc::new(Self {
            version: xxhash_rust::xxh3::xxh3_64(&bytes),
            bytes,
            needs_endpoints,
        })
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            bytes,
            needs_endpoints,
        } = self;
        f.debug_struct("Resource")
            .field("version", version)
            .field("length", &bytes.len())
            .field("needs_endpoints", needs_endpoints)
            .finish_non_exhaustive()
    }
}
