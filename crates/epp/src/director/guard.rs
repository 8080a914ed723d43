//! Removes members of bodies that clients may not set.

use std::ops::Range;

use bytes::Bytes;
use processor_api::Splice;

use super::Director;
use crate::{
    body::{Api, Guarded, Parsed},
    config::InForce,
    edit::Edit,
    external::{Overwritten, removes_ids},
    extproc::RequestHead,
    reject::Reject,
};

/// The value that engines read as a missing member. Unlike a removal it does not change the text around it.
const NOT_GIVEN: &[u8] = b"null";

// === impl Director ===

impl Director {
    /// Removes from a request the members that its client may not set, and counts them.
    pub(super) fn guard(
        &self,
        config: &InForce,
        head: &RequestHead,
        parsed: &Parsed,
        edit: &mut Edit,
    ) {
        if parsed.guarded.is_empty() {
            return;
        }
        let api = Api::for_path(&head.path).ok().flatten();
        let is_removed = |(what, _): &&(Guarded, Range<usize>)| {
            *what == Guarded::Transfer && !config.allow_client_kv_transfer
        };
        for (what, at) in &parsed.guarded {
            let external = self.external.as_ref();
            let external = external.filter(|external| removes_ids(api, &external.switches));
            match what {
                Guarded::Transfer if config.allow_client_kv_transfer => continue,
                Guarded::Transfer => {
                    self.transfers_removed.inc();
                }
                Guarded::Prompt if has_prompt_in(parsed.guarded.iter().filter(is_removed), at) => {
                    continue;
                }
                Guarded::Prompt => match external {
                    Some(external) => external.metrics.overwritten(Overwritten::TokenIds),
                    None => continue,
                },
            }
            let with = Bytes::from_static(NOT_GIVEN);
            // This is an error only if the body is rewritten for a server of another protocol, which drops the member.
            let _ = edit.splice(Splice {
                at: at.clone(),
                with,
            });
        }
    }

    /// # Errors
    /// [`Reject::BodyNotSeen`] where the part of a body that was not read may have members that must be removed: ids
    /// where a Processor is called, parameters of KV transfers in a pool whose servers have roles.
    pub(super) fn check_unseen(&self, config: &InForce, head: &RequestHead) -> Result<(), Reject> {
        let api = Api::for_path(&head.path).ok().flatten();
        let external = self.external.as_ref();
        let has_ids = external.is_some_and(|external| removes_ids(api, &external.switches));
        if has_ids || (!config.allow_client_kv_transfer && config.profile.has_roles()) {
            return Err(Reject::BodyNotSeen);
        }
        Ok(())
    }
}

/// Whether the place of the prompt is within one of these members, which are removed whole.
fn has_prompt_in<'a>(
    mut removed: impl Iterator<Item = &'a (Guarded, Range<usize>)>,
    prompt: &Range<usize>,
) -> bool {
    removed.any(|(_, at)| at.start <= prompt.start && prompt.end <= at.end)
}
