use std::fmt::Write;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::body::Api;

const CHAT: &str = "/v1/chat/completions";

fn facts_of(path: &str, body: &str, mode: Mode, model: &str) -> Result<PromptFacts, PromptError> {
    read(&parse(path, body), body.as_bytes(), mode, model)
}

fn parse(path: &str, body: &str) -> Parsed {
    let api = Api::for_path(path.as_bytes()).unwrap().unwrap();
    api.parse(body.as_bytes()).unwrap()
}

fn facts(path: &str, fields: &str, mode: Mode) -> PromptFacts {
    facts_of(path, &format!(r#"{{"model":"m",{fields}}}"#), mode, "m").unwrap()
}

/// Of one message of the user.
fn chat(content: &Value, mode: Mode) -> PromptFacts {
    let messages = json!([{"role": "user", "content": content}]);
    facts(CHAT, &format!(r#""messages":{messages}"#), mode)
}

/// What a stream of these bytes is hashed to.
fn hashes(stream: &[u8], model: &str) -> Vec<u64> {
    let mut chunks = Chunks::default();
    chunks.update(stream);
    let salt = if model.is_empty() {
        0
    } else {
        salt(model, None)
    };
    chunks.finish().iter().map(|hash| hash ^ salt).collect()
}

#[rstest]
#[case("hello", &[14_688_674_573_012_802_306])]
#[case(&"a".repeat(512), &[13_071_765_710_931_616_942])]
#[case(&"a".repeat(513), &[13_071_765_710_931_616_942, 5_381_757_169_692_568_846])]
#[case(&"a".repeat(1500),
    &[13_071_765_710_931_616_942, 688_797_103_392_425_890, 10_720_826_874_699_873_353])]
#[case("请用Python实现快排", &[8_563_645_160_726_059_311])]
#[case("", &[])]
fn text_is_hashed_as_other_gateways_do(#[case] text: &str, #[case] want: &[u64]) {
    let facts = chat(&json!(text), Mode::Text);
    assert_eq!(facts.hashes, want);
    assert_eq!(
        (facts.length, facts.text_bytes),
        (text.len() as u64, text.len() as u64)
    );
    assert_eq!(facts.chunks() as usize, want.len());
}

#[test]
fn in_full_the_role_and_the_model_count() {
    let body = r#"{"model":"alias","messages":[{"role":"user","content":"hello"}]}"#;
    let facts = facts_of(CHAT, body, Mode::Full, "qwen-2.5-72b").unwrap();
    assert_eq!(facts.hashes, [14_694_280_447_608_916_357]);
    assert_eq!(facts.length, 5);
}

/// Each with the stream of the text mode and that of the full mode.
#[rstest]
#[case::messages_without_anything_between(CHAT,
    r#""messages":[{"role":"system","content":"a"},{"content":[{"type":"text","text":"b"},{"text":"c","type":"text"}],"role":"user"}]"#,
    "abc", "\x1esystem\x1fa\x1euser\x1fbc")]
#[case::tools_first(
    CHAT,
    r#""messages":[{"role":"user","content":"a"}],"tools":[{"type": "function"}]"#,
    "a",
    "\x1etools\x1f[{\"type\": \"function\"}]\x1euser\x1fa"
)]
#[case::calls(CHAT,
    r#""messages":[{"tool_calls":[{"id":1}],"content":null,"role":"assistant"},{"role":"tool","content":"4"}]"#,
    "4", "\x1eassistant\x1f\x1d[{\"id\":1}]\x1etool\x1f4")]
#[case::the_last_of_a_double_key_counts(
    CHAT,
    r#""messages":[{"role":"x","role":"user","content":"a"}]"#,
    "a",
    "\x1euser\x1fa"
)]
#[case::anthropic(
    "/v1/messages",
    r#""messages":[{"role":"user","content":"b"}],"system":[{"type":"text","text":"a"}]"#,
    "ab",
    "\x1esystem\x1fa\x1euser\x1fb"
)]
#[case::results_of_tools("/v1/messages",
    r#""messages":[{"role":"user","content":[{"type":"tool_result","content":"4"},{"type":"text","text":"b"}]}]"#,
    "b", "\x1euser\x1f\x1d{\"type\":\"tool_result\",\"content\":\"4\"}b")]
#[case::responses_of_a_text(
    "/v1/responses",
    r#""input":"b","instructions":"a","tools":[]"#,
    "ab",
    "\x1etools\x1f[]\x1esystem\x1fa\x1euser\x1fb"
)]
#[case::responses_of_items("/v1/responses",
    r#""input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call_output","output":"4"}]"#,
    "a", "\x1euser\x1fa\x1d{\"type\":\"function_call_output\",\"output\":\"4\"}")]
#[case::completion("/v1/completions", r#""prompt":"a\u0062""#, "ab", "ab")]
#[case::completions("/v1/completions", r#""prompt":["a","b"]"#, "a\x1eb", "a\x1eb")]
#[case::tokens(
    "/v1/completions",
    r#""prompt":[1,258]"#,
    "\x01\0\0\0\x02\x01\0\0",
    "\x01\0\0\0\x02\x01\0\0"
)]
#[case::lists_of_tokens(
    "/v1/completions",
    r#""prompt":[[1],[2]]"#,
    "\x01\0\0\0\x1e\x02\0\0\0",
    "\x01\0\0\0\x1e\x02\0\0\0"
)]
#[case::generate(
    "/inference/v1/generate",
    r#""token_ids":[1]"#,
    "\x01\0\0\0",
    "\x01\0\0\0"
)]
#[case::embeddings("/v1/embeddings", r#""input":["a","b"]"#, "a\x1eb", "a\x1eb")]
#[case::no_prompt("/v1/completions", r#""stream":true"#, "", "")]
fn the_prompt_is_read_in_the_order_of_the_engine(
    #[case] path: &str,
    #[case] fields: &str,
    #[case] text: &str,
    #[case] full: &str,
) {
    assert_eq!(
        facts(path, fields, Mode::Text).hashes,
        hashes(text.as_bytes(), ""),
        "text"
    );
    assert_eq!(
        facts(path, fields, Mode::Full).hashes,
        hashes(full.as_bytes(), "m"),
        "full"
    );
}

/// Bytes that a part counts for, and whether it makes the request one of vision.
#[rstest]
#[case(r#"{"type":"image_url","image_url":{"url":"https://a"}}"#, 4096, true)]
#[case(r#"{"type":"image","source":{}}"#, 4096, true)]
#[case(r#"{"type":"video_url","video_url":{"url":"https://a"}}"#, 8192, true)]
#[case(r#"{"type":"input_audio","input_audio":{}}"#, 40_960, false)]
#[case(r#"{"type":"file","file":{}}"#, 4096, false)]
fn media_stand_for_bytes_of_their_digest(
    #[case] part: &str,
    #[case] size: u64,
    #[case] is_vl: bool,
) {
    let fields = format!(
        r#""messages":[{{"role":"user","content":[{{"type":"text","text":"a"}},{part}]}}]"#
    );
    let full = facts(CHAT, &fields, Mode::Full);
    assert_eq!(
        (full.length, full.text_bytes, full.is_vl),
        (size.saturating_add(1), 1, is_vl)
    );
    let digest = format!("{:032x}", xxh3_128(part.as_bytes()));
    let filler = digest.repeat(usize::try_from(size).unwrap() / 32);
    let stream = format!("\x1euser\x1fa{filler}");
    assert_eq!(full.hashes, hashes(stream.as_bytes(), "m"));
    let text = facts(CHAT, &fields, Mode::Text);
    assert_eq!((text.length, text.is_vl), (1, is_vl));
    assert_eq!(text.hashes, hashes(b"a", ""));
}

/// What must not share a cache.
#[test]
fn images_roles_tools_models_and_salts_differ_in_full() {
    let image = |url: &str| format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
    let body = |role: &str, content: &str, rest: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"{role}","content":[{content}]}}]{rest}}}"#)
    };
    let text = r#"{"type":"text","text":"a"}"#;
    let variants = [
        (body("user", text, ""), "m"),
        (body("assistant", text, ""), "m"),
        (body("user", &image("https://a"), ""), "m"),
        (body("user", &image("https://b"), ""), "m"),
        (body("user", text, r#","tools":[{"x":1}]"#), "m"),
        (body("user", text, r#","cache_salt":"tenant""#), "m"),
        (body("user", text, ""), "n"),
    ];
    let mut seen = Vec::new();
    for (body, model) in &variants {
        let hashes = facts_of(CHAT, body, Mode::Full, model).unwrap().hashes;
        assert!(!seen.contains(&hashes[0]), "{body} for {model}");
        seen.push(hashes[0]);
    }
}

#[rstest]
#[case(r#"{"model":"m"}"#)]
#[case(r#"{"model":"m","messages":[]}"#)]
#[case(r#"{"model":"m","messages":null}"#)]
#[case(r#"{"model":"m","messages":"hello"}"#)]
fn a_chat_without_messages_is_refused(#[case] body: &str) {
    for path in [CHAT, "/v1/messages"] {
        assert_eq!(
            facts_of(path, body, Mode::Full, "m"),
            Err(PromptError::NoMessages)
        );
    }
}

#[rstest]
#[case::lone_high(r"\ud83d", "\u{fffd}")]
#[case::lone_low(r"\ude00", "\u{fffd}")]
#[case::high_before_another(r"\ud83d\ud83d\ude00", "\u{fffd}😀")]
#[case::high_before_a_letter(r"\ud83d\u0041b", "\u{fffd}Ab")]
#[case::high_before_a_tab(r"\ud83d\tb", "\u{fffd}\tb")]
#[case::pair(r"\ud83d\ude00", "😀")]
#[case::all(r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t")]
fn escapes_stand_for_their_character(#[case] escaped: &str, #[case] want: &str) {
    let facts = facts(
        "/v1/completions",
        &format!(r#""prompt":"{escaped}""#),
        Mode::Text,
    );
    assert_eq!(facts.hashes, hashes(want.as_bytes(), ""));
    assert_eq!(facts.text_bytes, want.len() as u64);
}

#[test]
fn beyond_the_last_chunk_only_the_length_grows() {
    let prompt = "x".repeat(8192 * 512);
    let whole = facts(
        "/v1/completions",
        &format!(r#""prompt":"{prompt}""#),
        Mode::Text,
    );
    let more = facts(
        "/v1/completions",
        &format!(r#""prompt":"{prompt}yy""#),
        Mode::Text,
    );
    assert_eq!((whole.chunks(), more.chunks()), (8192, 8192));
    assert_eq!(whole.hashes, more.hashes);
    assert_eq!(more.length, 8192 * 512 + 2);
}

/// One character, in the way that `how` says.
fn escape(to: &mut String, character: char, how: u8) {
    let must = character == '"' || character == '\\' || u32::from(character) < 0x20;
    if how.is_multiple_of(3) && !must {
        return to.push(character);
    }
    if how % 3 == 1 && matches!(character, '"' | '\\' | '/') {
        to.push('\\');
        return to.push(character);
    }
    for unit in character.encode_utf16(&mut [0; 2]) {
        let _ = if how.is_multiple_of(2) {
            write!(to, "\\u{unit:04x}")
        } else {
            write!(to, "\\u{unit:04X}")
        };
    }
}

/// As a client may write it.
fn escaped(text: &str, ways: &[u8]) -> String {
    let mut json = String::from("\"");
    for (character, how) in text.chars().zip(ways.iter().cycle()) {
        escape(&mut json, character, *how);
    }
    json.push('"');
    json
}

proptest! {
    /// However it is escaped, spaced and divided into parts.
    #[test]
    fn the_same_text_has_the_same_hashes(
        parts in prop::collection::vec((any::<String>(), prop::collection::vec(any::<u8>(), 1..9)), 0..6),
        times in 1_usize..90,
        space in "[ \n\t\r]{0,3}",
        text_first in any::<bool>(),
    ) {
        let parts: Vec<_> = parts.into_iter().map(|(text, ways)| (text.repeat(times), ways)).collect();
        let whole: String = parts.iter().map(|(text, _)| text.as_str()).collect();
        let list = parts.iter().map(|(text, ways)| {
            let text = escaped(text, ways);
            if text_first {
                format!(r#"{{{space}"text":{text},"type"{space}:"text"}}"#)
            } else {
                format!(r#"{{"type":"te\u0078t","other":[1],{space}"t\u0065xt":{text}{space}}}"#)
            }
        });
        let list = list.collect::<Vec<_>>().join(&format!("{space},"));
        let divided = format!(r#""messages":[{space}{{"content":[{list}]{space},"role":"us\u0065r"}}]"#);
        let plain = json!([{"role": "user", "content": whole}]);
        for mode in [Mode::Text, Mode::Full] {
            let plain = facts(CHAT, &format!(r#""messages":{plain}"#), mode);
            prop_assert_eq!(facts(CHAT, &divided, mode), plain);
        }
        let text = facts(CHAT, &divided, Mode::Text);
        prop_assert_eq!(text.hashes, hashes(whole.as_bytes(), ""));
        prop_assert_eq!(text.length, whole.len() as u64);
    }
}

/// Engines may take them, or refuse them: in any case they are not what another prompt has in their place.
#[rstest]
#[case::message_that_is_none(
    r#""messages":[7,{"role":"user","content":"a"}]"#,
    "\x1d7\x1euser\x1fa"
)]
#[case::part_that_is_none(r#""messages":[{"role":"user","content":[7]}]"#, "\x1euser\x1f\x1d7")]
#[case::text_as_part(r#""messages":[{"role":"user","content":["a"]}]"#, "\x1euser\x1fa")]
#[case::text_without_type(
    r#""messages":[{"role":"user","content":[{"text":"a"}]}]"#,
    "\x1euser\x1fa"
)]
#[case::nothing_known(
    r#""messages":[{"role":"user","content":[{"x":1}]}]"#,
    "\x1euser\x1f\x1d{\"x\":1}"
)]
#[case::text_that_is_none(
    r#""messages":[{"role":"user","content":[{"type":"text","text":7}]}]"#,
    "\x1euser\x1f"
)]
fn odd_parts_count_as_what_they_are(#[case] fields: &str, #[case] stream: &str) {
    let facts = facts(CHAT, fields, Mode::Full);
    assert_eq!(facts.hashes, hashes(stream.as_bytes(), "m"));
}

#[rstest]
fn what_is_neither_text_nor_media_is_hashed_as_it_is_written(
    #[values(
        "tool_use",
        "tool_result",
        "server_tool_use",
        "function_call",
        "function_call_output",
        "thinking",
        "redacted_thinking",
        "reasoning",
        "refusal"
    )]
    kind: &str,
) {
    let part = format!(r#"{{"type":"{kind}","x":1}}"#);
    let fields = format!(r#""messages":[{{"role":"user","content":[{part}]}}]"#);
    let facts = facts(CHAT, &fields, Mode::Full);
    let stream = format!("\x1euser\x1f\x1d{part}");
    assert_eq!(facts.hashes, hashes(stream.as_bytes(), "m"));
    assert_eq!((facts.length, facts.is_vl), (0, false));
}

#[test]
fn ids_of_tokens_count_four_bytes_each() {
    let facts = facts("/v1/completions", r#""prompt":[1,4294967296]"#, Mode::Text);
    let stream = [[1, 0, 0, 0], [255; 4]].concat();
    assert_eq!(facts.hashes, hashes(&stream, ""));
    assert_eq!((facts.length, facts.text_bytes), (8, 8));
}
