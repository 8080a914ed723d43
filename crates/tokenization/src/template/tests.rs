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
    for (index, case) in file.cases.iter().enumerate() {
        let result = rendered(&file.manners[&case.manner], &case.variables);
        if !agrees(&result, &case.expected) {
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
    assert_eq!(file.cases.len(), 500);
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
#[case::indented("{{ ([[[[[[[[[[s]]]]]]]]]] * 100000) | tojson(indent=255) }}")]
#[case::printed("{{ [s] * 100000 }}")]
#[case::as_text("{{ ([s] * 100000) | string }}")]
#[case::joined("{{ ([s] * 100000) | join(s) }}")]
#[case::joined_by_method("{{ s.join([s] * 100000) }}")]
#[case::concatenated("{{ ([s] * 100000) ~ '' }}")]
#[case::upper_case("{{ ([s] * 100000) | upper }}")]
#[case::escaped("{{ ([s] * 100000) | e }}")]
#[case::formatted("{{ '%s' | format([s] * 100000) }}")]
#[case::formatted_by_method("{{ '{0}{0}{0}{0}'.format([s] * 10000) }}")]
#[case::padded("{{ '{:99999999999}'.format(1) }}")]
#[case::indentation("{{ s | indent(99999999999) }}")]
#[case::replaced("{{ (s * 10) | replace('x', s * 10) }}")]
#[case::replaced_by_method("{{ (s * 10).replace('x', s * 10) }}")]
#[case::shared_lists(&shared("[l, l, l, l, l, l, l, l, l, l]"))]
#[case::shared_tuples(&shared("(l, l, l, l, l, l, l, l, l, l)"))]
#[case::shared_objects(&shared("{'a': l, 'b': l, 'c': l, 'd': l, 'e': l}"))]
#[case::shared_arguments(&shared("dict(a=l, b=l, c=l, d=l, e=l)"))]
#[case::compared(&large("{{ a == b }}"))]
#[case::compared_again(&small("{% for i in range(100000) %}{% if a != b %}{% endif %}{% endfor %}"))]
#[case::ordered(&large("{{ a < b }}"))]
#[case::compared_in_a_chain(&large("{{ a <= b <= a }}"))]
#[case::found(&large("{{ a in [s, b] }}"))]
#[case::tested(&large("{{ a is eq(b) }}"))]
#[case::selected(&large("{{ [a] | select('==', b) | list }}"))]
#[case::sorted(&large("{{ [a, b] | sort }}"))]
#[case::counted(&large("{{ [a].count(b) }}"))]
#[case::looked_up(&large("{{ {}[a] }}"))]
#[case::got(&large("{{ {}.get(a) }}"))]
#[case::named(&large("{{ {a: 1} }}"))]
#[case::shared_tuples_without_parentheses(&doubled_tuples())]
#[case::shared_batches(&shared("(l + l) | batch(2) | list"))]
fn a_hostile_template_is_ended(#[case] source: &str) {
    let variables = format!(r#"{{"s": "{}"}}"#, "x".repeat(1000));
    assert_eq!(rendered(source, &variables), Err(TemplateError::TooMuch));
}

/// Uses two lists of lists with a hundred million items each, which share them.
fn large(used: &str) -> String {
    let list = "[[s] * 100000] * 1000";
    format!("{{% set a = {list} %}}{{% set b = {list} %}}{used}")
}

/// Compares tuples of two of the same tuple, thirty levels of them.
fn doubled_tuples() -> String {
    let mut source = "{% set a0 = s, s %}".to_owned();
    for level in 1..31 {
        let below = level - 1;
        source += &[
            "{% set a",
            &level.to_string(),
            " = a",
            &below.to_string(),
            ", a",
            &below.to_string(),
            " %}",
        ]
        .concat();
    }
    source + "{{ a30 == a29 }}"
}

/// Uses two lists of ten thousand items.
fn small(used: &str) -> String {
    format!("{{% set a = [s] * 10000 %}}{{% set b = [s] * 10000 %}}{used}")
}

/// As Python's renderer does it.
#[rstest]
#[case("{% set a, b, c = 1, [s], 2 %}{{ a }}{{ b }}{{ c }}", "1['x']2")]
#[case("{% set a, b, c = s, {'k': s}, 2 %}{{ a }}{{ b.k }}{{ c }}", "xx2")]
#[case("{% set a = s, (s), %}{{ a }}", "('x', 'x')")]
#[case(
    "{{ [s, [1]] == [s, [1.0]] }}{{ [s] == (s,) }}{{ [s] != [s, s] }}",
    "TrueFalseTrue"
)]
#[case(
    "{{ {'a': l, 'b': s} == {'b': s, 'a': [1, 2]} }}{{ {'a': n} == {'b': n} }}",
    "TrueFalse"
)]
#[case(
    "{{ [1, s] < [1, s, n] }}{{ l >= [1, 1, 5] }}{{ l > [1, 2] }}",
    "TrueTrueFalse"
)]
#[case(
    "{{ s < t < t }}{{ s < t <= t }}{{ t not in l }}{{ l in [s, l] }}",
    "FalseTrueTrueTrue"
)]
#[case(
    "{{ s in {'x': n} }}{{ s in t }}{{ s in missing }}{{ n == missing }}",
    "TrueFalseFalseFalse"
)]
#[case(
    "{{ l | select('in', [2, n]) | list }}{{ l | sort(reverse=true) }}",
    "[2][2, 1]"
)]
#[case("{{ {s: {t: 1}}[s][t] }}{{ {(s, 1): 2}[(s, 1)] }}", "12")]
fn tuples_and_comparisons(#[case] source: &str, #[case] expected: &str) {
    let variables = r#"{"s": "x", "t": "y", "l": [1, 2], "n": null}"#;
    assert_eq!(rendered(source, variables).unwrap(), expected);
}

/// Nested lists whose items are all the same list.
fn shared(list: &str) -> String {
    format!(
        "{{% set ns = namespace(l=[s]) %}}{{% for i in range(60) %}}{{% set l = ns.l %}}\
         {{% set ns.l = {list} %}}{{% endfor %}}{{{{ ns.l }}}}"
    )
}

#[test]
fn a_message_of_a_template_is_cut() {
    let source = "{{ raise_exception([s] * 10000) }}";
    let variables = format!(r#"{{"s": "{}"}}"#, "x".repeat(1000));
    let Err(TemplateError::Raised(text)) = rendered(source, &variables) else {
        panic!("it is raised");
    };
    assert!(text.starts_with("['xxx") && text.ends_with("x…"), "{text}");
    assert_eq!(text.len(), MAX_MESSAGE + "…".len());
}

#[rstest]
#[case::nested("{% set ns.l = [ns.l] %}")]
#[case::nested_in_objects("{% set ns.l = {'a': ns.l} %}")]
#[case::nested_in_arguments("{% set ns.l = dict(a=ns.l) %}")]
#[case::nested_in_namespaces("{% set ns.l = namespace(a=ns.l) %}")]
#[case::nested_in_batches("{% set ns.l = ns.l | batch(1) | list %}")]
fn a_value_that_is_nested_without_end_is_refused(#[case] step: &str) {
    let source = format!(
        "{{% set ns = namespace(l=[s]) %}}{{% for i in range(100000) %}}{step}{{% endfor %}}"
    );
    let error = rendered(&source, r#"{"s": 1}"#).unwrap_err();
    assert!(error.to_string().contains("too deeply"), "{error}");
}

/// The body of a client, with a template that indents the schemas of its tools.
#[test]
fn a_schema_that_would_fill_memory_when_it_is_indented_is_refused() {
    let schema = format!(
        "{}{}1{}",
        "[".repeat(115),
        "1,".repeat(1_000_000),
        "]".repeat(115)
    );
    let variables = format!(r#"{{"tools": [{{"parameters": {schema}}}]}}"#);
    let source = "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}";
    assert_eq!(rendered(source, &variables), Err(TemplateError::TooMuch));
}

#[rstest]
#[case::large_range("{% for i in range(10000000000) %}{% endfor %}")]
#[case::recursion("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")]
#[case::include("{% include 'other' %}")]
#[case::printed_generator("{{ [1] | select }}")]
#[case::printed_method("{{ {}.items }}")]
#[case::other_filter("{{ [1] | zip([2]) | list }}")]
#[case::all_variables("{{ debug() }}")]
#[case::in_a_string("{{ [1, x] in 'a' }}")]
#[case::order_of_objects("{{ {'a': x} < {'b': x} }}")]
fn a_template_that_asks_for_what_there_is_not_fails(#[case] source: &str) {
    let result = rendered(source, "{}");
    assert!(
        matches!(result, Err(TemplateError::Failed(_))),
        "{result:?}"
    );
}

/// Runs on a thread of two MiB, as models are loaded on such threads.
#[rstest]
#[case::operators(&format!("{{{{ s{} }}}}", " + s".repeat(1000)))]
#[case::joins(&format!("{{{{ s{} }}}}", " ~ s".repeat(1000)))]
#[case::attributes(&format!("{{{{ s is defined or s{} }}}}", ".a".repeat(1000)))]
#[case::filters(&format!("{{{{ s{} }}}}", " | trim".repeat(1000)))]
#[case::branches(&format!("{{% if not s %}}{}{{% endif %}}", "{% elif not s %}".repeat(499)))]
fn the_largest_expressions_fit_the_stack(#[case] source: &str) {
    let source = source.to_owned();
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let thread = thread.spawn(move || rendered(&source, r#"{"s": "x"}"#).is_ok());
    assert!(thread.unwrap().join().unwrap());
}

#[test]
fn a_template_that_cannot_be_compiled_is_named_by_its_line() {
    let error = Template::new("a\n{% if %}").unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
}
