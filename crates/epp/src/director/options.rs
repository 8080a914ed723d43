//! What flags say of decisions.

use super::ModelMatch;

/// What flags say of decisions; the configuration says the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Options {
    /// False: the proxy's subset is ignored.
    pub honour_subset: bool,
    /// Whether models that nobody lists are refused.
    pub model_match: ModelMatch,
    /// The headers of the conformance suite are obeyed and set.
    pub conformance_headers: bool,
    /// Answers have the scores of all candidates.
    pub emit_scores: bool,
    /// Where nobody else knows load and caches, what this endpoint picker sent itself counts. False: endpoints are equal
    /// then.
    pub own_view: bool,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            honour_subset: true,
            model_match: ModelMatch::Auto,
            conformance_headers: false,
            emit_scores: false,
            own_view: true,
        }
    }
}
