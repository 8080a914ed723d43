use std::fs;

use jiff::civil::date;
use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::*;
use crate::fixtures::{byte_level, special};

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";

fn mk_directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().unwrap();
    let mut tokenizer: Json = serde_json::from_slice(&byte_level(&special())).unwrap();
    // as in models whose tokenizer begins a text by itself
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let start = added
        .iter()
        .find(|token| token["content"] == "<|start|>")
        .unwrap();
    let token = json!({"id": "<|start|>", "ids": [start["id"]], "tokens": ["<|start|>"]});
    let begin = json!({"SpecialToken": {"id": "<|start|>", "type_id": 0}});
    let text = |id| json!({"Sequence": {"id": id, "type_id": 0}});
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [begin, text("A")],
        "pair": [begin, text("A"), text("B")],
        "special_tokens": {"<|start|>": token},
    });
    fs::write(
        directory.path().join("tokenizer.json"),
        tokenizer.to_string(),
    )
    .unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn load(directory: &TempDir) -> Result<Model, LoadError> {
    let source = ModelSource {
        directory: directory.path(),
        chat_template: None,
        content_format: ContentFormatOption::Auto,
        max_model_len: Some(20),
        transformers: Transformers::V5,
    };
    Model::load(&source, 1)
}

fn prompt(model: &Model, api: Api, body: &str) -> Result<Prompt, Refusal> {
    model.prompt(api, body, date(2024, 7, 6).at(9, 5, 3, 0))
}

fn mk_model(files: &[(&str, &str)]) -> Model {
    load(&mk_directory(files)).unwrap()
}

fn chat(files: &[(&str, &str)], extra: &str) -> Result<String, Refusal> {
    let model = mk_model(files);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{extra}}}"#);
    match prompt(&model, Api::Chat, &body)? {
        Prompt::Text {
            text,
            add_special_tokens: false,
        } => Ok(text),
        other => panic!("{other:?}"),
    }
}

const NAMED: &str = r#"{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"with tools"}]}"#;

#[rstest]
#[case::jinja_file_first(
    &[("chat_template.jinja", "file"), ("tokenizer_config.json", r#"{"chat_template":"config"}"#)],
    "",
    "file"
)]
#[case::then_the_config(
    &[("tokenizer_config.json", r#"{"chat_template":"config"}"#), ("chat_template.json", r#"{"chat_template":"json"}"#)],
    "",
    "config"
)]
#[case::then_the_json_file(&[("chat_template.json", r#"{"chat_template":"json"}"#)], "", "json")]
#[case::of_a_list_without_tools(&[("tokenizer_config.json", NAMED)], "", "plain")]
#[case::of_a_list_with_tools(
    &[("tokenizer_config.json", NAMED)],
    r#","tools":[{"type":"function","function":{"name":"f"}}]"#,
    "with tools"
)]
#[case::special_tokens(
    &[
        ("chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ additional_special_tokens }}{{ pad_token is defined }}"),
        ("tokenizer_config.json", r#"{"bos_token":"<s>","eos_token":{"content":"</s>","special":true},"pad_token":null,"additional_special_tokens":["<a>",{"content":"<b>"}]}"#),
    ],
    "",
    "<s></s>['<a>', '<b>']False"
)]
#[case::the_time(&[("chat_template.jinja", "{{ strftime_now('%Y-%m-%d') }}")], "", "2024-07-06")]
#[case::content_as_parts(
    &[("chat_template.jinja", "{% for m in messages %}{% for p in m.content %}{{ p.type }}{% endfor %}{% endfor %}")],
    "",
    "text"
)]
fn the_template_and_its_variables_come_from_the_models_files(
    #[case] files: &[(&str, &str)],
    #[case] extra: &str,
    #[case] text: &str,
) {
    assert_eq!(chat(files, extra).unwrap(), text);
}

#[test]
fn a_given_template_file_comes_before_all_others() {
    let directory = mk_directory(&[("chat_template.jinja", "own"), ("other.jinja", "given")]);
    let given = directory.path().join("other.jinja");
    let source = ModelSource {
        directory: directory.path(),
        chat_template: Some(&given),
        content_format: ContentFormatOption::String,
        max_model_len: None,
        transformers: Transformers::V5,
    };
    let model = Model::load(&source, 1).unwrap();
    let Prompt::Text { text, .. } = prompt(&model, Api::Chat, r#"{"messages":[]}"#).unwrap() else {
        panic!("no text");
    };
    assert_eq!(text, "given");
}

#[test]
fn what_the_template_raises_is_what_the_client_is_told() {
    let raising = [(
        "chat_template.jinja",
        "{{ raise_exception('no ' ~ messages[0].role) }}",
    )];
    assert_eq!(
        chat(&raising, ""),
        Err(Refusal::Template("no user".to_owned()))
    );
    assert!(matches!(chat(&[], ""), Err(Refusal::Unsupported(_))));
}

#[rstest]
#[case::no_template_syntax("chat_template.jinja", "{% if %}")]
#[case::no_json("tokenizer_config.json", "[")]
#[case::no_tokenizer("tokenizer.json", "{}")]
fn a_file_that_cannot_be_used_is_named(#[case] name: &str, #[case] text: &str) {
    let error = load(&mk_directory(&[(name, text)])).unwrap_err();
    assert!(matches!(error, LoadError::Unusable(..)), "{error}");
    assert!(error.to_string().contains(name), "{error}");
}

#[test]
fn a_directory_without_a_tokenizer_is_unreadable() {
    let directory = TempDir::new().unwrap();
    let error = load(&directory).unwrap_err();
    assert!(matches!(error, LoadError::Unreadable(..)), "{error}");
}

fn text(text: &str, add_special_tokens: bool) -> Prompt {
    let text = text.to_owned();
    Prompt::Text {
        text,
        add_special_tokens,
    }
}

#[rstest]
#[case::string(r#"{"prompt":"a"}"#, text("a", true))]
#[case::the_bodys_own_wish(r#"{"prompt":"a","add_special_tokens":false}"#, text("a", false))]
#[case::one_of_a_list(r#"{"prompt":["a"]}"#, text("a", true))]
#[case::ids(r#"{"prompt":[1,2]}"#, Prompt::Ids(vec![1, 2]))]
#[case::ids_of_a_list(r#"{"prompt":[[1,2]]}"#, Prompt::Ids(vec![1, 2]))]
fn one_prompt_is_taken_in_each_of_its_forms(#[case] body: &str, #[case] expected: Prompt) {
    let model = mk_model(&[]);
    assert_eq!(prompt(&model, Api::Completions, body), Ok(expected));
}

#[rstest]
#[case::none("{}", "bad-request")]
#[case::empty(r#"{"prompt":[]}"#, "bad-request")]
#[case::empty_ids(r#"{"prompt":[[]]}"#, "bad-request")]
#[case::float(r#"{"prompt":[1.5]}"#, "bad-request")]
#[case::negative(r#"{"prompt":[-1]}"#, "bad-request")]
#[case::object(r#"{"prompt":{}}"#, "bad-request")]
#[case::deeper(r#"{"prompt":[[["a"]]]}"#, "unsupported")]
#[case::several(r#"{"prompt":["a","b"]}"#, "unsupported")]
#[case::several_of_ids(r#"{"prompt":[[1],[2]]}"#, "unsupported")]
fn other_prompts_are_refused(#[case] body: &str, #[case] reason: &str) {
    let model = mk_model(&[]);
    let refusal = prompt(&model, Api::Completions, body).unwrap_err();
    assert_eq!(refusal.reason(), reason, "{refusal:?}");
}

#[test]
fn only_string_prompts_get_the_tokenizers_own_tokens() {
    let model = mk_model(&[("chat_template.jinja", TEMPLATE)]);
    let options = EncodeOptions {
        cache: SegmentCache::new(1 << 20, 1),
        verify_sample: 1.0,
    };
    let mut rng = StdRng::seed_from_u64(1);
    let mut encode = |api, body: &str| {
        let prompt = prompt(&model, api, body).unwrap();
        model.encode(prompt, &options, &mut rng)
    };
    let completion = encode(Api::Completions, r#"{"prompt":"hi"}"#).unwrap();
    let chat = encode(
        Api::Chat,
        r#"{"messages":[{"role":"user","content":"hi"}]}"#,
    )
    .unwrap();
    assert_eq!(completion.get(1..), Some(&*chat));
    let long = encode(
        Api::Completions,
        &format!(r#"{{"prompt":"{}"}}"#, "1 ".repeat(30)),
    );
    assert_eq!(long.unwrap_err().reason(), "unsupported");
    assert_eq!(encode(Api::Completions, r#"{"prompt":[7]}"#), Ok(vec![7]));
}

#[rstest]
#[case::chat(Some("/v1/chat/completions"), "{}", Some(Api::Chat))]
#[case::with_a_query(Some("/v1/chat/completions?a=1"), "{}", Some(Api::Chat))]
#[case::render(Some("/v1/chat/completions/render"), "{}", Some(Api::Chat))]
#[case::completions(Some("/v1/completions"), "{}", Some(Api::Completions))]
#[case::part_of_a_word(Some("/v1/xcompletions"), "{}", None)]
#[case::other(Some("/v1/embeddings"), "{}", None)]
#[case::by_messages(None, r#"{"messages":[]}"#, Some(Api::Chat))]
#[case::by_prompt(None, r#"{"prompt":""}"#, Some(Api::Completions))]
#[case::by_nothing(None, "{}", None)]
fn the_path_says_what_a_body_is_and_else_its_fields(
    #[case] path: Option<&str>,
    #[case] body: &str,
    #[case] api: Option<Api>,
) {
    assert_eq!(Api::of(path, body), Ok(api));
}

/// Whether a directory with this `config.json` can be loaded.
fn loaded_with_config(write: impl FnOnce(&std::path::Path), transformers: Transformers) -> bool {
    let directory = mk_directory(&[]);
    write(&directory.path().join("config.json"));
    let source = ModelSource {
        directory: directory.path(),
        chat_template: None,
        content_format: ContentFormatOption::Auto,
        max_model_len: None,
        transformers,
    };
    Model::load(&source, 1).is_ok()
}

/// As published: transformers reads each of these, or no engine starts.
#[rstest]
#[case::hybrid(
    br#"{"model_type":"nemotron_h","time_step_limit":[0.0,Infinity],"x":-Infinity,"y":NaN}"#
)]
#[case::cut_off(br#"{"model_type":"qwen2""#)]
#[case::no_object(b"[]")]
#[case::empty(b"")]
#[case::no_text(b"{\"a\":\"\xff\xfe\"}\x00")]
#[case::nested(&vec![b'['; 100_000])]
#[case::large(&vec![b' '; 5 << 20])]
fn a_config_that_cannot_be_read_fails_no_model(#[case] config: &[u8]) {
    assert!(loaded_with_config(
        |path| fs::write(path, config).unwrap(),
        Transformers::V5
    ));
}

#[test]
fn a_config_that_is_no_file_fails_no_model() {
    assert!(loaded_with_config(
        |path| fs::create_dir(path).unwrap(),
        Transformers::V5
    ));
}

#[rstest]
#[case::found_behind_infinity(Transformers::V5, false)]
#[case::not_read_for_version_4(Transformers::V4, true)]
fn the_model_type_decides_for_version_5(#[case] transformers: Transformers, #[case] loads: bool) {
    // this type has another normalizer than the file
    let config = r#"{"time_step_limit":[0.0,Infinity],"model_type":"qwen2"}"#;
    let write = |path: &std::path::Path| fs::write(path, config).unwrap();
    assert_eq!(loaded_with_config(write, transformers), loads);
}

#[test]
fn a_config_that_changes_is_checked_again() {
    let directory = mk_directory(&[]);
    let source = ModelSource {
        directory: directory.path(),
        chat_template: None,
        content_format: ContentFormatOption::Auto,
        max_model_len: None,
        transformers: Transformers::V5,
    };
    let load = |former: Option<&Arc<Model>>| Model::load_unless_same(&source, former, || 1);
    let path = directory.path().join("config.json");
    let first = load(None).unwrap();
    fs::write(&path, r#"{"model_type":"llama","vocab_size":1}"#).unwrap();
    let second = load(Some(&first)).unwrap();
    fs::write(&path, r#"{"model_type":"llama","vocab_size":2}"#).unwrap();
    assert!(Arc::ptr_eq(&load(Some(&second)).unwrap(), &second));
    fs::write(&path, r#"{"model_type":"qwen2"}"#).unwrap();
    let error = load(Some(&second)).unwrap_err();
    assert!(error.to_string().contains("Qwen2Tokenizer"), "{error}");
}

#[test]
fn an_infinite_number_in_the_tokenizers_config_is_read_as_python_reads_it() {
    let config = r#"{"model_max_length":Infinity,"bos_token":"<s>"}"#;
    let files = [
        ("tokenizer_config.json", config),
        ("chat_template.jinja", "{{ bos_token }}"),
    ];
    assert_eq!(chat(&files, "").unwrap(), "<s>");
}
