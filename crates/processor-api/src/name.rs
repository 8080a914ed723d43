//! Names that are made by chance: 128 random bits, never anything of a prompt.

use std::{fmt, str::FromStr};

use rand::{Rng, RngExt};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Characters of 128 bits in base32: five bits each.
const CODE: usize = 26;
const LEN: usize = 3;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Under which the token cache keeps the ids of one prompt. Whoever has it reads them: it is never shown or logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenKey(Code<LEN>);

/// Names a booking of the Router, so that it can be ended while it is still being made.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReservationId(Code<2>);

/// A text that is no such name. It is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not \"{0}\" and {CODE} characters of a to z and 2 to 7")]
pub struct NameError(&'static str);

/// Valid characters, behind a prefix of `P` characters that the owner knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Code<const P: usize>([u8; 32]);

// === impl TokenKey ===

impl TokenKey {
    const PREFIX: &'static str = "tk_";

    /// A new one.
    pub fn random<R: Rng + ?Sized>(rng: &mut R) -> Self {
        Self(Code::random(Self::PREFIX, rng))
    }

    /// As in the header.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for TokenKey {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Code::parse(Self::PREFIX, text).map(Self)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

// === impl ReservationId ===

impl ReservationId {
    const PREFIX: &'static str = "r_";

    /// A new one.
    pub fn random<R: Rng + ?Sized>(rng: &mut R) -> Self {
        Self(Code::random(Self::PREFIX, rng))
    }

    /// As on the wire.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for ReservationId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Code::parse(Self::PREFIX, text).map(Self)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReservationId({self})")
    }
}

// === impl Code ===

impl<const P: usize> Code<P> {
    const LEN: usize = P.saturating_add(CODE);

    fn random<R: Rng + ?Sized>(prefix: &str, rng: &mut R) -> Self {
        let mut bits: u128 = rng.random();
        let code = std::iter::repeat_with(|| {
            let index = usize::try_from(bits & 31).unwrap_or_default();
            bits >>= 5;
            ALPHABET.get(index).copied().unwrap_or(b'a')
        });
        Self::collect(prefix.bytes().chain(code))
    }

    fn parse(prefix: &'static str, text: &str) -> Result<Self, NameError> {
        let code = text.strip_prefix(prefix).ok_or(NameError(prefix))?;
        let is_code = code.len() == CODE && code.bytes().all(|byte| ALPHABET.contains(&byte));
        if !is_code {
            return Err(NameError(prefix));
        }
        Ok(Self::collect(text.bytes()))
    }

    fn collect(bytes: impl Iterator<Item = u8>) -> Self {
        let mut code = [0; 32];
        for (place, byte) in code.iter_mut().zip(bytes.take(Self::LEN)) {
            *place = byte;
        }
        Self(code)
    }

    fn as_str(&self) -> &str {
        // all of it is ASCII
        let bytes = self.0.get(..Self::LEN).unwrap_or_default();
        str::from_utf8(bytes).unwrap_or_default()
    }
}

macro_rules! as_json_string {
    ($name:ty) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

as_json_string!(TokenKey);
as_json_string!(ReservationId);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::{SeedableRng, rngs::StdRng};
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_key_has_128_random_bits_in_base32_and_reads_back() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut seen = HashSet::new();
        let mut symbols = vec![HashSet::new(); CODE];
        for _ in 0..1000 {
            let key = TokenKey::random(&mut rng);
            let text = key.as_str().to_owned();
            assert_eq!(text.parse(), Ok(key), "{text}");
            for (place, symbol) in symbols.iter_mut().zip(text.bytes().skip(3)) {
                place.insert(symbol);
            }
            assert!(seen.insert(text));
        }
        let counts: Vec<usize> = symbols.iter().map(HashSet::len).collect();
        // 25 characters of five bits and one of the three that are left
        assert_eq!(counts[..25], [32; 25]);
        assert_eq!(counts[25], 8);
    }

    #[rstest]
    #[case::short("tk_abcdefghijklmnopqrstuvwxy")]
    #[case::long("tk_abcdefghijklmnopqrstuvwxyz2")]
    #[case::upper_case("tk_Abcdefghijklmnopqrstuvwxyz")]
    #[case::other_digit("tk_1bcdefghijklmnopqrstuvwxyz")]
    #[case::other_name("r_abcdefghijklmnopqrstuvwxyz")]
    #[case::path("tk_../../../../../../../../../")]
    fn a_text_of_another_shape_is_no_key(#[case] text: &str) {
        assert_eq!(text.parse::<TokenKey>(), Err(NameError("tk_")));
    }

    #[test]
    fn a_key_is_not_shown_and_a_reservation_is() {
        let mut rng = StdRng::seed_from_u64(2);
        let key = TokenKey::random(&mut rng);
        assert!(!format!("{key:?}").contains(key.as_str()));
        let id = ReservationId::random(&mut rng);
        assert_eq!(id.to_string().len(), 28);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<ReservationId>(&json).unwrap(), id);
    }
}
