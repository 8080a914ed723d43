//! Reads a document into a type.

use serde::de::{DeserializeOwned, DeserializeSeed};

use crate::{budget::Budget, error::YamlError, limits::Limits, measure::Measure};

/// Reads one document of YAML, of which JSON is a part, into a type.
///
/// It is measured before anything of it is kept: a document beyond the limits costs what its text does. Keys that are there
/// twice are refused, and so are tags.
///
/// # Errors
/// [`YamlError`]: it is beyond the limits, no YAML, or nothing of this type.
pub fn read<T: DeserializeOwned>(text: impl AsRef<[u8]>, limits: Limits) -> Result<T, YamlError> {
    let text = limits.check(text.as_ref())?;
    let budget = Budget::new(limits);
    Measure(&budget).deserialize(serde_yaml::Deserializer::from_str(text))?;
    Ok(T::deserialize(serde_yaml::Deserializer::from_str(text))?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde::Deserialize;

    use super::*;
    use crate::MAX_MESSAGE;

    const LIMITS: Limits = Limits::of_text(1 << 16);

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        image: Option<String>,
        #[serde(default)]
        list: Vec<BTreeMap<String, String>>,
    }

    fn refused(text: &str) -> YamlError {
        read::<File>(text, LIMITS).expect_err("refused")
    }

    #[test]
    fn aliases_of_moderate_size_are_expanded() {
        let file: File = read("image: &a x\nlist: [{k: *a}]", LIMITS).expect("a file");
        let list = vec![BTreeMap::from([("k".to_owned(), "x".to_owned())])];
        let image = Some("x".to_owned());
        assert_eq!(file, File { image, list });
    }

    #[rstest]
    #[case::unknown_field("list: []\nother: 1\n", "unknown field `other`", 2)]
    #[case::wrong_type("image: x\nlist:\n- {}\n- k\n", "list[1]: invalid type", 4)]
    #[case::duplicate("list:\n- {a: b, a: c}\n", "list[0]: the key \"a\" is there twice", 2)]
    #[case::duplicate_of_what_is_unknown("list: []\nx: {a: 1, a: 1}\n", "is there twice", 2)]
    #[case::tag("image: !secret x\n", "without a tag", 1)]
    fn an_error_says_where_it_is(#[case] text: &str, #[case] part: &str, #[case] line: usize) {
        let error = refused(text);
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.place().map(|at| at.line), Some(line), "{error}");
    }

    #[rstest]
    #[case::unknown_field(format!("image: x\n{}: 1", "x".repeat(1000)))]
    #[case::unknown_long_field(format!("image: x\n? {}\n: 1", "x".repeat(60_000)))]
    #[case::wrong_type(format!("image: x\nlist: {}", "x".repeat(60_000)))]
    #[case::characters_of_more_bytes(format!("image: x\nlist: {}", "\u{20ac}".repeat(20_000)))]
    fn an_error_is_short_and_keeps_its_line(#[case] text: String) {
        let error = refused(&text);
        assert!(error.to_string().len() <= MAX_MESSAGE, "{error}");
        assert!(error.to_string().ends_with("… at line 2"), "{error}");
        assert_eq!(error.place().map(|at| at.line), Some(2), "{error}");
    }

    #[test]
    fn a_long_key_that_is_there_twice_is_named_by_its_beginning() {
        let key = "k".repeat(900);
        let error = refused(&format!("{key}: 1\n{key}: 2\n")).to_string();
        assert!(
            error.len() < 200 && error.contains("is there twice"),
            "{error}"
        );
    }

    #[rstest]
    #[case::too_long(" ".repeat(LIMITS.text + 1), "more than 65536")]
    #[case::too_many_values(format!("list: [{}]", "{},".repeat(LIMITS.values)), "more than 16384 values")]
    #[case::long_text_often(
        format!("image: &a {}\nlist: [{}]", "x".repeat(10_000), "{k: *a},".repeat(100)),
        "aliases repeat too much"
    )]
    #[case::long_key_often(
        format!("image: x\nlist: [&m {{\"{}\": x}}, {}]", "k".repeat(900), "*m,".repeat(1000)),
        "aliases repeat too much"
    )]
    #[case::brackets("[".repeat(1000), "more than 128 brackets")]
    #[case::not_utf8("\u{fffd}".to_owned(), "invalid type")]
    fn what_is_beyond_the_limits_is_refused(#[case] text: String, #[case] part: &str) {
        let error = refused(&text).to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let error = read::<File>(b"image: \xff", LIMITS).expect_err("refused");
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }
}
