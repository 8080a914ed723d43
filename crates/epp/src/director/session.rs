//! Where sessions are served.

use std::{collections::HashMap, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use scheduling::{Endpoint, Moment, SessionAt, Slot};

/// Sessions that are remembered, of which the half that was used last surely stays.
const MAX_SESSIONS: usize = 100_000;

/// Longest session id that is remembered, in bytes.
const MAX_ID: usize = 256;

/// How the request that was picked for names its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamedSession {
    /// By an id, whose endpoint is remembered.
    Id(Box<str>),
    /// By the pod itself, which the response names in this header.
    Token(String),
}

/// The endpoint of each session that has an id. Two maps take turns: what is used moves to the first, and when that
/// holds half of what may be remembered, the second is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<[HashMap<Arc<str>, Served>; 2]>);

#[derive(Clone, Copy, Debug)]
struct Served {
    by: Slot,
    at: Moment,
}

// === impl NamedSession ===

impl NamedSession {
    /// The header of a response that `endpoint` serves, if it has one.
    pub(crate) fn response_header(&self, endpoint: &Endpoint) -> Option<(String, String)> {
        match self {
            Self::Id(_) => None,
            Self::Token(header) => Some((header.clone(), token(endpoint))),
        }
    }
}

// === impl Sessions ===

impl Sessions {
    /// Where the session is served, unless its last request is longer ago than `ttl`.
    pub(crate) fn find(&self, id: &str, now: Moment, ttl: Duration) -> Option<SessionAt> {
        let maps = self.0.lock();
        let served = maps.iter().find_map(|map| map.get(id))?;
        (now.since(served.at) <= ttl).then_some(SessionAt::Slot(served.by))
    }

    /// The session is served by `endpoint` from now on. An id that is too long is not remembered.
    pub(crate) fn remember(&self, id: &str, endpoint: &Endpoint, now: Moment) {
        if id.len() > MAX_ID {
            return;
        }
        let served = Served {
            by: endpoint.slot(),
            at: now,
        };
        let mut maps = self.0.lock();
        let [recent, older] = &mut *maps;
        if let Some(known) = recent.get_mut(id) {
            *known = served;
            return;
        }
        if recent.len() >= MAX_SESSIONS / 2 {
            *older = std::mem::take(recent);
        }
        recent.insert(id.into(), served);
    }
}

/// The text of `x-session-token` for the pod of `endpoint`.
fn token(endpoint: &Endpoint) -> String {
    let id = endpoint.id();
    STANDARD.encode(format!("{}/{}", id.namespace, id.pod))
}

/// The pod that a token names; none, if it is no token.
pub(crate) fn from_token(token: &str) -> Option<SessionAt> {
    let text = String::from_utf8(STANDARD.decode(token).ok()?).ok()?;
    let (namespace, pod) = text.split_once('/')?;
    Some(SessionAt::Pod {
        namespace: namespace.into(),
        pod: pod.into(),
    })
}

#[cfg(test)]
mod tests {
    use scheduling::Registry;

    use super::*;
    use crate::fixtures::mk_member;

    fn mk_endpoint() -> Arc<Endpoint> {
        let member = mk_member("a", "10.0.0.1:80".parse().unwrap());
        let snapshot = Registry::default().update(vec![member], Moment::START);
        Arc::clone(&snapshot.members()[0].endpoint)
    }

    #[test]
    fn a_session_is_found_until_its_time_is_over() {
        let (sessions, endpoint) = (Sessions::default(), mk_endpoint());
        let ttl = Duration::from_mins(5);
        let at = |seconds: u64| Moment::from_millis(seconds * 1000);
        sessions.remember("s", &endpoint, at(10));
        let here = Some(SessionAt::Slot(endpoint.slot()));
        assert_eq!(sessions.find("s", at(310), ttl), here);
        assert_eq!(sessions.find("s", at(311), ttl), None);
        sessions.remember("s", &endpoint, at(311));
        assert_eq!(sessions.find("s", at(600), ttl), here);
        assert_eq!(sessions.find("t", at(10), ttl), None);
    }

    #[test]
    fn sessions_in_use_stay_and_memory_is_bounded() {
        let (sessions, endpoint) = (Sessions::default(), mk_endpoint());
        let now = Moment::START;
        let ttl = Duration::from_secs(1);
        for index in 0..3 * MAX_SESSIONS {
            if index % 1_000 == 0 {
                sessions.remember("mine", &endpoint, now);
            }
            sessions.remember(&format!("invented-{index}"), &endpoint, now);
        }
        assert!(sessions.find("mine", now, ttl).is_some());
        assert!(sessions.find("invented-0", now, ttl).is_none());
        let held: usize = sessions.0.lock().iter().map(HashMap::len).sum();
        assert!(held <= MAX_SESSIONS, "{held}");
        sessions.remember(&"x".repeat(MAX_ID + 1), &endpoint, now);
        assert!(sessions.find(&"x".repeat(MAX_ID + 1), now, ttl).is_none());
    }

    #[test]
    fn a_token_names_its_pod_and_anything_else_nothing() {
        let token = token(&mk_endpoint());
        let pod = SessionAt::Pod {
            namespace: "ns".into(),
            pod: "a".into(),
        };
        assert_eq!(from_token(&token), Some(pod));
        for bad in ["", "a b", "bm8tc2xhc2g=", "/w=="] {
            assert_eq!(from_token(bad), None, "{bad}");
        }
    }
}
