use rstest::rstest;

use super::*;

const BLANKS: &str = "{ a = \"1\" , b=\"2\" , } 5\r";

#[rstest]
#[case::plain(" 5", Some(5.0))]
#[case::timestamp("\t5 1700000000", Some(5.0))]
#[case::no_blank("{a=\"b\"}5", Some(5.0))]
#[case::blanks(BLANKS, Some(5.0))]
#[case::blank_before_the_labels(" {a=\"b\"} 5", Some(5.0))]
#[case::brace_and_quote_in_a_value(r#"{a="x} \" 7"} 5"#, Some(5.0))]
#[case::escaped_backslash_at_the_end(r#"{a="x\\"} 5"#, Some(5.0))]
#[case::exponent(" 1.5e+03", Some(1500.0))]
#[case::nan(" NaN", None)]
#[case::infinite(" +Inf", None)]
#[case::negative(" -1", None)]
#[case::no_number(" x", None)]
#[case::not_utf8(" \u{fffd}", None)]
fn a_sample_has_one_value(#[case] line: &str, #[case] value: Option<f64>) {
    assert_eq!(Sample::parse(line.as_bytes()).unwrap().value(), value);
}

#[rstest]
#[case::no_value("{a=\"b\"} ")]
#[case::nothing("")]
#[case::open_block("{a=\"b\" 5")]
#[case::open_quote("{a=\"b} 5")]
#[case::escape_at_the_end("{a=\"b\\")]
fn a_line_without_labels_end_or_value_is_no_sample(#[case] line: &str) {
    assert!(Sample::parse(line.as_bytes()).is_none());
}

#[rstest]
#[case::first(BLANKS, "a", Some("1"))]
#[case::second(BLANKS, "b", Some("2"))]
#[case::absent(BLANKS, "c", None)]
#[case::as_written(r#"{a="x\",b=\"y"} 1"#, "a", Some(r#"x\",b=\"y"#))]
#[case::inside_a_value(r#"{a="x\",b=\"y"} 1"#, "b", None)]
#[case::the_end_of_a_key(r#"{xa="1"} 1"#, "a", None)]
#[case::no_labels(" 1", "a", None)]
#[case::no_quotes("{a=1,b=\"2\"} 1", "b", None)]
fn a_label_is_found_by_its_whole_key(
    #[case] line: &str,
    #[case] key: &str,
    #[case] value: Option<&str>,
) {
    let sample = Sample::parse(line.as_bytes()).unwrap();
    assert_eq!(sample.label(key.as_bytes()), value.map(str::as_bytes));
}

#[test]
fn values_are_compared_without_their_escapes() {
    let sample = Sample::parse(br#"{a="x\"y\\z\nw\d"} 1"#).unwrap();
    let has = |value: &str| sample.has(&[("a".to_owned(), value.to_owned())]);
    assert!(has("x\"y\\z\nw\\d"));
    assert!(!has("x\"y\\z\nw\\"));
    assert!(!has(""));
}
