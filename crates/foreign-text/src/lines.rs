//! In which line of a file something stands; looked up only for what is refused.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::{limits::Limits, tree::Node};

/// A file whose lines are asked for.
#[derive(Debug)]
pub struct Lines<'a> {
    text: &'a str,
    tree: Node,
}

/// From a map or a list to one of its values.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    Element(usize),
}

/// Fails at the end of the steps: only errors of the library have a line.
#[derive(Clone, Copy)]
struct Seek<'a>(&'a [Step]);

/// As [`Seek`], at a key.
#[derive(Clone, Copy)]
struct SeekKey<'a> {
    name: &'a str,
    is_last: bool,
}

// === impl Lines ===

impl<'a> Lines<'a> {
    /// Returns none if the text is not a document, or is beyond the limits.
    #[must_use]
    pub fn of(text: &'a str, limits: Limits) -> Option<Self> {
        let tree = Node::parse(text, limits).ok()?;
        Some(Self { text, tree })
    }

    /// The line of an item such as `a.b[2].c`, counted from 1; that of the nearest item around it, where it is missing.
    /// None: no part of it is there.
    #[must_use]
    pub fn of_item(&self, item: &str) -> Option<usize> {
        let steps = steps(&self.tree, item);
        if steps.is_empty() {
            return None;
        }
        let document = serde_yaml::Deserializer::from_str(self.text);
        let error = Seek(&steps).deserialize(document).err()?;
        error.location().map(|location| location.line())
    }
}

/// The longest way into the tree that the item names. Keys may have dots in them: of several ways the one that goes
/// farther is taken.
fn steps(node: &Node, item: &str) -> Vec<Step> {
    let ways = match node {
        Node::Map(fields) => fields
            .iter()
            .filter_map(|(key, value)| {
                let rest = item.strip_prefix(key.as_str())?;
                let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                ends.then(|| (Step::Key(key.clone()), value, rest))
            })
            .collect(),
        Node::List(nodes) => element(item)
            .and_then(|(nth, rest)| Some((Step::Element(nth), nodes.get(nth)?, rest)))
            .into_iter()
            .collect(),
        _ => Vec::new(),
    };
    let ways = ways.into_iter().map(|(step, value, rest)| {
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        let mut way = vec![step];
        way.extend(steps(value, rest));
        way
    });
    ways.max_by_key(Vec::len).unwrap_or_default()
}

/// `[3].rest` as 3 and `.rest`.
fn element(item: &str) -> Option<(usize, &str)> {
    let (nth, rest) = item.strip_prefix('[')?.split_once(']')?;
    Some((nth.parse().ok()?, rest))
}

// === impl Seek ===

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Key(name), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        let key = SeekKey {
            name,
            is_last: rest.is_empty(),
        };
        while let Some(found) = map.next_key_seed(key)? {
            if found {
                return map.next_value_seed(Seek(rest));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((Step::Element(nth), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..*nth {
            list.next_element::<IgnoredAny>()?;
        }
        list.next_element_seed(Seek(rest))?;
        Ok(())
    }
}

// === impl SeekKey ===

impl<'de> DeserializeSeed<'de> for SeekKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for SeekKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        let found = key == self.name;
        if found && self.is_last {
            return Err(E::custom("here"));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FILE: &str = "\
a: 1
map:
  qwen-2: {rules: []}
  qwen-2.5:
    rules:
    - cluster: x

    - {cluster: y,
       headers: [{key: a,
                  value: b}]}
anchor: &x
  deep: 1
alias: *x
";

    #[rstest]
    #[case("a", Some(1))]
    #[case("map", Some(2))]
    #[case("map.qwen-2", Some(3))]
    #[case::a_key_with_a_dot("map.qwen-2.5", Some(4))]
    #[case("map.qwen-2.5.rules[1]", Some(8))]
    #[case("map.qwen-2.5.rules[1].headers[0].value", Some(10))]
    #[case::missing("map.qwen-2.5.rules[0].backend", Some(6))]
    #[case::missing_element("map.qwen-2.5.rules[7].backend", Some(5))]
    #[case::by_an_alias("alias.deep", Some(12))]
    #[case::unknown("b", None)]
    #[case::the_whole("", None)]
    fn an_item_is_found_in_its_line(#[case] item: &str, #[case] line: Option<usize>) {
        let lines = Lines::of(FILE, Limits::of_text(1024)).expect("a document");
        assert_eq!(lines.of_item(item), line, "{item}");
    }

    #[test]
    fn lines_of_json_are_found_as_those_of_yaml() {
        let lines = Lines::of(
            "{\n\t\"a\": [\n\t\t1,\n\t\t{\"b\": 2}\n]}",
            Limits::of_text(1024),
        )
        .expect("a document");
        assert_eq!(lines.of_item("a[1].b"), Some(4));
    }
}
