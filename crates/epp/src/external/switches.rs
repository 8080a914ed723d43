//! What flags say of the stage.

use processor_api::TokenField;

/// What flags say of the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each flag that is on or off"
)]
pub(crate) struct Switches {
    /// The Router chooses, unless the client says otherwise.
    pub(crate) routes: bool,
    /// What the client says of routing counts.
    pub(crate) clients_route: bool,
    /// No request that is for the Processor goes on without its reply.
    pub(crate) fail_closed: bool,
    /// Where ids go in a worker's body; none: they go by key alone.
    pub(crate) token_field: Option<TokenField>,
    /// Ids of the client stay in its body.
    pub(crate) keeps_ids: bool,
    /// Bytes of the largest body that is sent.
    pub(crate) max_body: usize,
    /// Names of headers, in lower case, that go along beside those that always do.
    pub(crate) forwarded: Vec<String>,
}

// === impl Switches ===

impl Default for Switches {
    /// As flags are by default, once the stage is on.
    fn default() -> Self {
        Self {
            routes: false,
            clients_route: true,
            fail_closed: false,
            token_field: Some(TokenField::TokenIds),
            keeps_ids: false,
            max_body: 16 << 20,
            forwarded: Vec::new(),
        }
    }
}
