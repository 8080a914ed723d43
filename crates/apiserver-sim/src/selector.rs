//! Label and field selectors, as far as they are used.

use crate::store::Stored;

/// Which objects of a kind are meant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    namespace: String,
    name: Option<String>,
    labels: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

// === impl Selector ===

impl Selector {
    /// # Errors
    /// What is not understood, rather than a list that ignores it.
    pub(crate) fn parse(namespace: &str, fields: &str, labels: &str) -> Result<Self, String> {
        let mut selector = Self {
            namespace: namespace.to_owned(),
            ..Self::default()
        };
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            match term.split_once('=') {
                Some(("metadata.name", name)) => {
                    selector.name = Some(name.trim_start_matches('=').to_owned());
                }
                Some(("metadata.namespace", namespace)) => {
                    namespace
                        .trim_start_matches('=')
                        .clone_into(&mut selector.namespace);
                }
                _ => return Err(format!("field selector {term:?} is not supported")),
            }
        }
        for term in terms(labels) {
            selector.labels.push(Term::parse(term.trim())?);
        }
        Ok(selector)
    }

    pub(crate) fn matches(&self, object: &Stored) -> bool {
        (self.namespace.is_empty() || self.namespace == object.namespace)
            && self.name.as_ref().is_none_or(|name| *name == object.name)
            && self.labels.iter().all(|term| term.matches(object))
    }
}

// === impl Term ===

impl Term {
    fn parse(text: &str) -> Result<Self, String> {
        let set = |rest: &str| -> Vec<String> {
            let inner = rest.trim().trim_start_matches('(').trim_end_matches(')');
            inner.split(',').map(|one| one.trim().to_owned()).collect()
        };
        if let Some((key, rest)) = text.split_once(" notin ") {
            return Ok(Self::NotIn(key.trim().to_owned(), set(rest)));
        }
        if let Some((key, rest)) = text.split_once(" in ") {
            return Ok(Self::In(key.trim().to_owned(), set(rest)));
        }
        if let Some((key, value)) = text.split_once("!=") {
            return Ok(Self::NotIn(key.to_owned(), vec![value.to_owned()]));
        }
        if let Some((key, value)) = text.split_once('=') {
            let value = value.trim_start_matches('=');
            return Ok(Self::In(key.to_owned(), vec![value.to_owned()]));
        }
        if text.contains([' ', '(', '>', '<']) {
            return Err(format!("label selector {text:?} is not supported"));
        }
        Ok(match text.strip_prefix('!') {
            Some(key) => Self::Absent(key.to_owned()),
            None => Self::Exists(text.to_owned()),
        })
    }

    fn matches(&self, object: &Stored) -> bool {
        let value = |key: &str| object.labels.get(key);
        match self {
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
            Self::In(key, set) => value(key).is_some_and(|value| set.contains(value)),
            Self::NotIn(key, set) => value(key).is_none_or(|value| !set.contains(value)),
        }
    }
}

/// Splits at commas outside of parentheses.
fn terms(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk(labels: &[(&str, &str)]) -> Stored {
        Stored::for_tests("ml", "llm", labels)
    }

    #[test]
    fn selectors_are_read_as_kubernetes_reads_them() {
        let object = mk(&[("app", "epp"), ("tier", "gold")]);
        let matches = |labels: &str, fields: &str| {
            Selector::parse("", fields, labels)
                .expect("understood")
                .matches(&object)
        };
        for good in [
            "app",
            "app=epp",
            "app==epp,tier",
            "app in (x, epp)",
            "app in (epp),tier notin (a,b)",
            "!x",
            "app!=y",
            "",
        ] {
            assert!(matches(good, ""), "{good}");
        }
        for bad in [
            "x",
            "app=x",
            "app in (x,y)",
            "!app",
            "tier notin (gold)",
            "app!=epp",
        ] {
            assert!(!matches(bad, ""), "{bad}");
        }
        assert!(matches("", "metadata.name=llm"));
        assert!(!matches("", "metadata.name=other"));
        assert!(!matches("", "metadata.namespace=other"));
        assert!(Selector::parse("", "spec.x=1", "").is_err());
        assert!(Selector::parse("", "", "app > 3").is_err());
    }
}
