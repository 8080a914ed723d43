//! Why a watch failed, in words that fit a metric label, a condition and a log line.

use std::fmt;

use foreign_text::clipped;
use kube::runtime::watcher;

/// One failed list or watch; a retry follows by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFailure {
    reason: FailureReason,
    relists: bool,
    listing: bool,
    bad_request: bool,
    /// HTTP status, where the server gave one.
    pub status: Option<u16>,
    /// What went wrong, for a person.
    pub message: String,
}

/// The kinds of failure: a closed set, so that it fits a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The credentials were refused or do not suffice.
    AuthFailed,
    /// What the server sent is no list or watch.
    BadStream,
    /// The connection broke, or could not be made.
    ConnectionLost,
    /// The server no longer knows where the watch was.
    Expired,
    /// A list was not found: its CRD is absent.
    KindMissing,
    /// A list came without a resource version.
    NoResourceVersion,
    /// A watch was not found, which proves nothing of its kind.
    NotFound,
    /// The server failed.
    ServerError,
    /// The server wants fewer requests.
    Throttled,
    /// Anything else.
    WatchFailed,
}

/// Longest text that is passed on, in bytes: twice the longest name.
pub(crate) const MAX_TEXT: usize = 512;

// === impl WatchFailure ===

impl WatchFailure {
    /// Stable: metric label and condition reason alike.
    pub fn reason(&self) -> &'static str {
        self.reason.as_str()
    }

    /// Whether the retry begins with a list, so that its success shows as a reset; else a watch goes on where it was, and
    /// success shows only with the next event.
    pub fn relists(&self) -> bool {
        self.relists
    }

    /// Whether the server does not know the kind (404 on the list): its CRD is absent. A watch that is answered so proves
    /// nothing yet: it is followed by a list, which does.
    pub fn is_kind_missing(&self) -> bool {
        self.listing && self.status == Some(404)
    }

    /// Whether the list can never be answered as it was asked: its selector is none, or is too long for a request.
    pub fn is_bad_request(&self) -> bool {
        self.bad_request
    }

    /// Whether the credentials were refused (401) or do not suffice (403).
    pub fn is_denied(&self) -> bool {
        matches!(self.status, Some(401 | 403))
    }
}

impl From<&watcher::Error> for WatchFailure {
    fn from(error: &watcher::Error) -> Self {
        let (reason, status) = match error {
            watcher::Error::InitialListFailed(cause)
            | watcher::Error::WatchStartFailed(cause)
            | watcher::Error::WatchFailed(cause) => classify(cause),
            watcher::Error::WatchError(status) => by_status(status.code),
            watcher::Error::NoResourceVersion => (FailureReason::NoResourceVersion, None),
        };
        let listing = matches!(error, watcher::Error::InitialListFailed(_));
        // what did not parse is lost, and the watch would go on behind it
        let cannot_resume = match error {
            watcher::Error::NoResourceVersion => true,
            watcher::Error::WatchFailed(cause) => is_no_event(cause),
            _ => false,
        };
        let reason = match reason {
            FailureReason::KindMissing if !listing => FailureReason::NotFound,
            reason => reason,
        };
        Self {
            reason,
            relists: listing || cannot_resume || matches!(status, Some(404 | 410)),
            listing,
            bad_request: is_bad_request(error),
            status,
            message: clipped(text(error), MAX_TEXT),
        }
    }
}

impl fmt::Display for WatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// === impl FailureReason ===

impl FailureReason {
    /// All of them, for references.
    pub const ALL: [Self; 10] = [
        Self::AuthFailed,
        Self::BadStream,
        Self::ConnectionLost,
        Self::Expired,
        Self::KindMissing,
        Self::NoResourceVersion,
        Self::NotFound,
        Self::ServerError,
        Self::Throttled,
        Self::WatchFailed,
    ];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AuthFailed => "AuthFailed",
            Self::BadStream => "BadStream",
            Self::ConnectionLost => "ConnectionLost",
            Self::Expired => "Expired",
            Self::KindMissing => "KindMissing",
            Self::NoResourceVersion => "NoResourceVersion",
            Self::NotFound => "NotFound",
            Self::ServerError => "ServerError",
            Self::Throttled => "Throttled",
            Self::WatchFailed => "WatchFailed",
        }
    }

    /// What it means, for an operator.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::AuthFailed => "credentials refused (401), or of too few rights (403)",
            Self::BadStream => {
                "the answer is no list or watch, or has an event that is none, which a list follows"
            }
            Self::ConnectionLost => "no connection, or it broke",
            Self::Expired => "the server no longer knows where the watch was (410): a list follows",
            Self::KindMissing => "a list was not found (404): the kind is not served",
            Self::NoResourceVersion => "a list without a resource version: no watch can follow it",
            Self::NotFound => {
                "a watch was not found (404), which proves nothing of its kind: a list follows"
            }
            Self::ServerError => "an answer of 500 to 599",
            Self::Throttled => "the server asks for fewer requests (429)",
            Self::WatchFailed => "any other failure",
        }
    }
}

/// Whether a list was refused for what it asked for. A 400 of which the API server is not the author says nothing of that.
fn is_bad_request(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::BuildRequest(_)) => true,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => {
            let by_server = status.code == 400 && status.reason == "BadRequest";
            by_server || matches!(status.code, 413 | 414 | 431)
        }
        _ => false,
    }
}

/// Whether a line of a watch was no event. To kube any JSON object is a `Status`, where it is no event; one without a code
/// is not the server's word.
fn is_no_event(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

fn classify(error: &kube::Error) -> (FailureReason, Option<u16>) {
    match error {
        error if is_no_event(error) => (FailureReason::BadStream, None),
        kube::Error::Api(status) => by_status(status.code),
        kube::Error::HyperError(_) | kube::Error::Service(_) => {
            (FailureReason::ConnectionLost, None)
        }
        kube::Error::Auth(_) => (FailureReason::AuthFailed, None),
        kube::Error::ReadEvents(_) => (FailureReason::BadStream, None),
        _ => (FailureReason::WatchFailed, None),
    }
}

fn by_status(code: u16) -> (FailureReason, Option<u16>) {
    let reason = match code {
        401 | 403 => FailureReason::AuthFailed,
        404 => FailureReason::KindMissing,
        410 => FailureReason::Expired,
        429 => FailureReason::Throttled,
        500..=599 => FailureReason::ServerError,
        _ => FailureReason::WatchFailed,
    };
    (reason, Some(code))
}

/// What went wrong: where the server says so, in its words.
fn text(error: &watcher::Error) -> String {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        other => return chain(other),
    };
    if status.message.is_empty() {
        return format!("the server answered {}", status.code);
    }
    format!("{} ({})", status.message, status.code)
}

/// The error and its causes on one line, without repeating what a cause already says.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kube::core::Status;

    use super::*;

    #[test]
    fn every_reason_is_among_all() {
        let status = |code| Box::new(Status::failure("", "").with_code(code));
        let api = |code| kube::Error::Api(status(code));
        let errors = (0..1000).flat_map(|code| {
            [
                watcher::Error::InitialListFailed(api(code)),
                watcher::Error::WatchStartFailed(api(code)),
                watcher::Error::WatchFailed(api(code)),
                watcher::Error::WatchError(status(code)),
            ]
        });
        let broken = serde_json::from_str::<u8>("x").expect_err("no number");
        let others = [
            watcher::Error::NoResourceVersion,
            watcher::Error::WatchFailed(kube::Error::SerdeError(broken)),
            watcher::Error::WatchFailed(kube::Error::Service("gone".into())),
        ];
        let failures = errors.chain(others);
        let seen: BTreeSet<&str> = failures
            .map(|error| WatchFailure::from(&error).reason())
            .collect();
        let all: BTreeSet<&str> = FailureReason::ALL
            .into_iter()
            .map(FailureReason::as_str)
            .collect();
        assert_eq!(seen, all);
        let meanings: BTreeSet<&str> = FailureReason::ALL
            .into_iter()
            .map(FailureReason::meaning)
            .collect();
        assert_eq!(meanings.len(), all.len());
    }
}
