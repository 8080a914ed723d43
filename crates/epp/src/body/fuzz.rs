//! Any bytes as a request's body.

use bytes::Bytes;
use processor_api::Splice;
use serde_json::Value;

use super::{APIS, Api, MAX_MESSAGE, MAX_MODEL, Parsed};
use crate::{
    edit::Edit,
    fuzz::Choices,
    llm::{Mode, read as read_prompt},
};

const MODEL: &str = "an \"other\" model";

pub(crate) fn run(data: &[u8]) {
    let mut choices = Choices::new(data);
    let api = usize::from(choices.byte()).checked_rem(APIS.len());
    let Some(api) = api.and_then(|api| APIS.get(api)) else {
        return;
    };
    let body = choices.rest();
    match api.parse(body) {
        Ok(parsed) => {
            check(&parsed, body);
            check_guarded(*api, &parsed, body);
        }
        Err(error) => {
            let length = error.to_string().len();
            // the reason, and a part of what was read
            assert!(length <= MAX_MESSAGE.saturating_mul(2), "{length} bytes");
        }
    }
}

fn check(parsed: &Parsed, body: &[u8]) {
    let model = body.get(parsed.model_at.clone());
    let model = model.and_then(|json| serde_json::from_slice::<String>(json).ok());
    assert_eq!(model.as_ref(), Some(&parsed.model));
    assert!(parsed.model.len() <= MAX_MODEL && !parsed.model.is_empty());
    for span in &parsed.spans {
        let json = body.get(span.clone()).unwrap_or_default();
        let value = serde_json::from_slice::<&serde_json::value::RawValue>(json);
        assert!(value.is_ok(), "{span:?} is no value");
    }
    check_prompt(parsed, body);
    let mut edit = Edit::default();
    assert_eq!(edit.rewrite_model(parsed.model_at.clone(), MODEL), Ok(()));
    let parts: Vec<_> = edit.apply_body(Bytes::copy_from_slice(body)).collect();
    let edited = parts.concat();
    assert_eq!(edited.len(), edit.body_len_after(body.len()));
    // What the tree cannot hold, such as 1e999, is passed on all the same.
    let Ok(Value::Object(mut tree)) = serde_json::from_slice(body) else {
        return;
    };
    tree.insert("model".to_owned(), MODEL.into());
    let spliced = serde_json::from_slice::<Value>(&edited).ok();
    assert_eq!(spliced, Some(Value::Object(tree)));
}

/// Checks that each member that the client may not set is a value that can be removed, and that it is missing then.
fn check_guarded(api: Api, parsed: &Parsed, body: &[u8]) {
    let mut edit = Edit::default();
    for (_, at) in &parsed.guarded {
        let (at, with) = (at.clone(), Bytes::from_static(b"null"));
        assert_eq!(edit.splice(Splice { at, with }), Ok(()));
    }
    let parts: Vec<_> = edit.apply_body(Bytes::copy_from_slice(body)).collect();
    let again = api.parse(&parts.concat()).map(|again| again.guarded);
    assert!(again.is_ok_and(|guarded| guarded.is_empty()));
}

fn check_prompt(parsed: &Parsed, body: &[u8]) {
    let text = read_prompt(parsed, body, Mode::Text, MODEL);
    let full = read_prompt(parsed, body, Mode::Full, MODEL);
    let (Ok(text), Ok(full)) = (&text, &full) else {
        assert_eq!(text, full, "neither has messages");
        return;
    };
    assert_eq!(text.text_bytes, full.text_bytes);
    assert_eq!((text.length, text.is_vl), (text.text_bytes, full.is_vl));
    assert!(full.length >= text.length && full.chunks() >= text.chunks());
}
