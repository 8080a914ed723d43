use proptest::prelude::*;
use rstest::rstest;

use super::*;

#[rstest]
#[case::name("my_metric", &[])]
#[case::blanks("  my_metric  ", &[])]
#[case::one_label("my_metric{label1=value1}", &[("label1", "value1")])]
#[case::quoted(r#"my_metric{label1="value1"}"#, &[("label1", "value1")])]
#[case::escapes(r#"my_metric{l="a,\"}\\\n\d"}"#, &[("l", "a,\"}\\\n\\d")])]
#[case::two("my_metric{a=b,c=d}", &[("a", "b"), ("c", "d")])]
#[case::blanks_everywhere("  my_metric  {  a  =  b  ,  c  =  d  }  ", &[("a", "b"), ("c", "d")])]
#[case::value_with_equals("my_metric{a=b=c}", &[("a", "b=c")])]
fn a_spec_is_a_name_with_labels(#[case] text: &str, #[case] labels: &[(&str, &str)]) {
    let spec = MetricSpec::parse(text).unwrap();
    assert_eq!(spec.name(), "my_metric");
    let found: Vec<_> = spec
        .labels()
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(found, labels);
}

#[rstest]
#[case("", "the metric's name is missing")]
#[case("{label=val}", "the metric's name is missing")]
#[case("my metric", r#""my metric" is no metric name"#)]
#[case("9m", r#""9m" is no metric name"#)]
#[case("m{label1=value1", "the brace is not closed")]
#[case("m{label1", "the brace is not closed")]
#[case("mlabel1=value1}", r#""mlabel1=value1}" is no metric name"#)]
#[case("m{label1}", r#"label "label1" has no value"#)]
#[case("m{label1,b=c}", r#"label "label1" has no value"#)]
#[case("m{=value1}", r#""" is no label name"#)]
#[case("m{a:b=c}", r#""a:b" is no label name"#)]
#[case("m{label1=}", r#"label "label1" has no value"#)]
#[case("m{label1=\"\"}", r#"label "label1" has no value"#)]
#[case(
    "m{label1=\"x}",
    r#"label "label1" has a value whose quote is not closed"#
)]
#[case("m{label1=\"x\"y}", "the brace is not closed")]
#[case("m{  =  }", r#""" is no label name"#)]
#[case("m{a=b,}", r#""" is no label name"#)]
#[case("m{}", "no label between the braces")]
#[case("m{a=b}extra", r#""extra" follows the closing brace"#)]
#[case("m{a=b,a=c}", r#"label "a" is there twice"#)]
fn another_form_is_refused_with_the_reason(#[case] text: &str, #[case] reason: &str) {
    let error = MetricSpec::parse(text).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("metric spec {text:?}: {reason}; expected name or name{{label=value,label=value}}")
    );
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a{}=,\"\\\\ é:]{0,30}") {
        let _ = MetricSpec::parse(&text);
    }
}
