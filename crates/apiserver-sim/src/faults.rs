//! Faults of answers, switched on and off while the server runs.

use std::time::Duration;

use crate::target::{Target, Verb};

/// What an answer suffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It comes this much later. Several add up, and another fault may follow.
    Late(Duration),
    /// It never comes; the connection stays.
    Never,
    /// Status and headers come, the body never.
    HeadersOnly,
    /// Half of the body, then the connection ends.
    Truncated,
    /// A refusal with this code; with 429 or 503 perhaps a `Retry-After`.
    Refused {
        /// HTTP status.
        code: u16,
        /// In seconds.
        retry_after: Option<u32>,
    },
}

/// A fault and the requests that suffer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    fault: Fault,
    verb: Option<Verb>,
    resource: Option<&'static str>,
    name: Option<String>,
    left: Option<u32>,
}

/// All rules of a server.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: Vec<(u64, Rule)>,
    next: u64,
}

/// What is done to one answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) late: Duration,
    pub(crate) end: Option<Fault>,
}

// === impl Rule ===

impl Rule {
    /// For all requests.
    pub fn all(fault: Fault) -> Self {
        Self {
            fault,
            verb: None,
            resource: None,
            name: None,
            left: None,
        }
    }

    /// A refusal without `Retry-After`, for all requests.
    pub fn refuse(code: u16) -> Self {
        Self::all(Fault::Refused {
            code,
            retry_after: None,
        })
    }

    /// For this verb alone.
    #[must_use]
    pub fn verb(self, verb: Verb) -> Self {
        Self {
            verb: Some(verb),
            ..self
        }
    }

    /// For this kind alone, by its plural; `version` for `/version`.
    #[must_use]
    pub fn resource(self, resource: &'static str) -> Self {
        Self {
            resource: Some(resource),
            ..self
        }
    }

    /// For objects of this name alone.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    /// For so many requests.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self {
            left: Some(times),
            ..self
        }
    }

    fn matches(&self, target: &Target) -> bool {
        self.left != Some(0)
            && self.verb.is_none_or(|verb| verb == target.verb)
            && self
                .resource
                .is_none_or(|resource| resource == target.resource())
            && self.name.as_ref().is_none_or(|name| target.name() == name)
    }
}

// === impl Rules ===

impl Rules {
    pub(crate) fn add(&mut self, rule: Rule) -> u64 {
        self.next += 1;
        self.rules.push((self.next, rule));
        self.next
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.rules.retain(|(one, _)| *one != id);
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn fate(&mut self, target: &Target) -> Fate {
        let mut fate = Fate::default();
        for (_, rule) in &mut self.rules {
            if !rule.matches(target) {
                continue;
            }
            if let Some(left) = &mut rule.left {
                *left -= 1;
            }
            if let Fault::Late(wait) = rule.fault {
                fate.late += wait;
            } else {
                fate.end = Some(rule.fault.clone());
                break;
            }
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn rules_hit_what_they_name_and_run_out() {
        let mut rules = Rules::default();
        let late = Duration::from_millis(20);
        rules.add(Rule::all(Fault::Late(late)));
        let id = rules.add(
            Rule::refuse(500)
                .verb(Verb::List)
                .resource("services")
                .times(1),
        );
        let mut fate = |url: &str| {
            let target = Target::parse(&Method::GET, &url.parse().expect("a URL"));
            rules.fate(&target)
        };
        assert_eq!(fate("/version"), Fate { late, end: None });
        assert_eq!(
            fate("/api/v1/services").end,
            Some(Fault::Refused {
                code: 500,
                retry_after: None
            })
        );
        assert_eq!(fate("/api/v1/services").end, None);
        rules.remove(id);
        rules.clear();
        let target = Target::parse(&Method::GET, &"/version".parse().expect("a URL"));
        assert_eq!(rules.fate(&target), Fate::default());
    }
}
