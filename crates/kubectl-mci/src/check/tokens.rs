//! When a token ends and whose it is, by its own claims. Nothing is verified: the API server does that.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Deserialize;

use super::facts::Life;
use crate::member::Account;

/// The claims of a token that are times, and whose it is.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    exp: Option<i64>,
    #[serde(default)]
    iat: i64,
    #[serde(default)]
    sub: String,
}

/// None where it is no JWT, or one without an end.
pub(super) fn life(token: &str) -> Option<Life> {
    let claims = claims(token)?;
    Some(Life {
        from: Timestamp::from_second(claims.iat).ok()?,
        until: Timestamp::from_second(claims.exp?).ok()?,
    })
}

/// None where it is not that of a ServiceAccount.
pub(super) fn account(token: &str) -> Option<Account> {
    Account::of_user(&claims(token)?.sub)
}

fn claims(token: &str) -> Option<Claims> {
    let claims = token.split('.').nth(1)?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice(&claims).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_token(claims: &str) -> String {
        format!("head.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_says_when_it_ends_and_another_text_does_not() {
        let life = life(&mk_token(r#"{"exp":7200,"iat":3600,"sub":"x"}"#)).expect("claims");
        assert_eq!(life.until, Timestamp::from_second(7200).expect("a time"));
        for odd in ["", "opaque", "a.b.c", "a.!!.c"] {
            assert_eq!(super::life(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_token_without_an_end_says_whose_it_is() {
        let token = mk_token(r#"{"sub":"system:serviceaccount:isthmus-system:robot"}"#);
        let account = account(&token).expect("an account");
        assert_eq!(account.to_string(), "isthmus-system/robot");
        assert_eq!(life(&token), None);
        assert_eq!(super::account(&mk_token(r#"{"sub":"jane"}"#)), None);
    }
}
