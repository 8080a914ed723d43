use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::body::Api;

fn mk_splice(at: Range<usize>, with: &str) -> Splice {
    let with = Bytes::copy_from_slice(with.as_bytes());
    Splice { at, with }
}

fn mk_edit(splices: &[(Range<usize>, &str)]) -> Edit {
    let mut edit = Edit::default();
    for (at, with) in splices {
        edit.splice(mk_splice(at.clone(), with)).unwrap();
    }
    edit
}

fn applied(edit: &Edit, body: &[u8]) -> Vec<u8> {
    let parts = edit.apply_body(Bytes::copy_from_slice(body));
    parts.flatten().collect()
}

/// A body as the EPP gets it, in pieces cut at `cuts`, and as it passes it on, cut each `limit` bytes.
fn rewritten_in_chunks(body: &str, cuts: &[usize], model: &str, limit: usize) -> Vec<u8> {
    let mut held = Vec::new();
    let mut from = 0;
    for &cut in cuts.iter().chain([&body.len()]) {
        held.extend_from_slice(&body.as_bytes()[from..cut]);
        from = cut;
    }
    let api = Api::for_path(b"/v1/chat/completions").unwrap().unwrap();
    let mut edit = Edit::default();
    let model_at = api.parse(&held).unwrap().model_at;
    edit.rewrite_model(model_at, model).unwrap();
    let length = held.len();
    let mut sent = Vec::new();
    for mut part in edit.apply_body(Bytes::from(held)) {
        while !part.is_empty() {
            sent.extend_from_slice(&part.split_to(limit.min(part.len())));
        }
    }
    assert_eq!(sent.len(), edit.body_len_after(length));
    sent
}

#[test]
fn a_header_is_set_or_removed_as_the_later_call_says() {
    let mut edit = Edit::default();
    edit.set_header("a", "1");
    edit.set_header("b", "2");
    edit.remove_header("a");
    edit.remove_header("c");
    edit.remove_header("c");
    edit.set_header("c", &b"\xff"[..]);
    edit.set_header("b", "3");
    let set = [
        ("c".into(), Bytes::from_static(b"\xff")),
        ("b".into(), Bytes::from("3")),
    ];
    assert_eq!(edit.headers_to_set(), set);
    assert_eq!(edit.headers_to_remove(), ["a"]);
}

#[test]
fn splices_come_in_any_order() {
    let edit = mk_edit(&[
        (4..6, "X"),
        (0..1, ""),
        (1..1, "yy"),
        (1..1, "z"),
        (6..6, "!"),
    ]);
    assert_eq!(applied(&edit, b"abcdef"), b"yyzbcdX!");
    assert!(edit.changes_body() && !Edit::default().changes_body());
}

#[rstest]
#[case(3..5)]
#[case(2..3)]
#[case(4..4)]
#[case(0..9)]
#[case(3..4)]
fn overlapping_splices_are_refused(#[case] at: Range<usize>) {
    let mut edit = mk_edit(&[(2..5, "x")]);
    let before = edit.clone();
    let error = edit.splice(mk_splice(at.clone(), "y")).unwrap_err();
    assert_eq!(error, SpliceError::Overlap(at));
    assert_eq!(edit, before);
}

#[test]
fn a_reversed_splice_is_refused() {
    let at = Range { start: 3, end: 2 };
    let error = Edit::default()
        .splice(mk_splice(at.clone(), ""))
        .unwrap_err();
    assert_eq!(error, SpliceError::Reversed(at));
}

#[test]
fn an_edit_without_splices_gives_the_same_bytes() {
    let body = Bytes::from_static(b"abc");
    let parts: Vec<_> = Edit::default().apply_body(body.clone()).collect();
    assert_eq!(parts, std::slice::from_ref(&body));
    assert_eq!(parts[0].as_ptr(), body.as_ptr(), "not copied");
    assert_eq!(Edit::default().apply_body(Bytes::new()).count(), 0);
}

#[test]
fn a_splice_is_cut_off_at_the_end_of_the_body() {
    let edit = mk_edit(&[(1..9, "x"), (20..30, "y")]);
    assert_eq!(applied(&edit, b"abc"), b"axy");
    assert_eq!(edit.body_len_after(3), 3);
}

#[test]
fn the_model_is_rewritten_wherever_a_chunk_ends() {
    let body = r#"{"messages":["m"],"model":"a\"m","stream":true}"#;
    let want = r#"{"messages":["m"],"model":"new \"é\"","stream":true}"#;
    for cut in 0..=body.len() {
        for limit in 1..=body.len() {
            let got = rewritten_in_chunks(body, &[cut], "new \"é\"", limit);
            assert_eq!(got, want.as_bytes(), "{cut}, {limit}");
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn splicing_equals_editing_the_tree(
        messages in any_json(),
        extra in any_json(),
        pretty: bool,
        old in "\\PC{1,20}",
        new: String,
    ) {
        let mut tree = json!({"extra": extra, "messages": messages, "model": old, "zone": 1});
        let body = if pretty {
            serde_json::to_string_pretty(&tree)
        } else {
            serde_json::to_string(&tree)
        };
        let got = rewritten_in_chunks(&body.unwrap(), &[], &new, 7);
        tree["model"] = new.into();
        prop_assert_eq!(serde_json::from_slice::<Value>(&got).unwrap(), tree);
    }

    #[test]
    fn splices_of_any_bytes_equal_those_of_a_vector(
        body: Vec<u8>,
        splices: Vec<(u8, u8, Vec<u8>)>,
    ) {
        let mut edit = Edit::default();
        for (start, len, with) in splices {
            let start = usize::from(start);
            let at = start..start.saturating_add(usize::from(len));
            let _ = edit.splice(Splice { at, with: with.into() });
        }
        let mut want = body.clone();
        for Splice { at, with } in edit.body.as_slice().iter().rev() {
            let at = at.start.min(body.len())..at.end.min(body.len());
            want.splice(at, with.iter().copied());
        }
        prop_assert_eq!(edit.body_len_after(body.len()), want.len());
        prop_assert_eq!(applied(&edit, &body), want);
    }
}
