//! Ports that model servers serve on.

use std::str::FromStr;

/// Most target ports of a pool, as in its schema.
pub(crate) const MAX_PORTS: usize = 8;

/// 1 to 8 different ports, in their order, written `8000` or `8000,8001`. The place of a port is its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPorts(Vec<u16>);

/// A text that is no [`TargetPorts`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetPortsError {
    /// Neither a number nor in range.
    #[error(
        "{0:?} is no port: write 1 to 8 numbers from 1 to 65535 with commas, such as 8000,8001"
    )]
    NoPort(String),
    /// Two ranks cannot share a port.
    #[error("port {0} is there twice: name each once, such as 8000,8001")]
    Twice(u16),
    /// Beyond 8.
    #[error("{0} ports are too many: a pod has at most 8")]
    TooMany(usize),
}

// === impl TargetPorts ===

impl TargetPorts {
    pub(crate) fn into_vec(self) -> Vec<u16> {
        self.0
    }
}

impl FromStr for TargetPorts {
    type Err = TargetPortsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut ports = Vec::new();
        for word in text.split(',').map(str::trim) {
            let port = word.parse().ok().filter(|port| *port != 0);
            let port = port.ok_or_else(|| TargetPortsError::NoPort(word.to_owned()))?;
            if ports.contains(&port) {
                return Err(TargetPortsError::Twice(port));
            }
            ports.push(port);
        }
        if ports.len() > MAX_PORTS {
            return Err(TargetPortsError::TooMany(ports.len()));
        }
        Ok(Self(ports))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("8000", Some(&[8000][..]))]
    #[case("8001, 8000", Some(&[8001, 8000][..]))]
    #[case("1,2,3,4,5,6,7,8", Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]))]
    #[case("1,2,3,4,5,6,7,8,9", None)]
    #[case("8000,8000", None)]
    #[case("", None)]
    #[case("8000,", None)]
    #[case("0", None)]
    #[case("65536", None)]
    #[case("http", None)]
    fn ports_are_one_to_eight_different_numbers(#[case] text: &str, #[case] ports: Option<&[u16]>) {
        let parsed = text.parse().ok().map(TargetPorts::into_vec);
        assert_eq!(parsed.as_deref(), ports);
    }
}
