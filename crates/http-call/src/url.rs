//! Where the peer is.

use std::{fmt, str::FromStr};

use http::{
    Uri,
    uri::{Authority, InvalidUri, PathAndQuery, Scheme},
};

/// `http` or `https`, a host, perhaps a port and a path. No user, no query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at its end: empty for the root.
    path: String,
}

/// A text that is no base URL. What may be a password is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: expected http:// or https://, a host, and perhaps a port and a path, such as http://processor:8090"
)]
pub struct UrlError(&'static str);

// === impl BaseUrl ===

impl BaseUrl {
    /// With TLS.
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The host and, if it was given, the port.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Without a slash at its end: empty for the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The same without `suffix`, if its path ends so: for users who give the whole URL of the one path that is called.
    #[must_use]
    pub fn without_suffix(mut self, suffix: &str) -> Self {
        if let Some(path) = self.path.strip_suffix(suffix) {
            self.path.truncate(path.trim_end_matches('/').len());
        }
        self
    }

    /// The URL of `path`, which begins with a slash.
    pub(crate) fn join(&self, path: &PathAndQuery) -> Result<Uri, http::Error> {
        let path = if self.path.is_empty() {
            path.clone()
        } else {
            let joined = format!("{}{path}", self.path);
            joined.parse().map_err(|error: InvalidUri| error)?
        };
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
    }
}

impl FromStr for BaseUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let uri: Uri = text.parse().map_err(|_| UrlError("it is no URL"))?;
        let parts = uri.into_parts();
        let scheme = parts
            .scheme
            .filter(|it| *it == Scheme::HTTP || *it == Scheme::HTTPS)
            .ok_or(UrlError("its scheme is another one"))?;
        let authority = parts.authority.ok_or(UrlError("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(UrlError(
                "a user or a password stands in it: give credentials in a file",
            ));
        }
        if authority.host().trim_matches(['[', ']']).is_empty() {
            return Err(UrlError("it has no host"));
        }
        let has_colon = authority.as_str().len() > authority.host().len();
        if has_colon && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(UrlError("its port is no number from 1 to 65535"));
        }
        if text.contains(['?', '#']) {
            return Err(UrlError("it has a query or a fragment"));
        }
        let path = parts.path_and_query;
        let path = path.as_ref().map_or("", PathAndQuery::path);
        Ok(Self {
            scheme,
            authority,
            path: path.trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://processor:8090", "http://processor:8090/process?x=1")]
    #[case("http://processor:8090/", "http://processor:8090/process?x=1")]
    #[case(
        "https://processor.llm.svc/a/b/",
        "https://processor.llm.svc/a/b/process?x=1"
    )]
    #[case("http://[::1]:80", "http://[::1]:80/process?x=1")]
    fn a_path_is_called_below_the_base(#[case] base: &str, #[case] expected: &str) {
        let base: BaseUrl = base.parse().unwrap();
        let path = PathAndQuery::from_static("/process?x=1");
        assert_eq!(base.join(&path).unwrap().to_string(), expected);
    }

    #[rstest]
    #[case("http://processor/process", "http://processor")]
    #[case("http://processor/x/process/", "http://processor/x")]
    #[case("http://processor/reprocess", "http://processor/reprocess")]
    #[case("http://processor", "http://processor")]
    fn a_given_suffix_is_taken_off(#[case] base: &str, #[case] expected: &str) {
        let base: BaseUrl = base.parse().unwrap();
        assert_eq!(base.without_suffix("/process").to_string(), expected);
    }

    #[rstest]
    #[case::no_scheme("processor:8090", "its scheme")]
    #[case::other_scheme("ftp://processor", "its scheme")]
    #[case::path_alone("/process", "its scheme")]
    #[case::no_host("http://:8090", "no host")]
    #[case::no_port("http://processor:", "its port")]
    #[case::port_zero("http://processor:0", "its port")]
    #[case::port_too_large("http://processor:65536", "its port")]
    #[case::query("http://processor/?a=b", "a query")]
    #[case::fragment("http://processor/#a", "a fragment")]
    #[case::password("http://me:secret@processor", "a password")]
    fn what_is_no_base_url_is_refused_without_its_secrets(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<BaseUrl>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
