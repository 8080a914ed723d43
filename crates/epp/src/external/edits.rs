//! What the stage changes of a request: its own members of the body, and two headers. Pure.

use bytes::Bytes;
use processor_api::{Fields, MODEL_HEADER, SpliceError, Splices, TOKENS_KEY_HEADER};

use super::{Ask, Overwritten, Switches, Tokens};
use crate::{
    body::{Api, GENERATE, Parsed},
    edit::Edit,
    extproc::RequestHead,
};

/// The members of a body that are the stage's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found(Fields);

// === impl Found ===

impl Found {
    /// Those of a request to a path of this format. Where ids are the prompt itself they are the client's to give, and
    /// `route` means something where prompts are routed.
    pub(crate) fn of(api: Option<Api>, parsed: Option<&Parsed>) -> Self {
        let Some(parsed) = parsed else {
            return Self::default();
        };
        Self(match api.map(Api::suffix) {
            Some("chat/completions" | "completions") => parsed.fields.clone(),
            Some(GENERATE) | None => Fields::default(),
            Some(_) => Fields {
                route: None,
                ..parsed.fields.clone()
            },
        })
    }

    /// What of the client's does not go on as it is, or is not for us although it looks so.
    pub(crate) fn overwritten(
        &self,
        body: &[u8],
        switches: &Switches,
    ) -> impl Iterator<Item = Overwritten> + use<> {
        let ids = Self(Fields {
            route: None,
            ..self.0.clone()
        });
        let ids = ids.for_worker(body, switches, &Tokens::None);
        let has_ids = ids.is_ok_and(|splices| !splices.is_empty());
        let route = match self.0.client_route(body) {
            Some(route) => {
                let is_ignored = !switches.clients_route && route != switches.routes;
                is_ignored.then_some(Overwritten::Route)
            }
            None => self.0.route.as_ref().map(|_| Overwritten::ForeignRoute),
        };
        let ids = has_ids.then_some(Overwritten::TokenIds);
        ids.into_iter().chain(route)
    }

    /// Changes `body` for the Processor.
    ///
    /// # Errors
    /// [`SpliceError`] when the places are not of this body.
    pub(crate) fn for_processor(
        &self,
        body: &[u8],
        switches: &Switches,
        ask: Ask,
    ) -> Result<Splices, SpliceError> {
        self.0.for_processor(body, ask.route, switches.keeps_ids)
    }

    /// Changes `body` for a worker, which gets these tokens.
    ///
    /// # Errors
    /// [`SpliceError`] when the places are not of this body.
    pub(crate) fn for_worker(
        &self,
        body: &[u8],
        switches: &Switches,
        tokens: &Tokens,
    ) -> Result<Splices, SpliceError> {
        let ids = match tokens {
            Tokens::Ids(ids) => switches.token_field.map(|field| (field, ids.clone())),
            Tokens::Key(_) | Tokens::None => None,
        };
        if self.0 == Fields::default() && ids.is_none() {
            return Ok(Splices::default());
        }
        self.0.for_worker(body, switches.keeps_ids, ids)
    }
}

// === impl Tokens ===

impl Tokens {
    /// The header by which a worker finds them. Whatever the client says there never reaches it.
    pub(crate) fn set_header(&self, edit: &mut Edit) {
        match self {
            Self::Key(key) => {
                let key = Bytes::copy_from_slice(key.as_str().as_bytes());
                edit.set_header(TOKENS_KEY_HEADER, key);
            }
            Self::Ids(_) | Self::None => edit.remove_header(TOKENS_KEY_HEADER),
        }
    }
}

/// Whether ids of the client are taken out of bodies on a path of this format.
pub(crate) fn removes_ids(api: Option<Api>, switches: &Switches) -> bool {
    !switches.keeps_ids && api.is_some_and(|api| api.suffix() != GENERATE)
}

/// Names the client's model in its header; whether the client had said something else there.
pub(crate) fn model_header(head: &RequestHead, model: &str, edit: &mut Edit) -> bool {
    let name = MODEL_HEADER.as_bytes();
    let mut given = head.fields.iter().filter(|(field, _)| field == name);
    let first = given.next().map(|(_, value)| value);
    if first.is_some_and(|value| value == model.as_bytes()) && given.next().is_none() {
        return false;
    }
    let is_visible = model.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_visible && model.trim_ascii() == model {
        edit.set_header(MODEL_HEADER, model.to_owned());
    } else if first.is_some() {
        edit.remove_header(MODEL_HEADER);
    }
    first.is_some()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn worker(path: &str, body: &str, switches: &Switches) -> (String, Vec<Overwritten>) {
        let api = Api::for_path(path.as_bytes()).unwrap();
        let parsed = api.unwrap().parse(body.as_bytes()).unwrap();
        let found = Found::of(api, Some(&parsed));
        let overwritten = found.overwritten(body.as_bytes(), switches);
        let overwritten = overwritten.collect();
        let splices = found.for_worker(body.as_bytes(), switches, &Tokens::None);
        let parts = splices.unwrap().apply(Bytes::from(body.to_owned()));
        let text = String::from_utf8(parts.flatten().collect()).unwrap();
        (text, overwritten)
    }

    const IDS: &[Overwritten] = &[Overwritten::TokenIds];
    const LEFT: &[Overwritten] = &[Overwritten::ForeignRoute];

    #[rstest]
    #[case::ids(
        "/v1/completions",
        r#"{"model":"m","token_ids":[1]}"#,
        r#"{"model":"m"}"#,
        IDS
    )]
    #[case::null(
        "/v1/completions",
        r#"{"model":"m","token_ids":null}"#,
        r#"{"model":"m"}"#,
        IDS
    )]
    #[case::of_dynamo(
        "/v1/messages",
        r#"{"nvext":{"token_data":[1],"a":1},"model":"m"}"#,
        r#"{"nvext":{"a":1},"model":"m"}"#,
        IDS
    )]
    #[case::other_nvext("/v1/responses", r#"{"nvext":{"a":1},"model":"m"}"#, r#"{"nvext":{"a":1},"model":"m"}"#, &[])]
    #[case::prompt("/inference/v1/generate", r#"{"model":"m","token_ids":[1]}"#, r#"{"model":"m","token_ids":[1]}"#, &[])]
    #[case::route("/v1/chat/completions", r#"{"route":true,"model":"m"}"#, r#"{"model":"m"}"#, &[])]
    #[case::foreign(
        "/v1/chat/completions",
        r#"{"route":1,"model":"m"}"#,
        r#"{"route":1,"model":"m"}"#,
        LEFT
    )]
    #[case::not_routed("/v1/embeddings", r#"{"route":true,"model":"m"}"#, r#"{"route":true,"model":"m"}"#, &[])]
    fn what_looks_like_ours_does_not_reach_a_worker(
        #[case] path: &str,
        #[case] body: &str,
        #[case] want: &str,
        #[case] counted: &[Overwritten],
    ) {
        let (text, overwritten) = worker(path, body, &Switches::default());
        assert_eq!((&*text, &*overwritten), (want, counted));
    }

    #[test]
    fn ids_of_trusted_clients_stay_and_their_route_may_not_count() {
        let switches = Switches {
            keeps_ids: true,
            clients_route: false,
            ..Switches::default()
        };
        let body = r#"{"token_ids":[1],"route":true,"model":"m"}"#;
        let (text, overwritten) = worker("/v1/completions", body, &switches);
        assert_eq!(text, r#"{"token_ids":[1],"model":"m"}"#);
        assert_eq!(overwritten, [Overwritten::Route]);
    }

    #[rstest]
    #[case::not_given(&[], "m", &["m"], 0, false)]
    #[case::equal(&["m"], "m", &[], 0, false)]
    #[case::differs(&["other"], "m", &["m"], 0, true)]
    #[case::twice(&["m", "m"], "m", &["m"], 0, true)]
    #[case::not_safe(&[], "m\n", &[], 0, false)]
    #[case::not_safe_and_given(&["m"], "é", &[], 1, true)]
    #[case::spaces_around(&[], " m", &[], 0, false)]
    fn the_model_header_is_what_the_body_says(
        #[case] given: &[&'static str],
        #[case] model: &str,
        #[case] set: &[&str],
        #[case] removed: usize,
        #[case] counted: bool,
    ) {
        let field = |value: &&'static str| (Bytes::from(MODEL_HEADER), Bytes::from(*value));
        let head = RequestHead {
            fields: given.iter().map(field).collect(),
            ..RequestHead::default()
        };
        let mut edit = Edit::default();
        assert_eq!(model_header(&head, model, &mut edit), counted);
        let values = edit.headers_to_set().iter().map(|(_, value)| value);
        let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value)).collect();
        assert_eq!(values, set);
        assert_eq!(edit.headers_to_remove().len(), removed);
    }
}
