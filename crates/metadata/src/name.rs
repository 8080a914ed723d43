//! Names from the wire, checked before anything is stored under them.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    marker::PhantomData,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    str::FromStr,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// What keys load and cache: the `cluster` of a rule, or `<namespace>/<pool>`. 1 to 256 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cluster(Arc<str>);

/// Names a charge. 1 to 128 visible ASCII characters. Up to 38 of them, so a UUID too, are stored inline: without an
/// allocation.
#[derive(Clone)]
pub struct RequestId(Text);

/// Who reports: an endpoint picker. 1 to 128 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(Arc<str>);

/// A model server: an IP address, with its port where a server has several endpoints. Written in one way, whichever way
/// it was read: an IPv4 address in IPv6 form (`::ffff:10.0.0.1`) is the IPv4 address. One with a scope (`fe80::1%2`) is
/// refused, for it means something on one machine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    ip: IpAddr,
    port: Option<u16>,
}

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Empty, or longer than the bound.
    #[error("expected 1 to {0} bytes")]
    Length(usize),
    /// A cluster with control characters.
    #[error("expected no control characters")]
    Control,
    /// An id with other characters.
    #[error("expected visible ASCII characters")]
    Visible,
    /// No address.
    #[error(
        "expected an IP address, or one with a port: 10.0.0.1, 10.0.0.1:8000, fd00::1, [fd00::1]:8000"
    )]
    Address,
}

const MAX_CLUSTER: usize = 256;
const MAX_ID: usize = 128;
/// A UUID has 36 characters; with its length and the tag the id takes 40 bytes.
const SHORT: usize = 38;

/// Visible ASCII characters.
#[derive(Clone)]
enum Text {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Arc<str>),
}

/// Parses a name from where it stands in the text that is read, which is not copied first.
struct Parsed<T>(PhantomData<T>, &'static str);

fn cluster(text: &str) -> Result<(), NameError> {
    if text.is_empty() || text.len() > MAX_CLUSTER {
        return Err(NameError::Length(MAX_CLUSTER));
    }
    if text.chars().any(char::is_control) {
        return Err(NameError::Control);
    }
    Ok(())
}

fn id(text: &str) -> Result<(), NameError> {
    if text.is_empty() || text.len() > MAX_ID {
        return Err(NameError::Length(MAX_ID));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(NameError::Visible);
    }
    Ok(())
}

/// A checked text: all of them behave alike on the wire.
macro_rules! name {
    ($name:ident, $check:ident, $max:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                self.0.as_ref()
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                $check(text)?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Parsed(PhantomData, "a name"))
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "minLength": 1, "maxLength": $max })
            }
        }
    };
}

name!(Cluster, cluster, MAX_CLUSTER);
name!(RequestId, id, MAX_ID);
name!(Instance, id, MAX_ID);

// === impl RequestId ===

impl RequestId {
    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Text::Long(text) => text.as_bytes(),
        }
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for RequestId {}

impl PartialOrd for RequestId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RequestId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.bytes());
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestId").field(&self.as_str()).finish()
    }
}

// === impl Text ===

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let mut bytes = [0; SHORT];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(short), Ok(len)) => {
                short.copy_from_slice(text.as_bytes());
                Self::Short { len, bytes }
            }
            _ => Self::Long(text.into()),
        }
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        match self {
            // ASCII, so always text.
            Self::Short { len, bytes } => bytes
                .get(..usize::from(*len))
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .unwrap_or_default(),
            Self::Long(text) => text,
        }
    }
}

// === impl Parsed ===

impl<T: FromStr<Err = NameError>> de::Visitor<'_> for Parsed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

// === impl Address ===

impl Address {
    /// The address without its port.
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// The port, where one is named.
    pub fn port(self) -> Option<u16> {
        self.port
    }
}

/// Without the scope of an IPv6 address.
impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self {
            ip: address.ip().to_canonical(),
            port: Some(address.port()),
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self {
            ip: ip.to_canonical(),
            port: None,
        }
    }
}

impl FromStr for Address {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        // The usual form first: an IPv4 address with its port.
        if let Ok(address) = text.parse::<SocketAddrV4>() {
            return Ok(SocketAddr::from(address).into());
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(ip.into());
        }
        let address = text.parse::<SocketAddr>();
        let address = address.ok().filter(|_| !text.contains('%'));
        address.map(Self::from).ok_or(NameError::Address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Parsed(PhantomData, "an IP address, or one with a port"))
    }
}

impl JsonSchema for Address {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "IP address, or one with a port",
            "examples": ["10.0.0.1", "10.0.0.1:8000", "[fd00::1]:8000"],
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.0.0.1", "10.0.0.1")]
    #[case("10.0.0.1:8000", "10.0.0.1:8000")]
    #[case("FD00:0:0::1", "fd00::1")]
    #[case("[fd00:0::1]:80", "[fd00::1]:80")]
    #[case("::ffff:10.0.0.1", "10.0.0.1")]
    #[case("[::ffff:a00:1]:80", "10.0.0.1:80")]
    fn an_address_is_written_in_one_way(#[case] text: &str, #[case] written: &str) {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), written);
    }

    #[rstest]
    #[case("")]
    #[case("junk")]
    #[case("10.0.0.1:")]
    #[case("10.0.0.1:70000")]
    #[case("[10.0.0.1]:80")]
    #[case("pod-1:8000")]
    #[case("fe80::1%2")]
    #[case("[fe80::1%2]:80")]
    #[case("[fe80::1%0]:80")]
    #[case(" 10.0.0.1")]
    fn what_is_no_address_is_refused(#[case] text: &str) {
        assert_eq!(text.parse::<Address>(), Err(NameError::Address));
    }

    #[test]
    fn names_are_bounded() {
        let cluster = |text: &str| text.parse::<Cluster>().map(|_| ());
        let id = |text: &str| text.parse::<RequestId>().map(|_| ());
        assert_eq!(cluster(&"c".repeat(256)), Ok(()));
        assert_eq!(cluster(&"c".repeat(257)), Err(NameError::Length(256)));
        assert_eq!(cluster("prod / qwén"), Ok(()));
        assert_eq!(cluster("a\u{7}b"), Err(NameError::Control));
        assert_eq!(cluster(""), Err(NameError::Length(256)));
        assert_eq!(id(&"r".repeat(128)), Ok(()));
        assert_eq!(id(&"r".repeat(129)), Err(NameError::Length(128)));
        assert_eq!(id("a b"), Err(NameError::Visible));
        assert_eq!(id("é"), Err(NameError::Visible));
        assert_eq!(id(""), Err(NameError::Length(128)));
    }

    #[rstest]
    #[case(1)]
    #[case(36)]
    #[case(38)]
    #[case(39)]
    #[case(128)]
    fn an_id_of_any_length_is_read_as_written(#[case] length: usize) {
        let text: String = ('!'..='~').cycle().take(length).collect();
        let json = serde_json::to_string(&text).unwrap();
        let id: RequestId = serde_json::from_str(&json).unwrap();
        assert_eq!(id.as_str(), text);
        assert_eq!(serde_json::to_string(&id).unwrap(), json);
        assert_ne!(id, text.replacen('!', "?", 1).parse().unwrap());
    }
}
