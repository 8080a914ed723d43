//! When a token ends, by its own claims. Nothing is verified: the API server does that.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Deserialize;

use super::facts::Life;

/// The claims of a token that are times.
#[derive(Deserialize)]
struct Claims {
    exp: i64,
    #[serde(default)]
    iat: i64,
}

/// None where it is no JWT, or one without an end.
pub(super) fn life(token: &str) -> Option<Life> {
    let claims = token.split('.').nth(1)?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    Some(Life {
        from: Timestamp::from_second(claims.iat).ok()?,
        until: Timestamp::from_second(claims.exp).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_when_it_ends_and_another_text_does_not() {
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"exp":7200,"iat":3600,"sub":"x"}"#);
        let life = life(&format!("head.{claims}.signature")).expect("claims");
        assert_eq!(life.until, Timestamp::from_second(7200).expect("a time"));
        for odd in ["", "opaque", "a.b.c", "a.!!.c"] {
            assert_eq!(super::life(odd), None, "{odd}");
        }
    }
}
