//! Names that are no authority of a URI, and what they are read as.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{
    fmt::Display,
    sync::atomic::{AtomicBool, Ordering},
};

use http::uri::Authority;
use tracing::info;

/// The most bytes of a name in the log.
const LOGGED: usize = 256;

/// What the log has of the names of this process.
pub(crate) static FIRST_NAMES: FirstNames = FirstNames::new();

/// What becomes of a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It is an authority as it is.
    Valid,
    /// It is no authority, and is read as this one: as many bytes, each with a Huffman code as long as that of the byte it stands
    /// for.
    ReadAs(Vec<u8>),
    /// It is no authority, and there are no such bytes: the server refuses it.
    Refused,
}

/// Whether the log has a line about a name, for each judgement that is logged.
#[derive(Debug)]
pub(crate) struct FirstNames {
    read_as: AtomicBool,
    refused: AtomicBool,
}

// === impl FirstNames ===

impl FirstNames {
    const fn new() -> Self {
        Self {
            read_as: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    /// Logs the first name that is read as another, and the first one that is refused.
    pub(crate) fn log(&self, name: &[u8], judgement: &Judgement) {
        match judgement {
            Judgement::ReadAs(read_as) if is_first(&self.read_as) => info!(
                authority = %shown(name),
                read_as = %shown(read_as),
                "a caller sends an HTTP/2 authority that no URI may have, such as the name of an Istio cluster: it is read with \
                 other characters (logged once)",
            ),
            Judgement::Refused if is_first(&self.refused) => info!(
                authority = %shown(name),
                "a caller sends an HTTP/2 authority that no URI may have and that cannot be read with other characters: its \
                 requests are refused (logged once)",
            ),
            Judgement::Valid | Judgement::ReadAs(_) | Judgement::Refused => {}
        }
    }
}

/// Whether nothing has been logged yet. Then something is now.
fn is_first(logged: &AtomicBool) -> bool {
    // a swap takes the cache line from all other threads, and calls may come with such names all the time
    !logged.load(Ordering::Relaxed) && !logged.swap(true, Ordering::Relaxed)
}

/// The beginning of the name, with escapes for all that is not printable ASCII.
fn shown(name: &[u8]) -> impl Display {
    name.get(..LOGGED).unwrap_or(name).escape_ascii()
}

/// What becomes of this name.
pub(crate) fn judge(name: &[u8]) -> Judgement {
    if is_uri_authority(name) {
        return Judgement::Valid;
    }
    // A name may be one of a host and a port except for some bytes. Only where it is not, its structure goes as well.
    let mut read_as = name.to_vec();
    for exchanged in [with_structure, without_structure] {
        for byte in &mut read_as {
            *byte = exchanged(*byte);
        }
        if is_uri_authority(&read_as) {
            return Judgement::ReadAs(read_as);
        }
    }
    Judgement::Refused
}

/// The HTTP/2 server judges by the same function.
fn is_uri_authority(name: &[u8]) -> bool {
    Authority::try_from(name).is_ok()
}

/// Another byte in place of one that an authority may not have anywhere.
fn with_structure(byte: u8) -> u8 {
    match byte {
        b'|' => b'+',
        b' ' | b'/' => b'-',
        b'"' | b'?' => b'!',
        _ => byte,
    }
}

/// Another byte in place of one that an authority may not have anywhere, or only in some places.
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
    use std::{fs, sync::Arc};

    use rstest::rstest;
    use tempfile::NamedTempFile;

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
        assert_eq!(judge(name.as_bytes()), Judgement::ReadAs(read_as.into()));
    }

    #[rstest]
    #[case::name("llama-epp.llm.svc")]
    #[case::name_with_port("llama-epp.llm.svc:9002")]
    #[case::underscore("envoy_cluster")]
    #[case::address("10.0.0.1:9002")]
    #[case::address_in_brackets("[fe80::1]:9002")]
    #[case::user("a%2f@epp")]
    fn authorities_are_valid(#[case] name: &str) {
        assert_eq!(judge(name.as_bytes()), Judgement::Valid);
    }

    #[rstest]
    #[case::empty("")]
    #[case::no_byte_of_the_same_length("a{b}")]
    #[case::fragment("epp#1|x")]
    #[case::not_ascii("\u{e9}pp|9002")]
    fn names_for_which_there_are_no_bytes_are_refused(#[case] name: &str) {
        assert_eq!(judge(name.as_bytes()), Judgement::Refused);
    }

    /// What `FirstNames` logs of these names, in this order.
    fn logged(names: &[&[u8]]) -> String {
        let log = NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Arc::new(log.reopen().unwrap()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let first_names = FirstNames::new();
            for name in names {
                first_names.log(name, &judge(name));
            }
        });
        fs::read_to_string(log.path()).unwrap()
    }

    #[test]
    fn the_first_name_that_is_read_as_another_is_logged() {
        let log = logged(&[b"epp.llm.svc", b"a|\"1", b"a|2"]);
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(r#"authority=a|\"1 read_as=a+!1"#), "{log}");
        assert!(
            log.contains("INFO") && log.contains("(logged once)"),
            "{log}"
        );
    }

    #[test]
    fn the_first_refused_name_is_logged_besides() {
        let log = logged(&[b"a|1", b"epp#1|\n\x1b[0m", b"a{b}"]);
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(log.contains(r"authority=epp#1|\n\x1b[0m"), "{log}");
        assert!(log.contains("its requests are refused"), "{log}");
    }

    #[test]
    fn a_long_name_is_cut_in_the_log() {
        let name = [b"a|".repeat(127), b"a|zz".repeat(10)].concat();
        let log = logged(&[&name]);
        let (name, read_as) = ("a|".repeat(128), "a+".repeat(128));
        let fields = format!(" authority={name} read_as={read_as}\n");
        assert!(log.ends_with(&fields), "{log}");
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
