//! Why a watch failed, in words that fit a metric label, a condition and a log line.

use std::fmt;

use kube::runtime::watcher;

/// One failed list or watch; a retry follows by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFailure {
    reason: &'static str,
    relists: bool,
    listing: bool,
    /// HTTP status, where the server gave one.
    pub status: Option<u16>,
    /// What went wrong, for a person.
    pub message: String,
}

/// Longest text that is passed on, in bytes: twice the longest name.
const MAX_TEXT: usize = 512;

// === impl WatchFailure ===

impl WatchFailure {
    /// Stable: metric label and condition reason alike.
    pub fn reason(&self) -> &'static str {
        self.reason
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

    /// Whether the credentials were refused (401) or do not suffice (403).
    pub fn is_denied(&self) -> bool {
        matches!(self.status, Some(401 | 403))
    }

    pub(crate) fn from_watcher(error: &watcher::Error) -> Self {
        let (reason, status) = match error {
            watcher::Error::InitialListFailed(cause)
            | watcher::Error::WatchStartFailed(cause)
            | watcher::Error::WatchFailed(cause) => classify(cause),
            watcher::Error::WatchError(status) => by_status(status.code),
            watcher::Error::NoResourceVersion => ("NoResourceVersion", None),
        };
        let listing = matches!(error, watcher::Error::InitialListFailed(_));
        let cannot_resume = matches!(error, watcher::Error::NoResourceVersion);
        let reason = if status == Some(404) && !listing {
            "NotFound"
        } else {
            reason
        };
        Self {
            reason,
            relists: listing || cannot_resume || matches!(status, Some(404 | 410)),
            listing,
            status,
            message: clipped(chain(error)),
        }
    }
}

impl fmt::Display for WatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The beginning of a text that a server had a part in; it may send megabytes. Cut texts stay longer than any name.
pub(crate) fn clipped(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.shrink_to_fit();
    }
    text
}

fn classify(error: &kube::Error) -> (&'static str, Option<u16>) {
    match error {
        kube::Error::Api(status) => by_status(status.code),
        kube::Error::HyperError(_) | kube::Error::Service(_) => ("ConnectionLost", None),
        kube::Error::Auth(_) => ("AuthFailed", None),
        kube::Error::SerdeError(_) | kube::Error::ReadEvents(_) => ("BadStream", None),
        _ => ("WatchFailed", None),
    }
}

fn by_status(code: u16) -> (&'static str, Option<u16>) {
    let reason = match code {
        401 | 403 => "AuthFailed",
        404 => "KindMissing",
        410 => "Expired",
        429 => "Throttled",
        500..=599 => "ServerError",
        _ => "WatchFailed",
    };
    (reason, Some(code))
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
