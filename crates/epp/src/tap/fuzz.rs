//! Any bytes as a response's body.

use bytes::Bytes;

use super::{ResponseTap, Usage};
use crate::fuzz::{Choices, cut};

const MODEL: &str = "the client's \"own\" name";

pub(crate) fn run(data: &[u8]) {
    let mut choices = Choices::new(data);
    let restores = choices.flag();
    let sizes = choices.take(4);
    let body = choices.rest();
    let whole = follow(restores, [body].into_iter());
    if !restores {
        assert!(whole.0 == body, "the bytes differ");
    }
    for sizes in [sizes, &[]] {
        let parts = follow(restores, cut(body, sizes));
        assert_eq!(parts.1, whole.1, "cut by {sizes:?}");
        assert_eq!(
            parts.0.escape_ascii().to_string(),
            whole.0.escape_ascii().to_string(),
            "cut by {sizes:?}"
        );
    }
}

/// What goes on, and what the response said.
fn follow<'a>(restores: bool, parts: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Usage>) {
    let mut tap = if restores {
        ResponseTap::restoring(MODEL)
    } else {
        ResponseTap::default()
    };
    let mut output = Vec::new();
    for part in parts {
        let chunk = Bytes::copy_from_slice(part);
        output.extend(tap.on_chunk(chunk, false).concat());
    }
    output.extend(tap.on_chunk(Bytes::new(), true).concat());
    (output, tap.finish())
}
