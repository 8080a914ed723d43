//! The text of a file; pure.

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use foreign_text::{Limits, MAX_MESSAGE, clipped, read};
use scheduling::{EndpointId, Member};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    engine::engine,
    file::{FileError, MAX_FILE},
};

/// Longest name and namespace, as in Kubernetes.
const MAX_NAME: usize = 253;

/// Odd entries that are reported one by one: enough to see what is wrong with the file.
pub(super) const MAX_ODD: usize = 100;

/// Longest part of a name in a report, in bytes.
const MAX_REPORTED: usize = 128;

/// The limits of the largest file. Labels that many endpoints share may be an alias.
const LIMITS: Limits = Limits::of_text(MAX_FILE);

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entries {
    pub(super) members: Vec<Member>,
    /// The first of them, at most [`MAX_ODD`].
    pub(super) odd: Vec<OddEntry>,
    /// How many more there are.
    pub(super) more_odd: usize,
}

/// An entry that is no member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OddEntry {
    /// `endpoints[3] (name)`.
    pub(super) name: String,
    pub(super) error: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map with the list `endpoints`")]
struct RawFile {
    endpoints: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a map with `name`, `address` and `port`"
)]
struct RawEntry {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    address: String,
    /// A number or its text.
    port: Value,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

// === impl Entries ===

impl Entries {
    /// Reads YAML, of which JSON is a part.
    ///
    /// # Errors
    /// [`FileError`] when the whole is unusable: not YAML, no `endpoints`, or no good entry in a list that has entries.
    pub(super) fn parse(content: &[u8]) -> Result<Self, FileError> {
        let RawFile { endpoints } =
            read(content, LIMITS).map_err(|error| FileError::Malformed(error.to_string()))?;
        let entries = endpoints.len();
        let (mut members, mut odd, mut more_odd) = (Vec::new(), Vec::new(), 0);
        let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
        for (index, value) in endpoints.into_iter().enumerate() {
            let name = value.get("name").and_then(Value::as_str).map(str::to_owned);
            let member = mk_member(value).and_then(|member: Member| {
                let EndpointId { namespace, pod, .. } = &member.id;
                if !names.insert(Arc::clone(&member.id.uid)) {
                    Err(format!("{namespace}/{pod} is there already"))
                } else if !addresses.insert(member.address) {
                    Err(format!("{} is there already", member.address))
                } else {
                    Ok(member)
                }
            });
            match member {
                Ok(member) => members.push(member),
                Err(_) if odd.len() == MAX_ODD => more_odd += 1,
                Err(error) => odd.push(OddEntry {
                    name: match name {
                        Some(name) => {
                            format!("endpoints[{index}] ({})", clipped(name, MAX_REPORTED))
                        }
                        None => format!("endpoints[{index}]"),
                    },
                    error,
                }),
            }
        }
        match odd.first() {
            Some(OddEntry { name, error }) if members.is_empty() => Err(FileError::NoUsableEntry {
                entries,
                first: format!("{name}: {error}"),
            }),
            _ => Ok(Self {
                members,
                odd,
                more_odd,
            }),
        }
    }
}

/// The member of one entry, or what is wrong with it.
fn mk_member(value: Value) -> Result<Member, String> {
    let RawEntry {
        name,
        namespace,
        address,
        port,
        labels,
    } = serde_json::from_value(value).map_err(|error| clipped(error.to_string(), MAX_MESSAGE))?;
    let namespace = namespace.as_deref().unwrap_or("default");
    check_name("name", &name)?;
    check_name("namespace", namespace)?;
    let labels = labels.unwrap_or_default();
    let engine = engine(|key| labels.get(key).map(String::as_str)).into();
    Ok(Member {
        address: SocketAddr::new(parse_address(&address)?, parse_port(&port)?),
        engine,
        labels: Arc::new(
            labels
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        ),
        id: EndpointId {
            uid: format!("{namespace}/{name}").into(),
            namespace: namespace.into(),
            pod: name.into(),
            rank: 0,
        },
    })
}

/// Names stand in metrics, logs and `namespace/name`.
fn check_name(field: &str, name: &str) -> Result<(), String> {
    let bad = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > MAX_NAME || name.contains(bad) {
        let name = clipped(name.to_owned(), MAX_REPORTED);
        return Err(format!(
            "{field} {name:?} is no name: expected 1 to {MAX_NAME} bytes without spaces and slashes"
        ));
    }
    Ok(())
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let address = text.parse().ok().filter(|address: &IpAddr| {
        let nowhere = address.is_unspecified() || address.is_multicast();
        !nowhere
    });
    address.ok_or_else(|| {
        let text = clipped(text.to_owned(), MAX_REPORTED);
        format!(
            "address {text:?} is no IP address of a host: expected one such as 10.0.0.1 or fd00::1"
        )
    })
}

fn parse_port(value: &Value) -> Result<u16, String> {
    let port = match value {
        Value::Number(number) => number
            .as_u64()
            .and_then(|number| u16::try_from(number).ok()),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    port.filter(|port| *port != 0)
        .ok_or_else(|| "port is not right: expected a number from 1 to 65535".to_owned())
}
