//! Maps of the file, read field by field; what nobody asked for is unknown.

use std::{ops::RangeInclusive, time::Duration};

use foreign_text::Node;

use super::{
    findings::{Findings, nearest},
    quantity,
};
use crate::args::Span;

/// A map of the file. [`Section::finish`] names the fields that were not asked for.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    item: String,
    fields: Vec<(String, Node)>,
    known: Vec<&'static str>,
    findings: &'a Findings,
}

/// A value of the file and its place.
#[derive(Debug)]
pub(crate) struct Value<'a> {
    item: String,
    node: Node,
    findings: &'a Findings,
}

/// Numbers that make sense at a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    accepts: fn(f64) -> bool,
    text: &'static str,
}

// === impl Bounds ===

impl Bounds {
    pub(crate) const POSITIVE: Self = Self {
        accepts: |number| number > 0.0 && number.is_finite(),
        text: "a number above 0",
    };
    pub(crate) const NOT_NEGATIVE: Self = Self {
        accepts: |number| number >= 0.0 && number.is_finite(),
        text: "a number from 0 up",
    };
    /// Beyond a million the other scores of a sum are lost in rounding.
    pub(crate) const WEIGHT: Self = Self {
        accepts: |number| (0.0..=1e6).contains(&number),
        text: "a number from 0 to 1000000",
    };
    pub(crate) const SHARE: Self = Self {
        accepts: |number| (0.0..=1.0).contains(&number),
        text: "a number from 0 to 1",
    };
    /// A year is more than any session.
    pub(crate) const TTL_SECONDS: Self = Self {
        accepts: |number| number > 0.0 && number <= 31_536_000.0,
        text: "a number of seconds above 0, up to 31536000",
    };
    pub(crate) const POSITIVE_SHARE: Self = Self {
        accepts: |number| number > 0.0 && number <= 1.0,
        text: "a number above 0, up to 1",
    };
}

// === impl Section ===

impl<'a> Section<'a> {
    /// One without fields, where a file leaves it out.
    pub(crate) fn empty(item: impl Into<String>, findings: &'a Findings) -> Self {
        Self {
            item: item.into(),
            fields: Vec::new(),
            known: Vec::new(),
            findings,
        }
    }

    /// Its place, such as `plugins[3].parameters`.
    pub(crate) fn item(&self) -> &str {
        &self.item
    }

    pub(crate) fn findings(&self) -> &'a Findings {
        self.findings
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field == name)
    }

    /// The place of a field.
    pub(crate) fn place(&self, name: &str) -> String {
        if self.item.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.item)
        }
    }

    /// The value of a field, which is known from now on; none if it is absent or null.
    pub(crate) fn value(&mut self, name: &'static str) -> Option<Value<'a>> {
        self.known.push(name);
        let at = self.fields.iter().position(|(field, _)| field == name)?;
        let (_, node) = self.fields.remove(at);
        (node != Node::Null).then(|| Value {
            item: self.place(name),
            node,
            findings: self.findings,
        })
    }

    pub(crate) fn number(&mut self, name: &'static str, bounds: Bounds, default: f64) -> f64 {
        let value = self.value(name);
        value
            .and_then(|value| value.number(bounds, default))
            .unwrap_or(default)
    }

    pub(crate) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> i64 {
        let value = self.value(name);
        value
            .and_then(|value| value.integer(range, default))
            .unwrap_or(default)
    }

    pub(crate) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        let value = self.value(name);
        value.and_then(Value::flag).unwrap_or(default)
    }

    /// A text that is not empty.
    pub(crate) fn text(&mut self, name: &'static str, example: &str) -> Option<String> {
        self.value(name)?.text(example)
    }

    /// A text that must be there; refused and empty if it is not.
    pub(crate) fn required_text(&mut self, name: &'static str, example: &str) -> String {
        if let Some(value) = self.value(name) {
            return value.text(example).unwrap_or_default();
        }
        self.findings.refuse(
            self.place(name),
            "it is missing",
            "a text",
            format!("{name}: {example}"),
        );
        String::new()
    }

    /// A field that holds another map; one without fields if it is absent.
    pub(crate) fn section(&mut self, name: &'static str) -> Self {
        match self.value(name).and_then(Value::section) {
            Some(section) => section,
            None => Self::empty(self.place(name), self.findings),
        }
    }

    /// The elements of a list; none if it is absent.
    pub(crate) fn list(&mut self, name: &'static str) -> Vec<Value<'a>> {
        self.value(name).map(Value::list).unwrap_or_default()
    }

    /// One of some words.
    pub(crate) fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.value(name)?.choice(words)
    }

    /// A field that other programs know, and that has no effect here.
    pub(crate) fn no_effect(&mut self, name: &'static str, why: &str) {
        if let Some(value) = self.value(name) {
            self.findings.ignore(value.item, why);
        }
    }

    /// All fields, where their names are free.
    pub(crate) fn entries(self) -> Vec<(String, Value<'a>)> {
        let Self {
            item,
            fields,
            findings,
            ..
        } = self;
        let place = |name: &str| format!("{item}.{name}");
        let values = fields.into_iter().map(|(name, node)| {
            let item = place(&name);
            let value = Value {
                item,
                node,
                findings,
            };
            (name, value)
        });
        values.collect()
    }

    /// Refuses the fields that nobody asked for.
    pub(crate) fn finish(self) {
        for (name, _) in &self.fields {
            self.findings
                .unknown(self.place(name), "this field", name, &self.known);
        }
    }
}

// === impl Value ===

impl<'a> Value<'a> {
    /// The whole file.
    pub(crate) fn root(node: Node, findings: &'a Findings) -> Self {
        Self {
            item: String::new(),
            node,
            findings,
        }
    }

    /// Its place.
    pub(crate) fn item(&self) -> &str {
        &self.item
    }

    /// Refuses it.
    pub(crate) fn refuse(&self, problem: impl Into<String>, expected: &str, example: &str) {
        let item = if self.item.is_empty() {
            "the file".to_owned()
        } else {
            self.item.clone()
        };
        self.findings.refuse(item, problem, expected, example);
    }

    /// Refuses it as what it is.
    fn mismatch<T>(&self, expected: &str, example: &str) -> Option<T> {
        let name = self.name();
        let example = if name.is_empty() {
            example.to_owned()
        } else {
            format!("{name}: {example}")
        };
        self.refuse(format!("it is {}", self.node), expected, &example);
        None
    }

    /// The field's name; empty for an element of a list.
    fn name(&self) -> &str {
        let last = self.item.rsplit('.').next().unwrap_or_default();
        if last.ends_with(']') { "" } else { last }
    }

    pub(crate) fn number(self, bounds: Bounds, example: f64) -> Option<f64> {
        let number = match self.node {
            Node::Integer(number) => number as f64,
            Node::Float(number) => number,
            _ => f64::NAN,
        };
        if (bounds.accepts)(number) {
            return Some(number);
        }
        self.mismatch(bounds.text, &example.to_string())
    }

    pub(crate) fn integer(self, range: RangeInclusive<i64>, example: i64) -> Option<i64> {
        let integer = match self.node {
            Node::Integer(integer) => Some(integer),
            // 1e6 is a float in YAML
            Node::Float(number) => whole(number),
            _ => None,
        };
        if let Some(integer) = integer.filter(|integer| range.contains(integer)) {
            return Some(integer);
        }
        let (least, most) = (range.start(), range.end());
        let expected = if *most >= i64::from(u32::MAX) {
            format!("a whole number from {least} up")
        } else {
            format!("a whole number from {least} to {most}")
        };
        self.mismatch(&expected, &example.to_string())
    }

    pub(crate) fn flag(self) -> Option<bool> {
        match self.node {
            Node::Bool(flag) => Some(flag),
            _ => self.mismatch("true or false", "true"),
        }
    }

    /// A text that is not empty.
    pub(crate) fn text(self, example: &str) -> Option<String> {
        match self.node {
            Node::Text(text) if !text.is_empty() => Some(text),
            _ => self.mismatch("a text", example),
        }
    }

    /// A text that may be empty, such as the value of a label.
    pub(crate) fn text_or_empty(self, example: &str) -> Option<String> {
        match self.node {
            Node::Text(text) => Some(text),
            _ => self.mismatch("a text", example),
        }
    }

    /// The text, to be refused later if need be.
    pub(crate) fn peek_text(&self) -> Option<&str> {
        match &self.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A duration as Go writes it.
    pub(crate) fn duration(self, example: &str) -> Option<Duration> {
        let parsed = self.peek_text().map(str::parse::<Span>);
        match parsed {
            Some(Ok(Span(duration))) => Some(duration),
            _ => self.mismatch(
                "a duration up to 8760h, a number and a unit of ns, us, ms, s, m or h",
                example,
            ),
        }
    }

    /// A quantity as Kubernetes writes it, such as 1Gi; parts of one are rounded up.
    pub(crate) fn quantity(self, example: &str) -> Option<u64> {
        let amount = match &self.node {
            Node::Text(text) => quantity::parse(text),
            Node::Integer(number) => u64::try_from(*number).ok(),
            Node::Float(number) => quantity::parse(&number.to_string()),
            _ => None,
        };
        amount.or_else(|| {
            self.mismatch(
                "a quantity, a number and perhaps one of k, M, G, T, Ki, Mi, Gi, Ti",
                example,
            )
        })
    }

    pub(crate) fn section(self) -> Option<Section<'a>> {
        match self.node {
            Node::Map(fields) => Some(Section {
                item: self.item,
                fields,
                known: Vec::new(),
                findings: self.findings,
            }),
            _ => self.mismatch("a map of fields", "{}"),
        }
    }

    pub(crate) fn list(self) -> Vec<Self> {
        match self.node {
            Node::List(nodes) => nodes
                .into_iter()
                .enumerate()
                .map(|(nth, node)| Self {
                    item: format!("{}[{nth}]", self.item),
                    node,
                    findings: self.findings,
                })
                .collect(),
            _ => self.mismatch("a list", "[]").unwrap_or_default(),
        }
    }

    pub(crate) fn choice<T: Copy>(self, words: &[(&str, T)]) -> Option<T> {
        let text = self.peek_text();
        let found = words.iter().find(|(word, _)| Some(*word) == text);
        if let Some((_, value)) = found {
            return Some(*value);
        }
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let example = nearest(text.unwrap_or_default(), &known);
        let expected = format!("one of {}", known.join(", "));
        self.mismatch(&expected, example.unwrap_or_default())
    }
}

/// The integer that a float stands for.
fn whole(number: f64) -> Option<i64> {
    // up to 2^53 floats hold integers exactly
    let exact = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "checked above")]
    exact.then_some(number as i64)
}
