//! What clients, templates and tokenizers can make a process take, as the system counts it.
//!
//! One test, alone in its process: the system counts for all threads together.
#![cfg(test)]

use std::fs;

use jiff::civil::DateTime;
use processor_api::Refusal;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenization::{
    Api, ContentFormatOption, EncodeOptions, Model, ModelSource, Prompt, SegmentCache,
    Transformers, sample,
};

const MIB: u64 = 1 << 20;

/// A template that writes tools as templates of published models do.
const INDENTED: &str = "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}";

/// The most memory that the process has had, in bytes.
fn most() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

/// What `act` gives, and by how many bytes it raised the most that the process has had.
fn raised<T>(act: impl FnOnce() -> T) -> (T, u64) {
    // the mark is set back to what is in use now
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = most();
    let result = act();
    (result, most() - before)
}

fn mk_directory(template: &str, normalizer: &Value) -> TempDir {
    let directory = TempDir::new().unwrap();
    sample::write(directory.path()).unwrap();
    let path = directory.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["normalizer"] = normalizer.clone();
    fs::write(path, tokenizer.to_string()).unwrap();
    fs::write(directory.path().join("chat_template.jinja"), template).unwrap();
    directory
}

fn load(template: &str, normalizer: &Value) -> Result<Model, String> {
    let directory = mk_directory(template, normalizer);
    let source = ModelSource {
        directory: directory.path(),
        chat_template: None,
        content_format: ContentFormatOption::Auto,
        max_model_len: None,
        transformers: Transformers::V5,
    };
    Model::load(&source, 1).map_err(|error| error.to_string())
}

fn mk_model(template: &str) -> Model {
    load(template, &Value::Null).unwrap()
}

fn render(model: &Model, body: &str) -> Result<Prompt, Refusal> {
    model.prompt(Api::Chat, body, DateTime::default())
}

fn encode(model: &Model, text: String) -> Result<Vec<u32>, Refusal> {
    let options = EncodeOptions {
        cache: SegmentCache::new(MIB, 1),
        verify_sample: 0.0,
    };
    let prompt = Prompt::Text {
        text,
        add_special_tokens: false,
    };
    model.encode(prompt, &options, &mut StdRng::seed_from_u64(1))
}

fn schema(depth: usize, numbers: usize) -> String {
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    let schema = format!("{open}{}1{close}", "1,".repeat(numbers));
    format!(r#"{{"messages":[],"tools":[{{"function":{{"name":"f","parameters":{schema}}}}}]}}"#)
}

/// A body with one message from the assistant, whose tool calls are these.
fn calls(calls: &[String]) -> String {
    let calls = calls.join(",");
    format!(r#"{{"messages":[{{"role":"assistant","tool_calls":[{calls}]}}]}}"#)
}

fn costly() -> Vec<String> {
    let repeated = |value: &str| vec![value; (15 << 20) / (value.len() + 1)].join(",");
    let of_tools = |value: &str| {
        let values = repeated(value);
        format!(
            r#"{{"messages":[],"tools":[{{"function":{{"name":"f","parameters":[{values}]}}}}]}}"#
        )
    };
    let arguments = vec!["{}"; 800_000].join(",");
    let call = json!({"function": {"name": "f", "arguments": format!("[{arguments}]")}});
    vec![
        calls(&vec![call.to_string(); 6]),
        calls(&[repeated(r#"{"function":{}}"#)]),
        format!(r#"{{"messages":[{}]}}"#, repeated(r#"{"role":""}"#)),
        format!(
            r#"{{"messages":[{{"role":"u","content":[{}]}}]}}"#,
            repeated(r#""""#)
        ),
        of_tools("{}"),
        of_tools(r#"{"":0}"#),
        of_tools("[]"),
        of_tools("[0]"),
    ]
}

/// Nested lists, each with ten times the same list as items.
fn shared(levels: usize, used: &str) -> String {
    let first = "{% set l0 = ['x'] * 10 %}".to_owned();
    let mut parts = vec![first];
    for level in 1..levels {
        let items = format!("l{}, ", level - 1).repeat(10);
        parts.push(format!("{{% set l{level} = [{items}] %}}"));
    }
    parts.push(used.replace("last", &format!("l{}", levels - 1)));
    parts.concat()
}

fn unsupported(refused: Result<Prompt, Refusal>) -> String {
    match refused {
        Err(Refusal::Unsupported(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_others_send_takes_bounded_memory() {
    // first, as freed memory would hide theirs: requests of some 16 MiB, whose values cost the most memory for each byte, in turn
    let plain = mk_model(sample::TEMPLATE);
    for body in costly() {
        let (refused, bytes) = raised(|| render(&plain, &body));
        let message = unsupported(refused);
        assert!(message.contains("more values"), "{message}");
        assert!(bytes < 160 * MIB, "{body:.60}: {bytes}");
    }

    // 3 MB that would be 750 MB of text
    let body = schema(115, 1_500_000);
    let indented = mk_model(INDENTED);
    let (refused, bytes) = raised(|| render(&indented, &body));
    let message = unsupported(refused);
    assert!(message.contains("more than 16 MiB"), "{message}");
    assert!(bytes < 200 * MIB, "{bytes}");

    // a body of 16 MiB, of values that are as short as can be
    let body = schema(1, 8_000_000);
    let (refused, bytes) = raised(|| render(&indented, &body));
    let message = unsupported(refused);
    assert!(message.contains("more values"), "{message}");
    assert!(bytes < 250 * MIB, "{bytes}");

    let body = r#"{"messages":[]}"#;
    for used in [
        "{{ last }}",
        "{{ last | tojson }}",
        "{{ raise_exception(last) }}",
    ] {
        let model = mk_model(&shared(10, used));
        let (refused, bytes) = raised(|| render(&model, body));
        let message = unsupported(refused);
        assert!(message.contains("takes too long"), "{message}");
        assert!(bytes < 100 * MIB, "{used}: {bytes}");
    }
    let model = mk_model(&shared(5, "{{ raise_exception(last) }}"));
    let (refused, bytes) = raised(|| render(&model, body));
    let Err(Refusal::Template(message)) = refused else {
        panic!("{refused:?}");
    };
    assert!(message.len() < 4096 && bytes < 100 * MIB, "{bytes}");

    let doubled = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let bomb = json!({"type": "Sequence", "normalizers": vec![doubled; 40]});
    let (refused, bytes) = raised(|| load(INDENTED, &bomb));
    let message = refused.expect_err("a tokenizer that is refused");
    assert!(message.contains("times as long"), "{message}");
    assert!(bytes < 100 * MIB, "{bytes}");

    // each byte of it is a token
    let (ids, bytes) = raised(|| encode(&indented, " x".repeat(1 << 19)));
    assert_eq!(ids.unwrap().len(), 1 << 20);
    assert!(bytes < 400 * MIB, "{bytes}");
    let (refused, bytes) = raised(|| encode(&indented, " x".repeat(3 << 20)));
    let Err(Refusal::Unsupported(message)) = refused else {
        panic!("it is refused");
    };
    assert!(message.contains("without special tokens"), "{message}");
    assert!(bytes < 32 * MIB, "{bytes}");
}
