//! The modes in which proxies send bodies, and a stage that is off.

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::external::ExternalMetrics;

const CHAT: &str = r#"{"model":"m","messages":[],"route":true}"#;
const REST: &str = r#""messages":[],"route":true}"#;
const WITH_IDS: &str = r#"{"model":"m","messages":[],"token_ids":[1]}"#;

fn mk_first(mode: BodySendMode) -> ProcessingRequest {
    let modes = ProtocolConfiguration {
        request_body_mode: mode.into(),
        response_body_mode: BodySendMode::None.into(),
        send_body_without_waiting_for_header_response: true,
    };
    ProcessingRequest {
        request: Some(mk_head(&[], false)),
        protocol_config: Some(modes),
        ..ProcessingRequest::default()
    }
}

/// What the proxy does by these answers: each with its name, the wait that it asks for, headers and body.
async fn exchange(bed: &Bed, mode: BodySendMode, parts: &[&str]) -> Vec<String> {
    let (messages, mut replies) = open(&bed.shared, 1);
    messages.send(Ok(mk_first(mode))).await.unwrap();
    for (index, part) in parts.iter().enumerate() {
        let body = HttpBody {
            body: (*part).to_owned().into(),
            end_of_stream: index + 1 == parts.len() && mode != BodySendMode::BufferedPartial,
        };
        send(&messages, Request::RequestBody(body)).await;
    }
    let mut told = Vec::new();
    while let Ok(Some(reply)) = tokio::time::timeout(WAIT * 2, replies.next()).await {
        let reply = reply.unwrap();
        if let Some(limit) = reply.override_message_timeout {
            told.push(format!("wait {}", limit.seconds));
            continue;
        }
        let (name, part) = match reply.response.unwrap() {
            Response::RequestHeaders(part) => ("headers", part),
            Response::RequestBody(part) => ("body", part),
            other => panic!("{other:?}"),
        };
        let mutation = part
            .response
            .as_ref()
            .and_then(|one| one.body_mutation.clone());
        let body = match mutation.and_then(|one| one.mutation) {
            None => "kept".to_owned(),
            Some(Mutation::Body(body)) => String::from_utf8(body.to_vec()).unwrap(),
            Some(Mutation::ClearBody(_)) => String::new(),
            Some(other) => panic!("{other:?}"),
        };
        let (set, removed) = mutated(part);
        let length = match set.get("content-length") {
            Some(length) => format!(" length {length}"),
            None if removed.iter().any(|name| name == "content-length") => " no length".to_owned(),
            None => String::new(),
        };
        let pick = if set.contains_key("x-gateway-destination-endpoint") {
            " picked"
        } else {
            ""
        };
        told.push(format!("{name}{pick}{length}: {body}"));
    }
    told
}

/// The one request for patience covers a Processor that takes a second.
#[rstest]
#[case::buffered(BodySendMode::Buffered, &[CHAT], &[
    "headers: kept",
    "wait 300",
    &format!("body picked length {}: {WITH_IDS}", WITH_IDS.len()),
])]
#[case::streamed(BodySendMode::Streamed, &["{\"model\":\"m\",", REST, ""], &[
    "wait 360",
    "headers picked no length: kept",
    &format!("body: {WITH_IDS}"),
    "body: ",
    "body: ",
])]
#[tokio::test(start_paused = true)]
async fn a_slow_processor_fits_in_each_body_mode(
    #[case] mode: BodySendMode,
    #[case] parts: &[&str],
    #[case] want: &[&str],
) {
    let reply = ProcessReply {
        token_value: Some(Bytes::from_static(b"[1]")),
        ..ProcessReply::default()
    };
    let bed = Bed::replying(reply, Switches::default());
    assert_eq!(exchange(&bed, mode, parts).await, want);
}

/// What is not seen of a body may have ids of another prompt; so much of it is held in the mode STREAMED.
#[rstest]
#[case::cut_off(
    BodySendMode::BufferedPartial,
    0,
    "/v1/chat/completions",
    false,
    Some(413)
)]
#[case::too_long(BodySendMode::Streamed, 256 << 10, "/v1/embeddings", false, Some(413))]
#[case::trusted(BodySendMode::BufferedPartial, 0, "/v1/chat/completions", true, None)]
#[case::ids_are_the_prompt(
    BodySendMode::BufferedPartial,
    0,
    "/inference/v1/generate",
    false,
    None
)]
#[case::not_read(BodySendMode::BufferedPartial, 0, "/v1/other", false, None)]
#[tokio::test(start_paused = true)]
async fn a_body_that_is_seen_in_part_is_refused_where_ids_of_clients_are_not_let_through(
    #[case] mode: BodySendMode,
    #[case] more: usize,
    #[case] path: &str,
    #[case] keeps_ids: bool,
    #[case] want: Option<i32>,
) {
    let switches = Switches {
        keeps_ids,
        ..Switches::default()
    };
    let bed = Bed::of(Scripted::silent(), switches);
    let (messages, mut replies) = open(&bed.shared, 1);
    let mut first = mk_first(mode);
    first.request = Some(Request::RequestHeaders(mk_headers(":path", path, false)));
    messages.send(Ok(first)).await.unwrap();
    let body = HttpBody {
        body: format!("{{\"model\":\"m\",{}", " ".repeat(more)).into(),
        end_of_stream: false,
    };
    send(&messages, Request::RequestBody(body)).await;
    let status = loop {
        let reply = replies.next().await.expect("a reply").unwrap();
        match reply.response {
            Some(Response::ImmediateResponse(refusal)) => break Some(refusal.status.unwrap().code),
            Some(Response::RequestBody(_)) => break None,
            _ => {}
        }
    };
    assert_eq!(status, want);
}

/// Switched on for nobody: the same messages, byte for byte.
#[rstest]
#[case(BodySendMode::FullDuplexStreamed)]
#[case(BodySendMode::Buffered)]
#[case(BodySendMode::Streamed)]
#[tokio::test(start_paused = true)]
async fn off_is_as_if_it_were_not_there(#[case] mode: BodySendMode) {
    use clap::Parser;
    let url = "--external-llm-processor-endpoint=http://processor:8090";
    let off = "--use-external-llm-processor=no";
    let args = crate::Args::try_parse_from(["epp", "--pool-name", "llm", url, off]).unwrap();
    let settings = args.external.settings().unwrap();
    assert_eq!((settings.names_models, settings.stage), (false, None));
    let mut all = Vec::new();
    for made in [false, true] {
        let mut registry = Registry::default();
        let pool = Pool::default();
        pool.replace(vec![mk_member("a", A.parse().unwrap())], Moment::START);
        let config = CurrentConfig::new(small_config());
        let mut director = Director::new(pool, config, Options::default(), Clock::start());
        if made {
            let names = settings
                .names_models
                .then(|| ExternalMetrics::register(&mut registry));
            director = director.naming_models(names).staging(None);
        }
        let shared = mk_shared_around(director, 1 << 20, &mut registry);
        let (messages, mut replies) = open(&shared, 1);
        let mut first = mk_first(mode);
        let fields = [
            ("x-request-id", "r"),
            ("x-req-tokens-key", "tk_x"),
            ("x-gateway-model-name", "z"),
        ];
        first.request = Some(mk_head(&fields, false));
        messages.send(Ok(first)).await.unwrap();
        let body = r#"{"model":"m","messages":[],"route":true,"token_ids":[1],"nvext":{"token_data":[2]}}"#;
        send(&messages, mk_whole(body)).await;
        let mut told = Vec::new();
        while let Some(Some(reply)) = replies.next().now_or_never() {
            told.push(prost::Message::encode_to_vec(&reply.unwrap()));
        }
        let passes_ids = told.iter().flatten().copied().collect::<Vec<_>>();
        let is_kept = !String::from_utf8_lossy(&passes_ids).contains("x-req-tokens-key");
        assert!(is_kept, "no header of ours is touched");
        all.push((told, page(&registry).contains("epp_external")));
    }
    assert_eq!(all[0], all[1]);
    assert!(!all[0].0.is_empty() && !all[1].1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_seen_is_picked_for_blindly() {
    let bed = Bed::of(Scripted::silent(), routing());
    let (messages, mut replies) = open(&bed.shared, 1);
    messages
        .send(Ok(mk_first(BodySendMode::None)))
        .await
        .unwrap();
    let Response::RequestHeaders(part) = next(&mut replies).await else {
        panic!("not to the headers")
    };
    let (set, removed) = mutated(part);
    assert!(!set.contains_key("x-gateway-model-name"), "nobody knows it");
    assert!(
        removed.iter().any(|name| name == "x-req-tokens-key"),
        "{removed:?}"
    );
    bed.assert_has(&["epp_external_skipped_total{reason=\"unseen\"} 1"]);
}

/// The body that the server gets of one that comes in these parts.
async fn received(bed: &Bed, mode: BodySendMode, parts: &[&str]) -> String {
    let (messages, mut replies) = open(&bed.shared, 1);
    messages.send(Ok(mk_first(mode))).await.unwrap();
    let (mut passed, mut answered, mut sent) = (String::new(), 0, 0);
    while answered < parts.len() {
        if sent < parts.len() {
            let body = HttpBody {
                body: parts[sent].to_owned().into(),
                end_of_stream: sent + 1 == parts.len(),
            };
            send(&messages, Request::RequestBody(body)).await;
            sent += 1;
        }
        let wait = if sent < parts.len() {
            Duration::ZERO
        } else {
            WAIT * 2
        };
        while let Ok(Some(reply)) = tokio::time::timeout(wait, replies.next()).await {
            let Some(Response::RequestBody(part)) = reply.unwrap().response else {
                continue;
            };
            let mutation = part.response.and_then(|one| one.body_mutation);
            match mutation.and_then(|one| one.mutation) {
                None => passed.push_str(parts[answered]),
                Some(Mutation::Body(body)) => passed.push_str(str::from_utf8(&body).unwrap()),
                Some(Mutation::ClearBody(_)) => {}
                Some(Mutation::StreamedResponse(part)) => {
                    passed.push_str(str::from_utf8(&part.body).unwrap());
                    if !part.end_of_stream {
                        continue;
                    }
                    return passed;
                }
            }
            answered += 1;
        }
    }
    passed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// In any order, with any spaces, cut anywhere, in each mode in which bodies are changed.
    #[test]
    fn what_the_server_gets_is_the_edited_tree(
        order in Just(vec![
            r#""model": "m""#, r#""messages" :[ {"content":"é\\"}]"#, r#""route":true"#,
            r#""token_ids": [9, 9]"#, r#""nvext":{"a" :1,"token_data":[9] }"#, r#""n":1.0"#,
        ]).prop_shuffle(),
        left_out in vec(any::<bool>(), 4),
        space in "[ \n]{0,3}",
        places in vec(any::<Index>(), 0..4),
        mode in 0_usize..3,
    ) {
        let optional = ["route", "token_ids", "nvext", "\"n\""];
        let is_left_out = |member: &&str| {
            let place = optional.iter().position(|name| member.contains(name));
            place.is_some_and(|place| left_out[place])
        };
        let members: Vec<_> = order.into_iter().filter(|member| !is_left_out(member)).collect();
        let body = format!("{space}{{{}{space}}}{space}", members.join(&format!("{space},{space}")));
        let mut want: serde_json::Value = serde_json::from_str(&body).unwrap();
        let tree = want.as_object_mut().unwrap();
        tree.remove("route");
        tree.insert("token_ids".to_owned(), serde_json::json!([1]));
        if let Some(nvext) = tree.get_mut("nvext") {
            nvext.as_object_mut().unwrap().remove("token_data");
        }
        let modes = [BodySendMode::FullDuplexStreamed, BodySendMode::Buffered, BodySendMode::Streamed];
        let mut cuts: Vec<_> = places.iter().map(|place| place.index(body.len())).collect();
        cuts.retain(|cut| body.is_char_boundary(*cut) && modes[mode] != BodySendMode::Buffered);
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| body.get(cut[0]..cut[1]).unwrap()).collect();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let passed = runtime.block_on(async {
            let reply = ProcessReply {
                token_value: Some(Bytes::from_static(b"[1]")),
                ..ProcessReply::default()
            };
            let bed = Bed::replying(reply, Switches::default());
            received(&bed, modes[mode], &parts).await
        });
        let got: serde_json::Value = serde_json::from_str(&passed).unwrap();
        prop_assert_eq!(&got, &want, "{}", passed);
        for kept in members.iter().filter(|member| !optional.iter().take(3).any(|name| member.contains(name))) {
            prop_assert!(passed.contains(kept), "{} is not in {}", kept, passed);
        }
    }
}
