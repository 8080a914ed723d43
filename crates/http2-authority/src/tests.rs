mod encoder;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::HeaderMap;
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::{Index, select},
};
use rstest::rstest;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::timeout,
};

use self::encoder::{Encoder, Form, Literal, NameForm};
use crate::{
    AnyAuthority, MAX_FRAMES, MAX_VALUE,
    fuzz::fuzz_connection,
    name::{Judgement, judge},
    test_util::{frame, request},
    walk::PREFACE,
};

const LIMIT: Duration = Duration::from_secs(1);
/// Names that are authorities, and others that are read as some.
const AUTHORITIES: [&str; 6] = [
    "llama-epp.llm.svc",
    "[fe80::1]:9002",
    "outbound|9002||llama-epp.llm.svc.cluster.local",
    "outbound|8080|v1|center.llm.svc.cluster.local",
    "extension/llm/auth-server",
    "llm/epp:grpc:9002",
];
const AUTHORITY: &str = ":authority";
/// Names of fields that are no pseudo-headers.
const NAMES: [&str; 3] = ["x-request-id", "user-agent", "authority"];

/// What a client sends.
#[derive(Clone, Debug)]
struct Call {
    authority: &'static str,
    /// The forms of the method, the scheme, the authority and the path.
    forms: [Form; 4],
    fields: Vec<(&'static str, String, Form)>,
    /// Where its header block is cut into frames.
    cuts: Vec<Index>,
    padding: Option<u8>,
    priority: bool,
    body: Option<usize>,
    /// A new size of the dynamic table, which precedes its fields.
    resize: Option<usize>,
}

/// What a server reads of it.
type Seen = (String, String, HeaderMap);

/// A connection on which these bytes come, in pieces of these sizes over and over.
struct Script {
    bytes: Vec<u8>,
    at: usize,
    sizes: Vec<usize>,
    turn: usize,
    /// The next piece is not there yet. Each other poll finds it so.
    late: bool,
    /// Whether the connection ends after the bytes. If not, nothing more comes.
    ends: bool,
}

// === impl Call ===

impl Call {
    fn path(nth: usize) -> String {
        format!("/{nth}")
    }

    /// The frames of the call with this number.
    fn frames(&self, nth: usize, encoder: &mut Encoder) -> Vec<u8> {
        let stream = u32::try_from(2 * nth + 1).unwrap();
        let mut block = Vec::new();
        if let Some(size) = self.resize {
            encoder.resize(&mut block, size);
        }
        let path = Self::path(nth);
        let own = [
            (":method", "POST"),
            (":scheme", "http"),
            (AUTHORITY, self.authority),
            (":path", &*path),
        ];
        for ((name, value), form) in own.into_iter().zip(self.forms) {
            encoder.field(&mut block, name, value, form);
        }
        for (name, value, form) in &self.fields {
            encoder.field(&mut block, name, value, *form);
        }
        let mut cuts: Vec<usize> = self
            .cuts
            .iter()
            .map(|cut| cut.index(block.len() + 1))
            .collect();
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([block.len()]);
        let begins = [0].into_iter().chain(cuts.iter().copied());
        let mut frames = Vec::new();
        for (index, (begin, end)) in begins.zip(ends).enumerate() {
            let mut flags = if index == cuts.len() { 0x4 } else { 0 };
            let fragment = &block[begin..end];
            if index > 0 {
                frames.extend(frame(9, flags, stream, fragment));
                continue;
            }
            let mut payload = Vec::new();
            if let Some(padding) = self.padding {
                flags |= 0x8;
                payload.push(padding);
            }
            if self.priority {
                flags |= 0x20;
                payload.extend([0, 0, 0, 0, 15]);
            }
            payload.extend_from_slice(fragment);
            payload.extend(vec![0; self.padding.unwrap_or(0).into()]);
            if self.body.is_none() {
                flags |= 0x1;
            }
            frames.extend(frame(1, flags, stream, &payload));
        }
        if let Some(bytes) = self.body {
            // like the beginning of a frame with headers
            let body: Vec<u8> = [0, 0, 9, 1, 4, 0, 0, 0, 1]
                .into_iter()
                .cycle()
                .take(bytes)
                .collect();
            frames.extend(frame(0, 0x1, stream, &body));
        }
        frames
    }

    /// What a server is to read of the call with this number.
    fn wanted(&self, nth: usize) -> Seen {
        let authority = match judge(self.authority.as_bytes()) {
            Judgement::ReadAs(read_as) => read_as,
            Judgement::Valid | Judgement::Refused => self.authority.into(),
        };
        let mut headers = HeaderMap::new();
        for (name, value, _) in &self.fields {
            headers.append(*name, value.parse().unwrap());
        }
        (
            String::from_utf8(authority).unwrap(),
            Self::path(nth),
            headers,
        )
    }
}

/// The bytes of a client that makes these calls on one connection.
fn sent(calls: &[Call]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
    for (nth, call) in calls.iter().enumerate() {
        bytes.extend(call.frames(nth, &mut encoder));
    }
    bytes
}

// === impl Script ===

impl Script {
    fn new(bytes: &[u8], sizes: &[usize], ends: bool) -> Self {
        Self {
            bytes: bytes.to_vec(),
            at: 0,
            sizes: sizes.to_vec(),
            turn: 0,
            late: false,
            ends,
        }
    }
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.bytes.len() - self.at;
        if left == 0 && !self.ends {
            return Poll::Pending;
        }
        self.late = !self.late;
        if self.late {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let size = self.sizes[self.turn % self.sizes.len()];
        let (from, size) = (self.at, size.min(left).min(buf.remaining()));
        buf.put_slice(&self.bytes[from..from + size]);
        self.at += size;
        self.turn += 1;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

/// What of these bytes a server gets to read.
fn passed(bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut connection = AnyAuthority::new(Script::new(bytes, sizes, true));
    block_on(async {
        let mut read = Vec::new();
        connection.read_to_end(&mut read).await.unwrap();
        read
    })
}

/// What a real server reads of so many calls.
async fn served(bytes: &[u8], sizes: &[usize], calls: usize) -> Vec<Seen> {
    let connection = AnyAuthority::new(Script::new(bytes, sizes, false));
    let mut connection = h2::server::handshake(connection).await.unwrap();
    let (mut seen, mut open) = (Vec::new(), Vec::new());
    while seen.len() < calls {
        let next = timeout(LIMIT, connection.accept()).await;
        let next = next.unwrap_or_else(|_| panic!("{seen:?}: and no more"));
        let (request, reply) = next.unwrap().unwrap();
        let (head, body) = request.into_parts();
        let authority = head.uri.authority().unwrap().to_string();
        seen.push((authority, head.uri.path().to_owned(), head.headers));
        open.push((body, reply));
    }
    seen
}

prop_compose! {
    fn form()(
        by_number in any::<bool>(),
        literal in select(vec![Literal::Indexed, Literal::Indexed, Literal::Plain, Literal::Never]),
        name in select(vec![NameForm::Static, NameForm::Dynamic, NameForm::Text]),
        huffman_name in any::<bool>(),
        huffman_value in any::<bool>(),
    ) -> Form {
        Form { by_number, literal, name, huffman_name, huffman_value }
    }
}

fn field() -> impl Strategy<Value = (&'static str, String, Form)> {
    // the last is larger than the dynamic table
    let value =
        prop_oneof![3 => "[!-~]{0,40}", 3 => "[a|]", 1 => "[a-z|]{900,1300}", 1 => "[0-9]{4100}"];
    (select(&NAMES[..]), value, form())
}

prop_compose! {
    fn call()(
        authority in select(&AUTHORITIES[..]),
        forms in [form(), form(), form(), form()],
        fields in vec(field(), 0..4),
        cuts in vec(any::<Index>(), 0..4),
        padding in option::of(any::<u8>()),
        priority in any::<bool>(),
        body in option::of(0..100_usize),
        resize in option::weighted(0.1, select(vec![0, 60, 200, 4096])),
    ) -> Call {
        Call { authority, forms, fields, cuts, padding, priority, body, resize }
    }
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![1]),
        vec(1..80_usize, 1..5),
        vec(1..5000_usize, 1..5)
    ]
}

proptest! {
    // a piece of one byte at a time takes long without optimization
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// The encoder keeps a whole dynamic table, and so does the server: both would notice if one of the sizes were another.
    #[test]
    fn a_server_reads_all_that_was_sent_and_an_authority_that_it_accepts(
        calls in vec(call(), 1..12),
        sizes in sizes(),
    ) {
        let bytes = sent(&calls);
        let wanted: Vec<_> = calls.iter().enumerate().map(|(nth, call)| call.wanted(nth)).collect();
        let seen = block_on(served(&bytes, &sizes, calls.len()));
        prop_assert_eq!(seen, wanted);
    }

    #[test]
    fn calls_with_authorities_of_uris_pass_as_they_are(
        calls in vec(call(), 1..6),
        authority in select(&AUTHORITIES[..2]),
        sizes in sizes(),
    ) {
        let calls: Vec<Call> = calls.into_iter().map(|call| Call { authority, ..call }).collect();
        let bytes = sent(&calls);
        prop_assert_eq!(passed(&bytes, &sizes), bytes);
    }

    /// They may be malformed, or end early.
    #[test]
    fn changed_calls_break_no_promise(
        sizes in any::<[u8; 4]>(),
        calls in vec(call(), 1..6),
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        end in any::<Index>(),
    ) {
        let mut bytes = sent(&calls);
        for (at, byte) in changes {
            *at.get_mut(&mut bytes[..]) = byte;
        }
        bytes.truncate(end.index(bytes.len() + 1));
        fuzz_connection(&[&sizes, &bytes[..]].concat());
    }
}

#[test]
fn calls_after_another_preface_pass_as_they_are() {
    let call = request("/1");
    assert_ne!(passed(&call, &[7]), call, "with its preface it is read");
    for at in 0..PREFACE.len() {
        let mut bytes = call.clone();
        bytes[at] ^= 1;
        assert_eq!(passed(&bytes, &[7]), bytes, "byte {at} is another one");
    }
}

/// The head of a call whose authority has this length, without the authority.
fn begun(length: usize) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x01];
    encoder::integer(&mut block, 0, 7, length);
    [PREFACE, &frame(4, 0, 0, &[]), &frame(1, 0, 1, &block)].concat()
}

/// What a server can read of these bytes while no others come.
fn passed_for_now(bytes: &[u8]) -> Vec<u8> {
    let mut connection = AnyAuthority::new(Script::new(bytes, &[100], false));
    block_on(async {
        let mut read = Vec::new();
        while timeout(LIMIT, connection.read_buf(&mut read)).await.is_ok() {}
        read
    })
}

#[test]
fn a_value_that_does_not_end_is_held_back_within_bounds() {
    let begun = begun(MAX_VALUE);
    let part = frame(9, 0, 1, b"|");
    let before = begun.len() + part.len() - 1;
    let empty = frame(9, 0, 1, &[]);
    let mut bytes = [begun, part, empty.repeat(MAX_FRAMES - 1)].concat();
    assert_eq!(passed_for_now(&bytes), bytes[..before]);
    let (last, head) = empty.split_last().unwrap();
    bytes.extend(head);
    assert_eq!(passed_for_now(&bytes), bytes[..before]);
    bytes.push(*last);
    assert_eq!(passed_for_now(&bytes), bytes);
}

#[rstest]
#[case::one_byte_in_each(vec!["a", "|", "b", "|", "c", "|", "d", "e"], true)]
#[case::one_more(vec!["a", "|", "b", "|", "c", "|", "d", "e", "f"], false)]
#[case::empty_ones(vec!["a", "", "", "", "", "", "", "|b"], true)]
#[case::one_more_empty_one(vec!["a", "", "", "", "", "", "", "", "|b"], false)]
fn a_value_is_read_in_a_number_of_frames(#[case] parts: Vec<&str>, #[case] read: bool) {
    let sent = |parts: &[String]| {
        let last = parts.len() - 1;
        let frames = parts.iter().enumerate().map(|(nth, part)| {
            let flags = if nth == last { 0x4 } else { 0 };
            frame(9, flags, 1, part.as_bytes())
        });
        [begun(parts.concat().len()), frames.flatten().collect()].concat()
    };
    let exchanged: Vec<String> = parts.iter().map(|part| part.replace('|', "+")).collect();
    let parts: Vec<String> = parts.into_iter().map(str::to_owned).collect();
    let bytes = sent(&parts);
    let wanted = if read {
        sent(&exchanged)
    } else {
        bytes.clone()
    };
    assert_eq!(passed(&bytes, &[1]), wanted);
}

/// A block with two of them is malformed, so the server answers no such call.
#[test]
fn of_a_block_the_first_authority_is_read_and_no_other() {
    let block = |authorities: &[&[u8; 3]]| {
        let mut block = vec![0x83, 0x86, 0x84];
        for authority in authorities {
            block.extend([0x41, 3]);
            block.extend_from_slice(&authority[..]);
        }
        block
    };
    let calls = |first: [&[u8; 3]; 3], second: [&[u8; 3]; 1]| {
        let (first, second) = (block(&first), block(&second));
        let begin = [PREFACE, &frame(4, 0, 0, &[])].concat();
        [begin, frame(1, 0x5, 1, &first), frame(1, 0x5, 3, &second)].concat()
    };
    let bytes = calls([b"a|b", b"c|d", b"e|f"], [b"g|h"]);
    let wanted = calls([b"a+b", b"c|d", b"e|f"], [b"g+h"]);
    assert_eq!(passed(&bytes, &[64]), wanted);
}

#[test]
fn a_value_that_is_too_long_passes_and_the_next_one_is_read_with_other_bytes() {
    let long = "|".repeat(MAX_VALUE + 1);
    let mut bytes = begun(long.len());
    bytes.extend(frame(9, 0x4, 1, long.as_bytes()));
    let next = |authority: &[u8; 3]| {
        frame(
            1,
            0x5,
            3,
            &[&[0x83, 0x86, 0x84, 0x01, 3], &authority[..]].concat(),
        )
    };
    let wanted = [bytes.clone(), next(b"a+b")].concat();
    bytes.extend(next(b"a|b"));
    assert_eq!(passed(&bytes, &[64]), wanted);
}

#[test]
fn a_connection_that_ends_within_a_value_is_passed_to_its_end() {
    let bytes = [begun(20), frame(9, 0, 1, b"outbound|9")].concat();
    assert_eq!(passed(&bytes, &[5]), bytes);
}
