use jiff::civil::date;
use rstest::rstest;
use serde::Deserialize;

use super::*;
use crate::json;

/// When the goldens were made.
fn now() -> DateTime {
    date(2024, 7, 6).at(9, 5, 3, 0)
}

#[derive(Deserialize)]
struct Traps {
    cases: Vec<Trap>,
}

#[derive(Deserialize)]
struct Trap {
    name: String,
    template: String,
    variables: String,
    #[serde(flatten)]
    expected: Expected,
}

#[derive(Deserialize)]
struct Conversations {
    manners: std::collections::BTreeMap<String, String>,
    cases: Vec<Conversation>,
}

#[derive(Deserialize)]
struct Conversation {
    manner: String,
    variables: String,
    #[serde(flatten)]
    expected: Expected,
}

/// What Python's renderer made of it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Text(String),
    Raised(String),
    Fails(String),
}

fn variables(text: &str) -> Map {
    let value = json::parse(text).unwrap();
    let keys = value.try_iter().unwrap();
    keys.map(|key| {
        let item = value.get_item(&key).unwrap();
        (key, item)
    })
    .collect()
}

fn rendered(template: &str, variables_json: &str) -> Result<String, TemplateError> {
    Template::new(template)?.render(variables(variables_json), now())
}

/// Whether we do what Python does: the kind of its errors is its own.
fn agrees(result: &Result<String, TemplateError>, expected: &Expected) -> bool {
    match (result, expected) {
        (Ok(text), Expected::Text(expected))
        | (Err(TemplateError::Raised(text)), Expected::Raised(expected)) => text == expected,
        (Err(TemplateError::Failed(_) | TemplateError::Syntax(_)), Expected::Fails(_)) => true,
        _ => false,
    }
}

fn exponent() -> TemplateError {
    rendered("{{ 'a' ~ x }}", r#"{"x": [1e16]}"#).unwrap_err()
}

#[test]
fn templates_render_as_in_python() {
    let traps: Traps =
        serde_json::from_str(include_str!("../../tests/goldens/traps.json")).unwrap();
    let mut differing = Vec::new();
    for trap in &traps.cases {
        let result = rendered(&trap.template, &trap.variables);
        if !agrees(&result, &trap.expected) {
            let (name, expected) = (&trap.name, &trap.expected);
            differing.push(format!(
                "{name}\n  python {expected:?}\n  here   {result:?}"
            ));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(traps.cases.len() > 50);
}

#[test]
fn conversations_render_as_in_python() {
    let text = include_str!("../../tests/goldens/conversations.json");
    let file: Conversations = serde_json::from_str(text).unwrap();
    let mut differing = Vec::new();
    let mut left_to_the_engine = 0;
    for (index, case) in file.cases.iter().enumerate() {
        let result = rendered(&file.manners[&case.manner], &case.variables);
        if result == Err(exponent()) {
            left_to_the_engine += 1;
        } else if !agrees(&result, &case.expected) {
            let (manner, expected) = (&case.manner, &case.expected);
            let variables = &case.variables;
            differing.push(format!(
                "{index} {manner}\n  of     {variables}\n  python {expected:?}\n  here   {result:?}"
            ));
        }
    }
    let count = differing.len();
    assert!(
        differing.is_empty(),
        "{count}:\n{}",
        differing[..count.min(5)].join("\n")
    );
    // the few with a number that joined values would write differently
    assert_eq!((file.cases.len(), left_to_the_engine), (500, 27));
}

#[test]
fn a_number_with_an_exponent_is_left_to_the_engine_where_values_are_joined() {
    assert!(matches!(exponent(), TemplateError::Failed(_)));
    assert_eq!(
        rendered("{{ 'a' ~ x }}", r#"{"x": [1e5]}"#).unwrap(),
        "a[100000.0]"
    );
    assert_eq!(rendered("{{ x }}", r#"{"x": [1e16]}"#).unwrap(), "[1e+16]");
}

#[rstest]
#[case::plain("{% for m in messages %}{{ m.content }}{% endfor %}", false)]
#[case::by_attribute(
    "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}",
    true
)]
#[case::by_item(
    "{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}",
    true
)]
#[case::filtered(
    "{% for m in messages %}{% for p in m.content | list %}{% endfor %}{% endfor %}",
    true
)]
#[case::slice_of_messages(
    "{% for m in messages[1:] %}{% if 1 %}{% for p in m.content %}{% endfor %}{% endif %}{% endfor %}",
    true
)]
#[case::renamed_messages(
    "{% set rest = messages %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}",
    true
)]
#[case::in_a_macro(
    "{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
    false
)]
#[case::other_list(
    "{% for m in others %}{% for p in m.content %}{% endfor %}{% endfor %}",
    false
)]
#[case::other_field(
    "{% for m in messages %}{% for p in m.parts %}{% endfor %}{% endfor %}",
    false
)]
fn content_is_a_list_where_the_template_goes_through_it(
    #[case] source: &str,
    #[case] iterates: bool,
) {
    assert_eq!(Template::new(source).unwrap().iterates_content(), iterates);
}

/// Each takes a bounded time and memory, and says why it gives no text.
#[rstest]
#[case::endless_output(
    "{% for i in range(100000) %}{% for j in range(100000) %}{{ s }}{% endfor %}{% endfor %}"
)]
#[case::endless_steps(
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
)]
#[case::doubled_string(
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
)]
#[case::multiplied_string("{{ s * 1000000000 }}")]
fn a_hostile_template_is_ended(#[case] source: &str) {
    let variables = format!(r#"{{"s": "{}"}}"#, "x".repeat(1000));
    assert_eq!(rendered(source, &variables), Err(TemplateError::TooMuch));
}

#[rstest]
#[case::large_range("{% for i in range(10000000000) %}{% endfor %}")]
#[case::recursion("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")]
#[case::include("{% include 'other' %}")]
fn a_template_that_asks_for_what_there_is_not_fails(#[case] source: &str) {
    let result = rendered(source, "{}");
    assert!(
        matches!(result, Err(TemplateError::Failed(_))),
        "{result:?}"
    );
}

#[test]
fn a_template_that_cannot_be_compiled_is_named_by_its_line() {
    let error = Template::new("a\n{% if %}").unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
}
