//! YAML and JSON as a tree of bounded size.
//!
//! Not typed structs: each field is to be named with its path, with the nearest one that exists, and all wrong ones in
//! one reading; and unknown ones are sometimes only warned about. Unlike the library's own `Value`, this refuses
//! duplicate keys.

use std::{collections::BTreeSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::{
    budget::{Budget, twice},
    error::YamlError,
    limits::Limits,
};

/// A value of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number, and whole ones beyond an `i64`.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the document; each key is there once.
    Map(Vec<(String, Node)>),
}

// === impl Node ===

impl Node {
    /// Reads one document.
    ///
    /// # Errors
    /// [`YamlError`] when the text is beyond the limits, or is not YAML.
    pub fn parse(text: impl AsRef<[u8]>, limits: Limits) -> Result<Self, YamlError> {
        let text = limits.check(text.as_ref())?;
        let budget = Budget::new(limits);
        let document = serde_yaml::Deserializer::from_str(text);
        Ok(Seed(&budget).deserialize(document)?)
    }
}

impl fmt::Display for Node {
    /// Short, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("nothing"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) if text.chars().count() > 60 => {
                let begin: String = text.chars().take(60).collect();
                write!(f, "{begin:?}…")
            }
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a map"),
        }
    }
}

/// Makes nodes while the budget lasts.
#[derive(Clone, Copy)]
struct Seed<'a>(&'a Budget);

// === impl Seed ===

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map, a list, a text, a number or true or false, without a tag")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        self.0.spend_value(0)?;
        Ok(Node::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        self.0.spend_value(0)?;
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        self.0.spend_value(0)?;
        Ok(Node::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        self.0.spend_value(0)?;
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        self.0.spend_value(0)?;
        Ok(Node::Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        self.0.spend_value(text.len())?;
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        self.0.spend_value(0)?;
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(self)? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        self.0.spend_value(0)?;
        let mut nodes = Vec::new();
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            self.0.spend_bytes(key.len())?;
            if !keys.insert(key.clone()) {
                return Err(twice(&key));
            }
            nodes.push((key, map.next_value_seed(self)?));
        }
        Ok(Node::Map(nodes))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MAX_BYTES: usize = 1 << 20;
    const LIMITS: Limits = Limits {
        text: MAX_BYTES,
        expanded: 8 * MAX_BYTES,
        values: MAX_BYTES / 4,
    };

    fn parse(text: &str) -> Result<Node, String> {
        Node::parse(text, LIMITS).map_err(|error| error.to_string())
    }

    #[test]
    fn json_is_read_as_yaml_is() {
        let yaml = "a: 1\nb: [x, 2.5, true, null]\nc: {}\n";
        let json = "{\n\t\"a\": 1,\n\t\"b\": [\"x\", 2.5, true, null],\n\t\"c\": {}\n}";
        assert_eq!(parse(yaml), parse(json));
    }

    #[rstest]
    #[case::duplicate("a: 1\na: 2\n", "the key \"a\" is there twice")]
    #[case::duplicate_deep("x: {a: 1, a: 2}\n", "the key \"a\" is there twice")]
    #[case::two_documents("a: 1\n---\nb: 2\n", "more than one document")]
    #[case::tag("a: !secret x\n", "without a tag")]
    #[case::unknown_alias("a: *b\n", "unknown anchor")]
    #[case::unclosed("a: [1, 2\n", "while parsing a flow sequence")]
    #[case::cycle("a: &a [*a]\n", "recursion limit exceeded")]
    fn what_is_no_sound_document_is_refused(#[case] text: &str, #[case] want: &str) {
        let error = parse(text).expect_err("refused");
        assert!(error.contains(want), "{error}");
    }

    #[test]
    fn an_alias_stands_for_what_it_names() {
        let node = parse("a: &x {b: 1}\nc: *x\n").expect("a tree");
        assert_eq!(node, parse("a: {b: 1}\nc: {b: 1}\n").expect("a tree"));
    }

    /// As YAML has it.
    #[test]
    fn of_two_anchors_with_one_name_the_one_before_the_alias_counts() {
        let node = parse("a: &x 1\nb: *x\nc: &x 2\nd: *x\n").expect("a tree");
        assert_eq!(Ok(node), parse("{a: 1, b: 1, c: 2, d: 2}"));
    }

    /// Nine lists of ten aliases each: a thousand million texts.
    #[test]
    fn aliases_that_multiply_are_stopped() {
        let level = |level: usize| {
            let before = match level {
                0 => "lol".to_owned(),
                level => format!("*a{}", level - 1),
            };
            let row = vec![before; 10].join(", ");
            format!("a{level}: &a{level} [{row}]\n")
        };
        let text: String = (0..10).map(level).collect();
        assert!(parse(&text).is_err());
    }

    /// Few aliases of much text: the library alone would allow them.
    #[test]
    fn aliases_of_a_long_text_are_stopped() {
        let long = "x".repeat(900_000);
        let text = format!("a: &a {long}\nb: [{}]\n", vec!["*a"; 20].join(", "));
        let error = parse(&text).expect_err("refused");
        assert!(error.contains("aliases repeat too much"), "{error}");
    }

    #[rstest]
    #[case::brackets("[".repeat(MAX_BYTES))]
    #[case::braces("{a: ".repeat(1000))]
    #[case::dashes("- ".repeat(MAX_BYTES / 2))]
    #[case::questions("? ".repeat(10_000))]
    fn depth_is_bounded(#[case] text: String) {
        assert!(parse(&text).is_err());
    }

    #[test]
    fn the_largest_flat_file_is_read_and_a_larger_one_is_not() {
        let line = "- {a: b, c: 1}\n";
        let mut text = line.repeat(MAX_BYTES / line.len());
        assert!(parse(&text).is_ok());
        text = " ".repeat(MAX_BYTES + 1);
        let error = parse(&text).expect_err("refused");
        assert!(error.contains("more than 1048576"), "{error}");
    }
}
