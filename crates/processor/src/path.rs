//! Which call a request is. Pure.

use http::Method;
use processor_api::{PROCESS_PATH, ROUTE_PATH, Refusal, ReservationId};
use tokenization::Api;

use crate::reply::Fault;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// `POST /process`.
    Process,
    /// `POST /v1/…/render`.
    Render(Api),
    /// `POST /route/{id}/prefill_complete`.
    PrefillComplete(ReservationId),
    /// `DELETE /route/{id}`.
    End(ReservationId),
    /// `POST /route/keepalive`.
    Keepalive,
}

// === impl Path ===

impl Path {
    /// # Errors
    /// [`Fault`] when there is no such path, or it has another method.
    pub(crate) fn find(method: &Method, path: &str) -> Result<Self, Fault> {
        let found = match path {
            PROCESS_PATH => Self::Process,
            "/v1/chat/completions/render" => Self::Render(Api::Chat),
            "/v1/completions/render" => Self::Render(Api::Completions),
            _ => Self::of_booking(path)?,
        };
        let wanted = match found {
            Self::End(_) => Method::DELETE,
            _ => Method::POST,
        };
        if *method == wanted {
            Ok(found)
        } else {
            Err(Fault::Method(wanted))
        }
    }

    fn of_booking(path: &str) -> Result<Self, Fault> {
        let rest = path.strip_prefix(ROUTE_PATH);
        let rest = rest.and_then(|rest| rest.strip_prefix('/'));
        let rest = rest.ok_or(Fault::NotFound)?;
        if rest == "keepalive" {
            return Ok(Self::Keepalive);
        }
        let id = |text: &str| {
            let id = text.parse::<ReservationId>();
            id.map_err(|error| Refusal::BadRequest(format!("the reservation's id: {error}")))
        };
        match rest.split_once('/') {
            None => Ok(Self::End(id(rest)?)),
            Some((name, "prefill_complete")) => Ok(Self::PrefillComplete(id(name)?)),
            Some(_) => Err(Fault::NotFound),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ID: &str = "r_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn each_path_is_found_with_its_method() {
        let id: ReservationId = ID.parse().unwrap();
        let cases = [
            ("POST", "/process", Path::Process),
            (
                "POST",
                "/v1/chat/completions/render",
                Path::Render(Api::Chat),
            ),
            (
                "POST",
                "/v1/completions/render",
                Path::Render(Api::Completions),
            ),
            (
                "POST",
                &format!("/route/{ID}/prefill_complete"),
                Path::PrefillComplete(id),
            ),
            ("DELETE", &format!("/route/{ID}"), Path::End(id)),
            ("POST", "/route/keepalive", Path::Keepalive),
        ];
        for (method, path, want) in cases {
            let method = method.parse().unwrap();
            assert_eq!(Path::find(&method, path), Ok(want));
            assert!(matches!(
                Path::find(&Method::PUT, path),
                Err(Fault::Method(_))
            ));
        }
    }

    #[rstest]
    #[case("/", "not-found")]
    #[case("/process/", "not-found")]
    #[case("/route", "not-found")]
    #[case("/route/r_a", "bad-request")]
    #[case("/route/../admin", "not-found")]
    #[case("/route/%2e%2e", "bad-request")]
    #[case("/routes/keepalive", "not-found")]
    fn other_paths_are_refused(#[case] path: &str, #[case] reason: &str) {
        let found = Path::find(&Method::DELETE, path);
        assert_eq!(found.map_err(|fault| fault.reason()), Err(reason));
    }
}
