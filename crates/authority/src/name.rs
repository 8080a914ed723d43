//! Names that are no authority of a URI, and what they are read as.

use std::sync::atomic::{AtomicBool, Ordering};

use http::uri::Authority;
use tracing::info;

/// Bytes of a name in the log.
const LOGGED: usize = 256;

/// Whether the log has a line about such a name.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// What the name is read as: as many bytes, each with a Huffman code as long as that of the byte it stands for. None where
/// the name is an authority as it is, or there are no such bytes.
pub(crate) fn readable(name: &[u8]) -> Option<Vec<u8>> {
    if is_authority(name) {
        return None;
    }
    // A name may be one of a host and a port except for some bytes. Only where it is not, its structure goes as well.
    [with_structure, without_structure]
        .into_iter()
        .map(|exchanged| name.iter().copied().map(exchanged).collect::<Vec<u8>>())
        .find(|read_as| is_authority(read_as))
}

/// Logs the first such name of this process.
pub(crate) fn report(name: &[u8], read_as: &[u8]) {
    if REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let shown = |name: &[u8]| name.iter().take(LOGGED).copied().collect::<Vec<u8>>();
    info!(
        authority = %shown(name).escape_ascii(),
        read_as = %shown(read_as).escape_ascii(),
        "a caller sends an HTTP/2 authority that no URI may have, such as the name of an Istio cluster: it is read with other \
         characters (logged once)",
    );
}

/// The judge that the HTTP/2 server asks, too.
fn is_authority(name: &[u8]) -> bool {
    Authority::try_from(name).is_ok()
}

/// Bytes that an authority may not have anywhere.
fn with_structure(byte: u8) -> u8 {
    match byte {
        b'|' => b'+',
        b' ' | b'/' => b'-',
        b'"' | b'?' => b'!',
        _ => byte,
    }
}

/// Bytes that an authority may have in some places alone, too.
fn without_structure(byte: u8) -> u8 {
    match byte {
        b'%' => b'-',
        b':' => b'x',
        b'@' | b'[' | b']' => b'~',
        _ => with_structure(byte),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::huffman;

    #[rstest]
    #[case::istio(
        "outbound|9002||llama-epp.llm.svc.cluster.local",
        "outbound+9002++llama-epp.llm.svc.cluster.local"
    )]
    #[case::istio_subset(
        "outbound|9002|v1|epp.llm.svc:9002",
        "outbound+9002+v1+epp.llm.svc:9002"
    )]
    #[case::path("extension/llm/auth-server", "extension-llm-auth-server")]
    #[case::several_colons("llm/epp:grpc:9002", "llm-eppxgrpcx9002")]
    #[case::percent("a%2fb", "a-2fb")]
    #[case::brackets("outbound|[::1]|[a", "outbound+~xx1~+~a")]
    #[case::user_without_host("a@", "a~")]
    fn other_names_are_read_with_other_bytes(#[case] name: &str, #[case] read_as: &str) {
        let found = readable(name.as_bytes());
        assert_eq!(found.as_deref(), Some(read_as.as_bytes()));
    }

    #[rstest]
    #[case::name("llama-epp.llm.svc")]
    #[case::name_with_port("llama-epp.llm.svc:9002")]
    #[case::underscore("envoy_cluster")]
    #[case::address("10.0.0.1:9002")]
    #[case::address_in_brackets("[fe80::1]:9002")]
    #[case::user("a%2f@epp")]
    #[case::empty("")]
    #[case::no_byte_of_the_same_length("a{b}")]
    #[case::not_ascii("\u{e9}pp|9002")]
    fn authorities_and_what_cannot_be_one_stay(#[case] name: &str) {
        assert_eq!(readable(name.as_bytes()), None);
    }

    #[test]
    fn a_byte_has_a_code_as_long_as_the_one_it_stands_for() {
        for byte in 0..=u8::MAX {
            let bits = huffman::bits(byte);
            assert_eq!(huffman::bits(with_structure(byte)), bits, "{byte}");
            assert_eq!(huffman::bits(without_structure(byte)), bits, "{byte}");
        }
    }
}
