use proptest::prelude::*;
use rstest::rstest;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::*;
use crate::splice::Splices;

/// A JSON object as text, and where the values of its members are.
#[derive(Clone, Debug)]
struct Written {
    text: String,
    members: Vec<(String, Range<usize>)>,
}

fn applied(body: &str, splices: Vec<Splice>) -> String {
    let mut all = Splices::default();
    for splice in splices {
        all.add(splice).unwrap();
    }
    let parts: Vec<u8> = all
        .apply(Bytes::copy_from_slice(body.as_bytes()))
        .flatten()
        .collect();
    assert_eq!(parts.len(), all.len_after(body.len()));
    String::from_utf8(parts).unwrap()
}

/// Edits by the names of members: `-a` removes, `a=1` sets, `+a=1` inserts.
fn edited(body: &str, edits: &[&str]) -> String {
    let place = |name: &str| {
        let key = body.find(&format!("\"{name}\"")).unwrap();
        let (_, member) = body.split_at(key);
        let (_, value) = member.split_once(':').unwrap();
        let value = value.trim_start();
        let start = body.len() - value.len();
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<IgnoredAny>();
        values.next().unwrap().unwrap();
        start..start + values.byte_offset()
    };
    let edits: Vec<MemberEdit<'_>> = edits
        .iter()
        .map(|edit| match edit.split_once('=') {
            None => MemberEdit {
                name: "",
                value_at: Some(place(edit.trim_start_matches('-'))),
                value: None,
            },
            Some((name, value)) => MemberEdit {
                name: name.trim_start_matches('+'),
                value_at: (!name.starts_with('+')).then(|| place(name)),
                value: Some(Bytes::copy_from_slice(value.as_bytes())),
            },
        })
        .collect();
    let splices = splice_object(body.as_bytes(), 0..body.len(), &edits).unwrap();
    applied(body, splices)
}

#[rstest]
#[case::inserts_last(r#"{"a":1}"#, &["+b=[2]"], r#"{"a":1,"b":[2]}"#)]
#[case::inserts_into_an_empty_one("{ }", &["+b=2"], r#"{ "b":2}"#)]
#[case::inserts_in_order(r"{}", &["+a=1", "+b=2"], r#"{"a":1,"b":2}"#)]
#[case::sets(r#"{"a": 1 ,"b":2}"#, &["a=true"], r#"{"a": true ,"b":2}"#)]
#[case::removes_the_first(r#"{"a":1, "b":2}"#, &["-a"], r#"{ "b":2}"#)]
#[case::removes_the_last(r#"{"b":2 , "a":1 }"#, &["-a"], r#"{"b":2  }"#)]
#[case::removes_one_between(r#"{"b":2,"a":1,"c":3}"#, &["-a"], r#"{"b":2,"c":3}"#)]
#[case::removes_the_only_one(r#"{ "a" : 1 }"#, &["-a"], "{  }")]
#[case::removes_neighbours(r#"{"a":1,"b":2,"c":3}"#, &["-b", "-a"], r#"{"c":3}"#)]
#[case::removes_all(r#"{"a":1,"b":2}"#, &["-a", "-b"], "{}")]
#[case::removes_all_and_inserts(r#"{"a":1,"b":2}"#, &["-a", "-b", "+c=3"], r#"{"c":3}"#)]
#[case::removes_after_one_that_is_set(r#"{"a":1,"b":2}"#, &["a=9", "-b"], r#"{"a":9}"#)]
#[case::sets_after_one_that_goes(r#"{"a":1,"b":2}"#, &["-a", "b=9"], r#"{"b":9}"#)]
#[case::key_with_escapes(r#"{"x\\\"":1,"a":2}"#, &["-a"], r#"{"x\\\"":1}"#)]
fn edits_touch_only_their_members(
    #[case] body: &str,
    #[case] edits: &[&str],
    #[case] expected: &str,
) {
    assert_eq!(edited(body, edits), expected);
}

#[test]
fn a_key_that_is_written_with_escapes_is_removed_whole() {
    let body = r#"{"a":1,"\u0072out\"\\":true}"#;
    let edit = MemberEdit {
        name: "route",
        value_at: Some(23..27),
        value: None,
    };
    let splices = splice_object(body.as_bytes(), 0..body.len(), &[edit]).unwrap();
    assert_eq!(applied(body, splices), r#"{"a":1}"#);
}

#[rstest]
#[case::not_an_object("[1,2]", 0..5, 1..2)]
#[case::no_key("{1,2}", 0..5, 1..2)]
#[case::outside("{\"a\":1}", 0..7, 6..9)]
#[case::beyond_the_body("{\"a\":1}", 0..99, 5..6)]
fn places_of_another_body_are_refused(
    #[case] body: &str,
    #[case] object: Range<usize>,
    #[case] at: Range<usize>,
) {
    let edit = MemberEdit {
        name: "a",
        value_at: Some(at),
        value: None,
    };
    assert!(splice_object(body.as_bytes(), object, &[edit]).is_err());
}

fn space() -> impl Strategy<Value = String> {
    "[ \t\r\n]{0,2}"
}

fn value(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?[1-9][0-9]{0,3}(\\.[0-9])?",
        "\\PC{0,5}".prop_map(|text| Value::from(text).to_string()),
        Just(r#""\\\"},]{""#.to_owned()),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let list = prop::collection::vec(value(depth - 1), 0..3)
        .prop_map(|items| format!("[{}]", items.join(" ,")));
    let object = written(depth - 1).prop_map(|object| object.text);
    prop_oneof![leaf, list, object].boxed()
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{1,2}", "[\"\\\\:,{}]{1,4}", "\\PC{0,3}"]
}

fn written(depth: u32) -> impl Strategy<Value = Written> {
    let member = (key(), value(depth), [space(), space(), space(), space()]);
    prop::collection::vec(member, 0..5).prop_map(|members| {
        let mut written = Written {
            text: "{ ".to_owned(),
            members: Vec::new(),
        };
        for (key, value, [a, b, c, d]) in members {
            if written.members.iter().any(|(other, _)| *other == key) {
                continue;
            }
            let comma = if written.members.is_empty() { "" } else { "," };
            let json = Value::from(key.as_str());
            written.text += &[comma, &a, &json.to_string(), &b, ":", &c].concat();
            let start = written.text.len();
            written.text += &[&*value, &d].concat();
            written.members.push((key, start..start + value.len()));
        }
        written.text.push('}');
        written
    })
}

proptest! {
    /// The oracle edits the parsed object; members are kept, set or removed, and others are inserted.
    #[test]
    fn splices_do_what_an_edit_of_the_tree_does(
        object in written(3),
        before in space(),
        after in space(),
        choices in prop::collection::vec(0..3, 5),
        inserted in 0_usize..3,
    ) {
        let mut tree: Map<String, Value> = serde_json::from_str(&object.text).unwrap();
        let body = format!("{before}{}{after}", object.text);
        let at = before.len()..before.len() + object.text.len();
        let new = Bytes::from_static(b"[1, {\"x\":2}]");
        let mut edits = Vec::new();
        for ((name, place), choice) in object.members.iter().zip(choices) {
            let value = match choice {
                0 => continue,
                1 => {
                    tree.remove(name);
                    None
                }
                _ => {
                    tree[name] = serde_json::from_slice(&new).unwrap();
                    Some(new.clone())
                }
            };
            let value_at = Some(at.start + place.start..at.start + place.end);
            edits.push(MemberEdit { name, value_at, value });
        }
        for name in &["token_ids", "nvext"][..inserted] {
            tree.insert((*name).to_owned(), serde_json::from_slice(&new).unwrap());
            edits.push(MemberEdit { name, value_at: None, value: Some(new.clone()) });
        }
        edits.reverse();
        let splices = splice_object(body.as_bytes(), at, &edits).unwrap();
        let result = applied(&body, splices);
        let parsed: Value = serde_json::from_str(&result).map_err(|error| {
            TestCaseError::fail(format!("{error}: {body:?} became {result:?}"))
        })?;
        prop_assert_eq!(parsed, Value::Object(tree), "{:?} became {:?}", body, result);
        let end = ["}", &after].concat();
        prop_assert!(result.starts_with(&before) && result.ends_with(&end));
    }
}
