use rstest::rstest;

use super::*;

fn rewritten(source: &str) -> String {
    let source = format!("{{{{ {source} }}}}");
    let text = rewrite(&source, &SyntaxConfig::default()).unwrap();
    let text = text
        .replace(CONCAT, "J")
        .replace(BUILT, "B")
        .replace(COMPARED, "C")
        .replace(KEY, "K")
        .replace(ATTRIBUTE, "P");
    text.trim_start_matches("{{ ")
        .trim_end_matches(" }}")
        .to_owned()
}

#[rstest]
#[case("a ~ b", "J(a , b)")]
#[case("a ~ b ~ c", "J(a , b , c)")]
#[case("(a ~ b) ~ c", "J((J(a , b)) , c)")]
#[case("a ~ (b ~ c)", "J(a , (J(b , c)))")]
#[case(
    "a.b.c ~ d[0](e)|f('~') is g ~ -h",
    "J(a.b.c , d[0](e)|f('~') is g , -h)"
)]
#[case("x + a ~ b * c - y", "x + J(a , b * c) - y")]
#[case("not a ~ b == c", r#"not C(J(a , b) ,"==", c)"#)]
#[case("f(a ~ b, k=c ~ d)[e ~ f]", "f(J(a , b), k=J(c , d))[K(J(e , f))]")]
#[case("[a] ~ [b]", "J(B(([a])) , B(([b])))")]
#[case("[a ~ b]", "B(([J(a , b)]))")]
#[case("[[a], 1]", "B(([B(([a])), 1]))")]
#[case("[1, 2] ~ {}", "J([1, 2] , B(({})))")]
#[case("(a, b)", "B(((a, b)))")]
#[case("x in [a]", r#"C(x ,"in", B(([a])))"#)]
#[case("a.b == c and d != -e", r#"C(a.b ,"==", c) and C(d ,"!=", -e)"#)]
#[case("(a == b) == c", r#"C((C(a ,"==", b)) ,"==", c)"#)]
#[case("a not in b", r#"C(a ,"not in",  b)"#)]
#[case("a is not in b == c", r#"C(a is not in b ,"==", c)"#)]
#[case(
    "a.in in b|default(c in d)",
    r#"C(a.in ,"in", b|default(C(c ,"in", d)))"#
)]
#[case("a < b <= c", r#"C(a ,"<", b ,"<=", c)"#)]
#[case(
    "f(k=a >= b) if c > d else e",
    r#"f(k=C(a ,">=", b)) if C(c ,">", d) else e"#
)]
#[case(
    "a == 'b' or 'c' in d or e in ['f'] or 1 < g",
    "a == 'b' or 'c' in d or e in ['f'] or 1 < g"
)]
#[case("a in 'b'", r#"C(a ,"in", 'b')"#)]
#[case("a[b[c]] ~ d[1:e]", "J(a[K(b[K(c)])] , d[1:e])")]
#[case(
    "{'a': b, c: d, e[0]: {f: g}}",
    "B(({'a': b, K(c): d, K(e[0]): B(({K(f): g}))}))"
)]
#[case("x is in [a]", "x is in B(([a]))")]
#[case("a.items.type ~ a.items()", "J(a.Pitems().type , a.items())")]
#[case("a.pop is defined", "a.Ppop() is defined")]
#[case(r"'\U0001F600\a\101\/'", "\"😀\u{7}A\\\\/\"")]
#[case(r"'\n\'' '\x41'", r"'\n\'' '\x41'")]
fn expressions_get_the_meaning_of_python(#[case] source: &str, #[case] expected: &str) {
    assert_eq!(rewritten(source), expected);
}

#[rstest]
#[case("{% set ns.items = x.items %}", "{% set ns.items = x.Pitems() %}")]
#[case(
    "{% for a, b in (c, d) %}{% endfor %}",
    "{% for a, b in B(((c, d))) %}{% endfor %}"
)]
#[case("{% set a, b = c ~ d, e %}", "{% set a, b =B(( J(c , d), e)) %}")]
#[case(
    "{% set a, b = f(k=1), [c], (d, e), %}",
    "{% set a, b =B(( f(k=1), B(([c])), B(((d, e))),)) %}"
)]
#[case("{% set a = (b, c) %}", "{% set a =B(( (b, c))) %}")]
#[case(
    "{% macro f(a, b=[c]) %}{{ a ~ b }}{% endmacro %}{% call f([d]) %}{% endcall %}",
    "{% macro f(a, b=B(([c]))) %}{{ J(a , b) }}{% endmacro %}{% call f(B(([d]))) %}{% endcall %}"
)]
#[case(
    "~ {# ~ #} {% raw %}{{ a ~ b }}{% endraw %}",
    "~ {# ~ #} {% raw %}{{ a ~ b }}{% endraw %}"
)]
#[case(
    "{% filter replace(a ~ b, c) %}{% endfilter %}",
    "{% filter replace(J(a , b), c) %}{% endfilter %}"
)]
fn statements_too(#[case] source: &str, #[case] expected: &str) {
    let text = rewrite(source, &SyntaxConfig::default()).unwrap();
    let text = text
        .replace(CONCAT, "J")
        .replace(BUILT, "B")
        .replace(COMPARED, "C")
        .replace(KEY, "K")
        .replace(ATTRIBUTE, "P");
    assert_eq!(text, expected);
}

#[rstest]
#[case::long(&"x".repeat(MAX_SOURCE + 1), "bytes")]
#[case::operators(&format!("{{{{ a{} }}}}", " ~ a".repeat(100_000)), "parts")]
#[case::attributes(&format!("{{{{ a{} }}}}", ".a".repeat(100_000)), "parts")]
#[case::branches(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000)), "branches")]
#[case::autoescape("{% autoescape true %}{{ x }}{% endautoescape %}", "autoescape")]
#[case::varargs("{% macro f() %}{{ varargs }}{% endmacro %}", "varargs")]
#[case::kwargs(
    "{% macro f() %}{% if x %}{{ kwargs.a }}{% endif %}{% endmacro %}",
    "kwargs"
)]
#[case::name(r"{{ '\N{BULLET}' }}", "names a character")]
fn what_would_use_up_the_stack_or_mean_another_thing_is_refused(
    #[case] source: &str,
    #[case] reason: &str,
) {
    let error = rewrite(source, &SyntaxConfig::default()).unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
}
