//! What a URL says beside its path.

use std::{borrow::Cow, str::FromStr};

use metadata::Fault;

/// The part after the `?`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'a>(&'a str);

// === impl Query ===

impl<'a> Query<'a> {
    pub(crate) fn of(query: Option<&'a str>) -> Self {
        Self(query.unwrap_or_default())
    }

    /// The first value of that name.
    pub(crate) fn get(self, name: &str) -> Option<Cow<'a, str>> {
        if self.0.is_empty() {
            return None;
        }
        let mut pairs = form_urlencoded::parse(self.0.as_bytes());
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// A value that the call needs.
    pub(crate) fn required<T: FromStr<Err: ToString>>(self, name: &str) -> Result<T, Fault> {
        let value = self
            .get(name)
            .ok_or_else(|| Fault::invalid(name, "missing in the query"))?;
        value
            .parse()
            .map_err(|error: T::Err| Fault::invalid(name, error))
    }

    /// `strict=true`: what is unknown or charged elsewhere is an error.
    pub(crate) fn strict(self) -> Result<bool, Fault> {
        match self.get("strict").as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Fault::invalid("strict", "expected true or false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use metadata::Cluster;

    use super::*;

    #[test]
    fn values_are_decoded_and_the_first_counts() {
        let query = Query::of(Some("x=1&cluster=a%2Fb+c&cluster=d&strict=true"));
        let cluster: Cluster = query.required("cluster").unwrap();
        assert_eq!(cluster.as_str(), "a/b c");
        assert!(query.strict().unwrap());
    }

    #[test]
    fn a_refusal_names_the_parameter() {
        let fault = |query| Query(query).required::<u64>("epoch").unwrap_err();
        assert_eq!(fault("").to_string(), "epoch: missing in the query");
        assert_eq!(
            fault("epoch=x").to_string(),
            "epoch: invalid digit found in string"
        );
        let fault = Query("strict=1").strict().unwrap_err();
        assert_eq!(fault.to_string(), "strict: expected true or false");
    }
}
