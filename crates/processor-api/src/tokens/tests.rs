use rstest::rstest;

use super::*;

const TAGS: Tags<'_> = Tags {
    model: "llama",
    tokenizer: Some("00ff"),
};
const ENTRY: Fetched<'_> = mk_entry("llama", "00ff", &[1, 2]);
const IDS: &str = r#"{"messages":[],"token_ids":[3,4]}"#;

const fn mk_entry<'a>(model: &'a str, tokenizer: &'a str, ids: &'a [u32]) -> Fetched<'a> {
    Fetched::Entry {
        model,
        tokenizer,
        ids,
    }
}

#[rstest]
#[case::key_first(ENTRY, IDS, "Key [1, 2]")]
#[case::body_without_a_key(Fetched::Nothing, IDS, "Body [3, 4]")]
#[case::body_of_a_bad_key(Fetched::Bad, IDS, "Body [3, 4]")]
#[case::body_of_an_unknown_key(Fetched::Unknown, IDS, "Body [3, 4]")]
#[case::body_when_the_cache_failed(Fetched::Failed, IDS, "Body [3, 4]")]
#[case::other_model(mk_entry("qwen", "00ff", &[1]), "{}", "other-model")]
#[case::other_tokenizer(mk_entry("llama", "00fe", &[1]), "{}", "other-tokenizer")]
#[case::empty_entry(mk_entry("llama", "00ff", &[]), "{}", "bad-ids")]
#[case::bad_key(Fetched::Bad, "{}", "bad-key")]
#[case::unknown_key(Fetched::Unknown, "{}", "unknown-key")]
#[case::failed(Fetched::Failed, "{}", "cache-failed")]
#[case::nothing(Fetched::Nothing, "{}", "no-ids")]
#[case::the_reason_is_the_keys(Fetched::Unknown, r#"{"token_ids":7}"#, "unknown-key")]
#[case::string(Fetched::Nothing, r#"{"token_ids":"[3,4]"}"#, "Body [3, 4]")]
#[case::dynamo(Fetched::Nothing, r#"{"nvext":{"a":1,"token_data":[5]}}"#, "Body [5]")]
#[case::both(
    Fetched::Nothing,
    r#"{"nvext":{"token_data":[5]},"token_ids":[6]}"#,
    "Body [6]"
)]
#[case::null(
    Fetched::Nothing,
    r#"{"nvext":{"token_data":[5]},"token_ids":null}"#,
    "Body [5]"
)]
#[case::nothing_in_nvext(Fetched::Nothing, r#"{"nvext":{"token_data":null}}"#, "no-ids")]
#[case::nvext_is_no_object(Fetched::Nothing, r#"{"nvext":[1]}"#, "no-ids")]
#[case::no_list(Fetched::Nothing, r#"{"token_ids":{}}"#, "bad-ids")]
#[case::float(Fetched::Nothing, r#"{"token_ids":[1.5]}"#, "bad-ids")]
#[case::empty(Fetched::Nothing, r#"{"token_ids":[]}"#, "bad-ids")]
#[case::too_many(Fetched::Nothing, r#"{"token_ids":[1,2,3,4]}"#, "bad-ids")]
#[case::no_json(Fetched::Nothing, r#"{"token_ids":[1]"#, "no-ids")]
fn the_first_that_can_be_used_is(
    #[case] fetched: Fetched<'_>,
    #[case] body: &str,
    #[case] expected: &str,
) {
    let source = source(fetched, TAGS, Some(body.as_bytes()), 3);
    let found = match &source {
        Source::Key(ids) => format!("Key {ids:?}"),
        Source::Body(ids) => format!("Body {ids:?}"),
        Source::Text(reason) => reason.reason().to_owned(),
    };
    assert_eq!(found, expected);
}

#[test]
fn ids_of_the_body_count_only_where_they_are_accepted() {
    let found = source(Fetched::Nothing, TAGS, None, 3);
    assert_eq!(found, Source::Text(TextReason::NoIds));
}

#[test]
fn a_worker_that_does_not_know_its_tokenizer_takes_any() {
    let tags = Tags {
        tokenizer: None,
        ..TAGS
    };
    let found = source(mk_entry("llama", "x", &[9]), tags, None, 3);
    assert_eq!(found, Source::Key(&[9]));
}

#[test]
fn ids_are_not_shown() {
    let shown = format!("{:?}", Source::Body(vec![12345, 6]));
    assert_eq!(shown, "Body(2 ids)");
}

#[rstest]
#[case(None, KeyHeader::Absent)]
#[case(Some(""), KeyHeader::Bad)]
#[case(Some("tk_ABC"), KeyHeader::Bad)]
#[case(
    Some(" tk_abcdefghijklmnopqrstuvwxyz"),
    KeyHeader::Key("tk_abcdefghijklmnopqrstuvwxyz".parse().unwrap())
)]
fn a_header_holds_a_key_or_none(#[case] value: Option<&str>, #[case] expected: KeyHeader) {
    assert_eq!(KeyHeader::read(value.map(str::as_bytes)), expected);
}

#[rstest]
#[case(r#"{"messages":[],"model":"a\"b"}"#, Some("a\"b"))]
#[case(r#"{"model":7}"#, None)]
#[case("{}", None)]
#[case("[", None)]
fn the_model_of_a_body_is_read(#[case] body: &str, #[case] expected: Option<&str>) {
    assert_eq!(model(body.as_bytes()).as_deref(), expected);
}
