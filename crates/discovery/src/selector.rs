//! Label selectors in the API server's words. They are sent as they are; what is checked here is that the API server
//! can read them, which it would otherwise refuse for ever.

use std::{fmt, str::FromStr};

/// A label selector: `app=vllm,env in (prod, staging),!canary`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelSelector(String);

/// A text that is no [`LabelSelector`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no label selector: {why}; write one such as app=vllm,env in (prod,staging),!canary"
)]
pub struct SelectorError {
    text: String,
    why: String,
}

/// Longest name and value of a label.
const MAX_NAME: usize = 63;
/// Longest prefix of a label's key.
const MAX_PREFIX: usize = 253;

/// What is left to read.
struct Reader<'a>(&'a str);

// === impl LabelSelector ===

impl LabelSelector {
    /// As the API server takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Reader(text).selector().map_err(|why| SelectorError {
            text: text.to_owned(),
            why,
        })?;
        Ok(Self(text.trim().to_owned()))
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn selector(&mut self) -> Result<(), String> {
        loop {
            self.requirement()?;
            if self.is_at_end() {
                return Ok(());
            }
            if !self.eat(",") {
                return Err(format!("{:?} is not expected", self.0));
            }
        }
    }

    /// `!key`, `key`, `key=value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, `key>1`.
    fn requirement(&mut self) -> Result<(), String> {
        if self.eat("!") {
            return check_key(self.word());
        }
        check_key(self.word())?;
        if self.is_at_end() || self.0.starts_with(',') {
            return Ok(());
        }
        if ["==", "=", "!="].iter().any(|sign| self.eat(sign)) {
            return check_value(self.word());
        }
        if [">", "<"].iter().any(|sign| self.eat(sign)) {
            let value = self.word();
            let number = value.parse::<i64>().map(drop);
            return number.map_err(|_| format!("{value:?} is no number"));
        }
        match self.word() {
            "in" | "notin" => self.set(),
            other => Err(format!(
                "{other:?} is no operator: there are =, ==, !=, in, notin, > and <"
            )),
        }
    }

    fn set(&mut self) -> Result<(), String> {
        if !self.eat("(") {
            return Err("a set of values begins with ( and ends with )".to_owned());
        }
        if self.eat(")") {
            return Err("a set has at least one value".to_owned());
        }
        loop {
            check_value(self.word())?;
            if self.eat(")") {
                return Ok(());
            }
            if !self.eat(",") {
                return Err("a set of values begins with ( and ends with )".to_owned());
            }
        }
    }

    fn is_at_end(&mut self) -> bool {
        self.0 = self.0.trim_start();
        self.0.is_empty()
    }

    fn eat(&mut self, sign: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(sign);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// Up to a space or a sign; may be empty.
    fn word(&mut self) -> &'a str {
        let text = self.0.trim_start();
        let ends = |c: char| c.is_whitespace() || "=!(),<>".contains(c);
        let (word, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
        self.0 = rest;
        word
    }
}

fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_part = |part: &str| {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        is_between_alphanumerics(part) && part.bytes().all(allowed)
    };
    let good_prefix =
        prefix.is_none_or(|prefix| prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_part));
    if good_prefix && is_name(name) {
        Ok(())
    } else {
        Err(format!("{key:?} is no key of a label"))
    }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(format!("{value:?} is no value of a label"))
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    text.len() <= MAX_NAME && is_between_alphanumerics(text) && text.bytes().all(allowed)
}

fn is_between_alphanumerics(text: &str) -> bool {
    let (first, last) = (text.bytes().next(), text.bytes().last());
    [first, last]
        .iter()
        .all(|byte| byte.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("app=vllm")]
    #[case("app==vllm,env=prod")]
    #[case(" app = vllm , tier != gold ")]
    #[case("env in (prod, staging),tier notin(gold)")]
    #[case("key,!deprecated")]
    #[case("llm-d.ai/role in (decode,both)")]
    #[case("empty=,also in (a,)")]
    #[case("rank>1,rank<5")]
    #[case("in=out,notin in (in)")]
    fn what_kubernetes_reads_is_sent_as_it_is(#[case] text: &str) {
        let selector: LabelSelector = text.parse().unwrap();
        assert_eq!(selector.as_str(), text.trim());
    }

    #[rstest]
    #[case("", "no key")]
    #[case("app=vllm,", "no key")]
    #[case(",app=vllm", "no key")]
    #[case("!", "no key")]
    #[case("app vllm", "no operator")]
    #[case("app:vllm", "no key")]
    #[case("app=a b", "not expected")]
    #[case("app=a=b", "not expected")]
    #[case("app in prod", "begins with (")]
    #[case("app in (prod", "begins with (")]
    #[case("app in ()", "at least one")]
    #[case("app in (a) b", "not expected")]
    #[case("rank>high", "no number")]
    #[case("Bad.Prefix/app=x", "no key")]
    #[case("/app=x", "no key")]
    #[case("a/b/c=x", "no key")]
    #[case("-app=x", "no key")]
    #[case("app=x-", "no value")]
    #[case("app=é", "no value")]
    #[case(
        "a234567890123456789012345678901234567890123456789012345678901234",
        "no key"
    )]
    fn what_it_cannot_read_is_refused(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<LabelSelector>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
