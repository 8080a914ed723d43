//! Changes of requests and responses, per mode.

use super::*;

const STREAMED_AHEAD: Modes = Modes {
    body_before_headers_reply: true,
    ..mk_modes(BodyMode::Streamed)
};

/// A script whose decision renames the model of [`BODY`].
fn mk_renaming() -> Script {
    let mut script = Script::new();
    let at = BODY.find("\"m\"").unwrap();
    script.edit.rewrite_model(at..at + 3, "other").unwrap();
    script
}

fn renamed() -> String {
    BODY.replace("\"m\"", "\"other\"")
}

/// The names that the edit of the decision changes, in the reply that has it.
fn changed_headers(script: &mut Script, input: Input) -> (Vec<(String, String)>, Vec<String>) {
    let outputs = script.exchange.on(input, NOW);
    let decided = outputs.into_iter().find_map(|output| match output {
        Output::Decide(_) => Some(script.answer()),
        _ => None,
    });
    let outputs = script.exchange.on(decided.unwrap(), NOW);
    let route = outputs.into_iter().find_map(|output| match output {
        Output::Reply(Reply::Headers(_, route) | Reply::Body { route, .. }) => route,
        _ => None,
    });
    let edit = route.unwrap().edit;
    let set = edit.headers_to_set().iter();
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        set.map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
        edit.headers_to_remove()
            .iter()
            .map(ToString::to_string)
            .collect(),
    )
}

#[test]
fn a_changed_body_is_streamed_in_its_parts() {
    let mut script = mk_renaming();
    script.on(mk_headers(CHAT, FDS));
    script.on(mk_chunk(piece(0, 12), false));
    assert_eq!(
        script.on(mk_chunk(piece(12, BODY.len()), true)),
        [
            "headers pick".to_owned(),
            r#"body "{\"model\":""#.to_owned(),
            r#"body "\"other\"""#.to_owned(),
            r#"body ",\"messages\":[]}" end"#.to_owned(),
        ]
    );
}

#[test]
fn a_changed_body_takes_the_place_of_its_first_part_in_streamed_mode() {
    let mut script = mk_renaming();
    script.on(mk_headers(CHAT, STREAMED_AHEAD));
    script.on(mk_chunk(piece(0, 12), false));
    assert_eq!(
        script.on(mk_chunk(piece(12, BODY.len()), true)),
        [
            "headers pick".to_owned(),
            format!("body ={:?}", renamed()),
            "body =\"\"".to_owned(),
        ]
    );
}

#[test]
fn a_changed_body_in_one_message_comes_with_the_pick() {
    let mut script = mk_renaming();
    script.on(mk_headers(CHAT, mk_modes(BodyMode::Buffered)));
    assert_eq!(
        script.on(mk_chunk(BODY, true)),
        [format!("body pick ={:?}", renamed())]
    );
}

/// Envoy answers 500 where the length does not fit in BUFFERED mode, and sets it itself in full-duplex mode.
#[rstest]
#[case(FDS, &[], &[])]
#[case(STREAMED_AHEAD, &[], &["content-length"])]
#[case(mk_modes(BodyMode::Buffered), &[("content-length", "31")], &[])]
fn the_length_of_a_changed_body_is_told_as_the_mode_needs(
    #[case] modes: Modes,
    #[case] set: &[(&str, &str)],
    #[case] removed: &[&str],
) {
    let mut script = mk_renaming();
    script.on(mk_headers(CHAT, modes));
    let (got_set, got_removed) = changed_headers(&mut script, mk_chunk(BODY, true));
    let got_set: Vec<_> = got_set
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        (got_set.as_slice(), got_removed.as_slice()),
        (
            set,
            &removed
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()[..]
        )
    );
    assert_eq!(renamed().len(), 31);
}

/// A script whose request is answered, and whose response names the model that the client did not ask for.
fn mk_restoring(mode: BodyMode) -> Script {
    let mut script = Script::new();
    script.restores = Some("mine");
    script.on(mk_headers(CHAT, mk_modes(mode)));
    script.on(mk_chunk(BODY, true));
    script.on(mk_response(false));
    script
}

#[test]
fn the_clients_model_is_put_back_however_the_response_is_cut() {
    let text = r#"{"model":"theirs","x":1}"#;
    let want = r#"{"model":"mine","x":1}"#;
    for at in 0..=text.len() {
        let mut script = mk_restoring(BodyMode::FullDuplexStreamed);
        let (head, tail) = text.split_at(at);
        let mut replies = script.on(mk_response_chunk(head, false));
        replies.extend(script.on(mk_response_chunk(tail, true)));
        let mut body = String::new();
        for reply in &replies {
            let part = reply.strip_prefix("<body ").unwrap();
            let part = part.strip_suffix(" end").unwrap_or(part);
            body += &serde_json::from_str::<String>(part).unwrap();
        }
        assert_eq!(body, want, "cut at {at}");
        assert_eq!(
            replies
                .iter()
                .filter(|reply| reply.ends_with(" end"))
                .count(),
            1
        );
    }
}

#[test]
fn what_is_held_of_a_model_name_goes_before_the_trailers() {
    let mut script = mk_restoring(BodyMode::FullDuplexStreamed);
    let mut replies = script.on(mk_response_chunk(r#"{"model":"the"#, false));
    replies.extend(script.on(Input::ResponseTrailers));
    assert_eq!(replies.last().unwrap(), "<trailers");
    assert_eq!(
        replies.iter().filter(|reply| reply.contains("the")).count(),
        1,
        "{replies:?}"
    );
}

/// Envoy answers 500 where the length does not fit.
#[test]
fn a_response_in_one_message_gets_its_new_length() {
    let mut script = mk_restoring(BodyMode::Buffered);
    let outputs = script
        .exchange
        .on(mk_response_chunk(r#"{"model":"theirs"}"#, true), NOW);
    let Some(Output::Reply(Reply::Body {
        route: Some(route),
        part: Part::Replaced(body),
        ..
    })) = outputs
        .into_iter()
        .find(|output| matches!(output, Output::Reply(Reply::Body { .. })))
    else {
        panic!("a replaced body with headers")
    };
    assert_eq!(&body[..], br#"{"model":"mine"}"#);
    let [(name, value)] = route.edit.headers_to_set() else {
        panic!("one header")
    };
    assert_eq!((&**name, &value[..]), ("content-length", &b"16"[..]));
}

#[test]
fn what_the_proxy_cut_off_is_not_held_back() {
    let mut script = mk_restoring(BodyMode::BufferedPartial);
    assert_eq!(
        script.on(mk_response_chunk(r#"{"model":"the"#, false)),
        [r#"<body ="{\"model\":\"the""#]
    );
}

#[test]
fn each_part_of_a_streamed_response_is_replaced() {
    let mut script = mk_restoring(BodyMode::Streamed);
    assert_eq!(
        script.on(mk_response_chunk(r#"{"model":"theirs"}"#, true)),
        [r#"<body ="{\"model\":\"mine\"}""#]
    );
}
