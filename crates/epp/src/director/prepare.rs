//! What is known of a request before its pick: its prompt, its session, what changes of it.

use bytes::Bytes;
use processor_api::Splice;
use scheduling::{Moment, Request, SessionAt, SessionStrategy};

use super::{
    Ahead, Director, NamedSession, Prepared, Resolved, TRACE_PARENT, bodies, filter, session,
};
use crate::{
    body::BYTE_ORDER_MARK,
    config::InForce,
    edit::Edit,
    extproc::{Query, REQUEST_ID, RequestHead},
    reject::Reject,
};

// === impl Director ===

impl Director {
    pub(super) fn prepare(
        &self,
        config: &InForce,
        query: Query,
        resolved: &Resolved,
        now: Moment,
    ) -> Result<Prepared, Reject> {
        let Query {
            head,
            subset,
            list,
            parsed,
            is_inference: _,
            body,
        } = query;
        let target = resolved.target.clone();
        let mut llm = filter::prepare(config, resolved, parsed.as_ref(), &body, self.clock)?;
        if let (Some(llm), Some(_)) = (&mut llm, &self.elsewhere) {
            llm.trace_parent = head.field(&[TRACE_PARENT]).map(Into::into);
        }
        let profile = config.profile_of(llm.as_ref().map(|llm| &llm.found));
        let prefix = match (&parsed, &target) {
            (Some(parsed), Some(target)) if profile.uses_prefix() => {
                self.prefix.chain(target, parsed, &body)
            }
            _ => Vec::new(),
        };
        let mut edit = Edit::default();
        if !head.has_request_id {
            let id = match &resolved.trace_id {
                Some(id) => id.to_string(),
                None => make_request_id(rand::random()),
            };
            edit.set_header(REQUEST_ID, id);
        }
        let readers = bodies::prepare(config, resolved, &head, parsed.as_ref(), &body, &mut edit)?;
        if body.starts_with(BYTE_ORDER_MARK) && parsed.is_some() {
            // The server gets the JSON alone. This is an error only if the body is rewritten for a server of another
            // protocol.
            let _ = edit.splice(Splice {
                at: 0..BYTE_ORDER_MARK.len(),
                with: Bytes::new(),
            });
        }
        if let Some(parsed) = &parsed {
            self.guard(config, &head, parsed, &mut edit);
        }
        if let (Some(header), Some(parsed)) = (&self.model_header, &parsed) {
            header.name(&head, &parsed.model, &mut edit);
        }
        let ahead = self.external.as_ref().map(|external| {
            let is_translated = readers.transcoder.is_some();
            let parsed = parsed.as_ref();
            let ahead = Ahead::of(
                external,
                &head,
                parsed,
                &body,
                resolved,
                is_translated,
                &edit,
            );
            Box::new(ahead)
        });
        let (at, session) = self.session(config, &head, now);
        let request = Request {
            subset,
            list,
            model: target,
            prompt_tokens: parsed.as_ref().map_or(0, |parsed| {
                u32::try_from(parsed.prompt_tokens).unwrap_or(u32::MAX)
            }),
            prefix,
            block_tokens: self.prefix.block_tokens(),
            session: at,
            labels: llm
                .iter()
                .flat_map(|llm| llm.found.labels())
                .cloned()
                .collect(),
            ..Request::default()
        };
        Ok(Prepared {
            request,
            edit,
            readers,
            session,
            llm,
            asked: None,
            ahead,
            behind: None,
        })
    }

    /// Where the request's session is, and how its answer names it.
    fn session(
        &self,
        config: &InForce,
        head: &RequestHead,
        now: Moment,
    ) -> (Option<SessionAt>, Option<NamedSession>) {
        let Some(configured) = &config.session else {
            return (None, None);
        };
        let headers: Vec<&str> = configured.headers.iter().map(String::as_str).collect();
        let name = head.field(&headers);
        match configured.strategy {
            SessionStrategy::EncodedEndpointHeader => {
                let header = configured.headers.first();
                let session = header.map(|header| NamedSession::Token(header.clone()));
                (name.and_then(session::from_token), session)
            }
            SessionStrategy::SessionId { ttl } => {
                let at = name.and_then(|id| self.sessions.find(id, now, ttl));
                (at, name.map(|id| NamedSession::Id(id.into())))
            }
        }
    }
}

/// A version 4 UUID of the given random bits.
fn make_request_id(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let mut id = String::with_capacity(36);
    for (index, digit) in hex.chars().enumerate() {
        if let 8 | 12 | 16 | 20 = index {
            id.push('-');
        }
        id.push(digit);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_uuids_of_version_4() {
        assert_eq!(
            make_request_id(u128::MAX),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(make_request_id(0), "00000000-0000-4000-8000-000000000000");
    }
}
