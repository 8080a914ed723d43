use rstest::rstest;

use super::*;

#[rstest]
#[case(1e5, "100000.0")]
#[case(1e15, "1000000000000000.0")]
#[case(1e16, "1e+16")]
#[case(1.5e-4, "0.00015")]
#[case(1e-5, "1e-05")]
#[case(-1.25e-10, "-1.25e-10")]
#[case(1e100, "1e+100")]
#[case(0.1, "0.1")]
#[case(-0.0, "-0.0")]
#[case(f64::INFINITY, "inf")]
fn floats_are_written_as_python_does(#[case] value: f64, #[case] expected: &str) {
    assert_eq!(float(value), expected);
}

#[rstest]
#[case("it's", "\"it's\"")]
#[case("\"it's\"", "'\"it\\'s\"'")]
#[case(
    "a\u{301}é\u{a0}\u{200b}\u{7f}\u{10ffff}",
    "'a\u{301}é\\xa0\\u200b\\x7f\\U0010ffff'"
)]
#[case("tab\tback\\", "'tab\\tback\\\\'")]
fn strings_are_quoted_as_python_does(#[case] value: &str, #[case] expected: &str) {
    let list: Value = [value.to_owned()].into_iter().collect();
    assert_eq!(str(&list, &Unpaid).unwrap(), format!("[{expected}]"));
}

#[test]
fn tuples_have_parentheses() {
    let env = minijinja::Environment::new();
    let tuple = |source: &str| {
        str(
            &env.compile_expression(source).unwrap().eval(()).unwrap(),
            &Unpaid,
        )
        .unwrap()
    };
    assert_eq!(tuple("(1, 'a')"), "(1, 'a')");
    assert_eq!(tuple("(1.0,)"), "(1.0,)");
}

#[test]
fn a_text_ends_at_its_limit_and_a_message_is_cut_there() {
    let list: Value = std::iter::repeat_n("é", 100).collect();
    let mut out = Writer::with_limit(&Unpaid, 20);
    assert!(write_str(&list, &mut out).is_err());
    assert_eq!(str_cut(&list, &Unpaid, 20).unwrap(), "['é', 'é', 'é', '…");
    assert_eq!(str_cut(&"é".repeat(9).into(), &Unpaid, 5).unwrap(), "éé…");
    assert_eq!(str_cut(&"short".into(), &Unpaid, 5).unwrap(), "short");
}

#[rstest]
#[case("", &[])]
#[case("a", &["a"])]
#[case("\n", &[""])]
#[case("a\r\nb\r\rc\u{2029}", &["a", "b", "", "c"])]
#[case("a\u{1c}b\u{1f}c", &["a", "b\u{1f}c"])]
fn lines_end_where_they_do_in_python(#[case] text: &str, #[case] lines: &[&str]) {
    assert_eq!(split_lines(text), lines);
}
