//! Whatever the cuts, the order and the moment of the end.

use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    tests::{Script, mk_chunk, mk_headers, mk_response, mk_response_chunk},
    *,
};

/// Cuts `text` at the given places; may give empty pieces.
fn cut<'a>(text: &'a str, places: &[Index]) -> Vec<&'a str> {
    let mut ends: Vec<_> = places
        .iter()
        .map(|place| place.index(text.len() + 1))
        .collect();
    ends.push(text.len());
    ends.sort_unstable();
    let mut pieces = Vec::new();
    let mut start = 0;
    for end in ends {
        pieces.push(text.get(start..end).unwrap());
        start = end;
    }
    pieces
}

/// Bytes given back in a script's words, and how often the end was said.
fn echoed(words: &[String], side: &str) -> (String, usize) {
    let mut text = String::new();
    let mut ends = 0;
    for word in words
        .iter()
        .filter_map(|word| word.strip_prefix(side)?.strip_prefix("body "))
    {
        let (quoted, end) = word
            .strip_suffix(" end")
            .map_or((word, 0), |quoted| (quoted, 1));
        // Of plain ASCII, Rust's notation is JSON.
        text.push_str(&serde_json::from_str::<String>(quoted).unwrap());
        ends += end;
    }
    (text, ends)
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    OnTheLast,
    Empty,
    Trailers,
}

fn inputs(pieces: &[&str], ending: Ending) -> Vec<Input> {
    let last = pieces.len() - 1;
    let at_last = |index| matches!(ending, Ending::OnTheLast) && index == last;
    let mut inputs: Vec<_> = pieces
        .iter()
        .enumerate()
        .map(|(index, piece)| mk_chunk(piece, at_last(index)))
        .collect();
    match ending {
        Ending::OnTheLast => {}
        Ending::Empty => inputs.push(mk_chunk("", true)),
        Ending::Trailers => inputs.push(Input::RequestTrailers),
    }
    inputs
}

proptest! {
    #[test]
    fn any_cut_gives_headers_first_then_the_same_bytes_and_one_end(
        filler in "[a-z]{0,200}",
        repeats in 1_usize..800,
        places in vec(any::<Index>(), 0..12),
        ending in prop_oneof![Just(Ending::OnTheLast), Just(Ending::Empty), Just(Ending::Trailers)],
        known in any::<bool>(),
    ) {
        let body = format!("{{'model':'m','x':'{}'}}", filler.repeat(repeats)).replace('\'', "\"");
        let path = if known { "/v1/completions" } else { "/v1/files" };
        let mut script = Script::new();
        let mut words = script.on(mk_headers(path, Modes::both(BodyMode::FullDuplexStreamed)));
        for input in inputs(&cut(&body, &places), ending) {
            words.extend(script.on(input));
        }
        prop_assert_eq!(&words[0], "headers pick");
        let (text, ends) = echoed(&words, "");
prop_assert!(text == body, "the bytes differ");
        let by_trailers = words.iter().filter(|word| *word == "trailers").count();
        prop_assert_eq!(ends + by_trailers, 1);
        prop_assert_eq!(by_trailers == 1, matches!(ending, Ending::Trailers));
        prop_assert_eq!(script.in_flight(), vec![1, 0]);
    }

    #[test]
    fn the_place_is_freed_once_wherever_the_stream_ends(
        stop in 0_usize..12,
        early in 0_usize..8,
        drain in any::<bool>(),
        dropped in any::<bool>(),
    ) {
        let (head, tail) = r#"{"model":"m"}"#.split_at(4);
        let mut all = vec![
            mk_headers("/v1/completions", Modes::both(BodyMode::FullDuplexStreamed)),
            mk_chunk(head, false),
            mk_chunk(tail, false),
            mk_chunk("", true),
        ];
        let at = early.min(all.len()).max(1);
        let mut response = vec![mk_response(false), mk_response_chunk("a", false), mk_response_chunk("", true)];
        // A response may come before, within or after the request.
        while let Some(input) = response.pop() {
            all.insert(at, input);
        }
        let mut script = Script::new();
        for input in all.into_iter().take(stop) {
            script.on(input);
        }
        prop_assert!(script.in_flight()[0] <= 1);
        if !dropped {
            script.on(if drain { Input::Drain } else { Input::PeerClosed });
            prop_assert_eq!(script.in_flight(), vec![0, 0]);
        }
        let snapshot = std::mem::take(&mut script.snapshot);
        drop(script);
        prop_assert_eq!(snapshot.members()[0].endpoint.load().in_flight(), 0);
    }

    #[test]
    fn no_order_of_messages_makes_it_panic_or_speak_after_its_close(order in vec(0_usize..9, 0..20), mode in 0_usize..5) {
        let modes = [
            BodyMode::None, BodyMode::Streamed, BodyMode::Buffered, BodyMode::BufferedPartial, BodyMode::FullDuplexStreamed,
        ];
        let mut script = Script::new();
        let mut closed = false;
        for kind in order {
            let words = script.on(match kind {
                0 => mk_headers("/v1/completions", Modes::both(modes[mode])),
                1 => mk_chunk(r#"{"model":"m"}"#, false),
                2 => mk_chunk("", true),
                3 => Input::RequestTrailers,
                4 => mk_response(false),
                5 => mk_response_chunk("x", false),
                6 => mk_response_chunk("", true),
                7 => Input::ResponseTrailers,
                _ => Input::Timer,
            });
            prop_assert!(!closed || words.is_empty());
            closed |= words.iter().any(|word| word.starts_with("close"));
        }
    }
}
