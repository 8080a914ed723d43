//! Answers of the service, as values.

use std::time::Duration;

use http::StatusCode;
use metadata::wire::{ErrorBody, batch::Refused};
use serde::{Deserialize, de::DeserializeOwned};

use crate::transport::{CallError, Reply};

/// Why the service did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Its name has no address, or was not looked up yet.
    #[error("no address of the Metadata-Center is known")]
    NoAddress,
    /// It failed so often that it is not asked for a while.
    #[error("the Metadata-Center failed too often: it is not asked for up to 5s")]
    BreakerOpen,
    /// It did not answer in time.
    #[error("the Metadata-Center does not answer within {0:?}")]
    Timeout(Duration),
    /// Nothing came from it.
    #[error("the Metadata-Center cannot be called: {0}")]
    Call(#[from] CallError),
    /// It failed.
    #[error("the Metadata-Center answers {0}")]
    Status(StatusCode),
    /// It finds fault with the call.
    #[error("the Metadata-Center refuses: {0}")]
    Refused(Box<RefusedCall>),
    /// Its answer is none that this version knows.
    #[error("the Metadata-Center's answer is not understood: {0}")]
    Malformed(String),
}

/// The answer to a call that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}, {}: {}", .error.reason, .error.message)]
pub struct RefusedCall {
    /// Of HTTP.
    pub status: StatusCode,
    /// With an empty reason where the answer is not the service's.
    pub error: ErrorBody,
    /// Where a batch was refused.
    pub data: Refused,
}

/// What is read of the service's envelope if it agreed.
#[derive(Deserialize)]
struct Agreed<T> {
    data: Option<T>,
}

/// What is read of it if it refused.
#[derive(Default, Deserialize)]
struct Disagreed {
    error: Option<ErrorBody>,
    data: Option<Refused>,
}

// === impl RefusedCall ===

impl RefusedCall {
    /// Whether the service does not support the call. A 404 with a reason in its body means that something else is
    /// unknown.
    pub(crate) fn is_unknown_call(&self) -> bool {
        let ErrorBody { code, reason, .. } = &self.error;
        let is_of_path = *code == 0 || matches!(reason.as_str(), "not-found" | "method");
        is_of_path
            && matches!(
                self.status,
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
            )
    }
}

// === impl Unavailable ===

impl Unavailable {
    /// Stable: metric label and log field alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoAddress => "no-address",
            Self::BreakerOpen => "breaker-open",
            Self::Timeout(_) => "timeout",
            Self::Call(CallError::Connect(_)) => "connect",
            Self::Call(CallError::Broken(_)) => "broken",
            Self::Call(CallError::TooLarge) => "too-large",
            Self::Status(_) => "status",
            Self::Refused(_) => "refused",
            Self::Malformed(_) => "malformed",
        }
    }

    /// Another address may do better: the connection failed, or this replica ends or does not reach its store.
    pub(crate) fn is_of_one_address(&self) -> bool {
        matches!(
            self,
            Self::Call(CallError::Connect(_) | CallError::Broken(_))
                | Self::Status(StatusCode::SERVICE_UNAVAILABLE)
        )
    }

    /// The address is to blame, not the call.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Call(_) | Self::Status(_))
    }
}

/// The data of an answer; none where it is `null`.
pub(crate) fn read<T: DeserializeOwned>(reply: &Reply) -> Result<Option<T>, Unavailable> {
    let status = reply.status;
    if status.is_success() {
        let agreed = serde_json::from_slice::<Agreed<T>>(&reply.body);
        let agreed = agreed.map_err(|error| Unavailable::Malformed(error.to_string()))?;
        return Ok(agreed.data);
    }
    if !status.is_client_error() {
        return Err(Unavailable::Status(status));
    }
    let disagreed: Disagreed = serde_json::from_slice(&reply.body).unwrap_or_default();
    let nothing = || ErrorBody {
        code: 0,
        message: "an answer of something else".to_owned(),
        reason: String::new(),
    };
    Err(Unavailable::Refused(Box::new(RefusedCall {
        status,
        error: disagreed.error.unwrap_or_else(nothing),
        data: disagreed.data.unwrap_or_default(),
    })))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;

    fn mk_reply(status: u16, body: &'static str) -> Reply {
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            boot: None,
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    #[test]
    fn data_may_be_null() {
        let body = r#"{"status":"OK","error":null,"data":null,"trace_id":"t"}"#;
        assert_eq!(read::<u32>(&mk_reply(200, body)), Ok(None));
        let body = r#"{"status":"OK","data":7}"#;
        assert_eq!(read::<u32>(&mk_reply(200, body)), Ok(Some(7)));
    }

    #[rstest]
    #[case(200, "{", "malformed")]
    #[case(200, r#"{"data":"x"}"#, "malformed")]
    #[case(503, r#"{"status":"ERROR"}"#, "status")]
    #[case(302, "", "status")]
    #[case(404, "<html>", "refused")]
    fn what_is_no_answer_has_a_reason(
        #[case] status: u16,
        #[case] body: &'static str,
        #[case] want: &str,
    ) {
        let error = read::<u32>(&mk_reply(status, body)).unwrap_err();
        assert_eq!(error.reason(), want, "{error}");
    }

    #[rstest]
    #[case::gin(404, "404 page not found", true)]
    #[case::ours(
        404,
        r#"{"error":{"code":40401000,"message":"m","reason":"not-found"}}"#,
        true
    )]
    #[case::of_the_cluster(
        404,
        r#"{"error":{"code":40401404,"message":"m","reason":"no such cluster"}}"#,
        false
    )]
    #[case::method(405, "", true)]
    #[case::other_refusal(401, "", false)]
    fn a_call_is_unknown_where_its_path_is(
        #[case] status: u16,
        #[case] body: &'static str,
        #[case] want: bool,
    ) {
        let Err(Unavailable::Refused(refusal)) = read::<u32>(&mk_reply(status, body)) else {
            panic!("it is a refusal");
        };
        assert_eq!(refusal.is_unknown_call(), want);
    }

    #[test]
    fn a_refusal_says_what_the_service_said() {
        let body = r#"{"status":"ERROR","error":{"code":40901002,"message":"m","reason":"stale-epoch"},
                       "data":{"current":7},"trace_id":"t"}"#;
        let Err(Unavailable::Refused(refusal)) = read::<u32>(&mk_reply(409, body)) else {
            panic!("it is a refusal");
        };
        assert_eq!(refusal.to_string(), "409 Conflict, stale-epoch: m");
        assert_eq!(refusal.data.current, Some(7));
    }
}
