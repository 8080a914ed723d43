use bytes::Bytes;
use rstest::rstest;
use scheduling::{DEFAULT_TRANSIT, Filter, NoPick, PickerKind, Role, Subset};

use super::*;
use crate::{
    config::Prefix,
    external::fixtures::Scripted,
    extproc::{Answer, REQUEST_ID, RequestHead},
    fixtures::mk_member,
};

fn mk_director_of(pool: Pool) -> Director {
    let prefix = Prefix {
        max_bytes: 1 << 20,
        ..Prefix::default()
    };
    let config = CurrentConfig::new(Config {
        prefix,
        ..Config::default()
    });
    Director::new(pool, config, Options::default(), Clock::start())
}

fn decide(director: &Director, query: Query) -> Result<Box<Answer>, Reject> {
    let resolved = director.resolve(&query, None)?;
    match director.decide(query, &resolved, DEFAULT_TRANSIT) {
        Decision::Picked(Picking::Made(decision)) => decision,
        _ => panic!("it waits"),
    }
}

fn mk_members(addresses: &[&str]) -> Vec<Member> {
    let members = addresses
        .iter()
        .map(|address| mk_member(address, address.parse().unwrap()));
    members.collect()
}

fn mk_director(addresses: &[&str]) -> Director {
    let pool = Pool::default();
    pool.replace(mk_members(addresses), Moment::START);
    mk_director_of(pool)
}

fn mk_query(list: u8, subset: Option<&str>) -> Query {
    let subset = subset.map(|list| {
        let mut subset = Subset::default();
        subset.extend_from_list(list);
        subset
    });
    let head = RequestHead {
        has_request_id: true,
        ..RequestHead::default()
    };
    Query {
        head,
        subset,
        list,
        parsed: None,
        is_inference: false,
        body: Bytes::new(),
    }
}

fn destination(answer: &Answer) -> &str {
    std::str::from_utf8(answer.route.destination.as_ref().unwrap()).unwrap()
}

#[test]
fn the_destination_lists_the_endpoints_in_the_protocols_words() {
    let director = mk_director(&["10.0.0.1:8000", "[fd00::1]:8000"]);
    let answer = decide(&director, mk_query(2, None)).unwrap();
    let mut listed: Vec<_> = destination(&answer).split(',').collect();
    listed.sort_unstable();
    assert_eq!(listed, ["10.0.0.1:8000", "[fd00::1]:8000"]);
    assert_eq!(
        answer.endpoints[0].load().in_flight(),
        1,
        "counted at the first"
    );
    assert_eq!(answer.endpoints[1].load().in_flight(), 0);
}

#[test]
fn a_subset_without_members_is_refused_unless_it_is_to_be_ignored() {
    let mut director = mk_director(&["10.0.0.1:8000"]);
    let query = || mk_query(1, Some("10.9.9.9"));
    assert_eq!(
        decide(&director, query()).unwrap_err(),
        NoPick::EmptySubset.into()
    );
    director.options.honour_subset = false;
    assert_eq!(
        destination(&decide(&director, query()).unwrap()),
        "10.0.0.1:8000"
    );
}

#[test]
fn requests_take_turns_where_the_picker_says_so() {
    let director = mk_director(&["10.0.0.2:8000", "10.0.0.1:8000"]);
    let mut config = Config::default();
    config.profile.picker.kind = PickerKind::RoundRobin;
    director.config.replace(config);
    let picks = (0..4).map(|_| {
        let answer = decide(&director, mk_query(1, None)).unwrap();
        destination(&answer).to_owned()
    });
    let want = ["10.0.0.1:8000", "10.0.0.2:8000"];
    assert_eq!(picks.collect::<Vec<_>>(), [want, want].concat());
}

#[test]
fn a_request_id_is_made_only_where_there_is_none() {
    let director = mk_director(&["10.0.0.1:8000"]);
    let answer = decide(&director, mk_query(1, None)).unwrap();
    assert_eq!(answer.route.edit.headers_to_set(), []);
    let mut query = mk_query(1, None);
    query.head.has_request_id = false;
    let answer = decide(&director, query).unwrap();
    let [(name, id)] = answer.route.edit.headers_to_set() else {
        panic!("one header")
    };
    assert_eq!((&**name, id.len()), (REQUEST_ID, 36));
}

#[test]
fn scores_of_all_candidates_are_given_where_they_are_wanted() {
    let mut director = mk_director(&["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]);
    let query = || mk_query(1, Some("10.0.0.1,10.0.0.3"));
    assert!(decide(&director, query()).unwrap().route.scores.is_empty());
    director.options.emit_scores = true;
    let _held = decide(&director, mk_query(1, Some("10.0.0.1"))).unwrap();
    let answer = decide(&director, query()).unwrap();
    assert_eq!(destination(&answer), "10.0.0.3:8000");
    let mut scores = answer.route.scores;
    scores.sort_by(|one, other| one.0.cmp(&other.0));
    let score = |address: &str, score| (address.to_owned(), score);
    assert_eq!(
        scores,
        [score("10.0.0.1:8000", 2.0), score("10.0.0.3:8000", 4.0)]
    );
}

#[test]
fn a_test_selects_endpoints_only_where_that_is_allowed_and_beats_the_subset() {
    let mut director = mk_director(&["10.0.0.1:8000", "10.0.0.2:8000"]);
    let query = |director: &Director, selection: &'static str| {
        let mut query = mk_query(1, Some("10.0.0.1"));
        let name = Bytes::from_static(TEST_SELECTION.as_bytes());
        let value = Bytes::from_static(selection.as_bytes());
        query.head.fields.push((name, value));
        decide(director, query)
    };
    let unasked = query(&director, "10.0.0.2").unwrap();
    assert_eq!(destination(&unasked), "10.0.0.1:8000");
    director.options.conformance_headers = true;
    for selection in ["10.0.0.2", "10.9.9.9, 10.0.0.2:8000"] {
        assert_eq!(
            destination(&query(&director, selection).unwrap()),
            "10.0.0.2:8000"
        );
    }
    for selection in ["10.9.9.9", "256.256.256.256"] {
        assert_eq!(
            query(&director, selection).unwrap_err().status(),
            503,
            "{selection}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn new_members_let_a_request_go_on_at_once() {
    let director = Arc::new(mk_director(&[]));
    let mut config = Config::clone(&director.config.load());
    config.flow_control.enabled = true;
    director.config.replace(config);
    let queued = Arc::clone(&director);
    let mut running = tokio::task::JoinSet::new();
    running.spawn(async move { queued.run_queue().await });
    let query = mk_query(1, None);
    let resolved = director.resolve(&query, None).unwrap();
    let Decision::Queued(waiting) = director.decide(query, &resolved, DEFAULT_TRANSIT) else {
        panic!("an empty pool is full")
    };
    let start = tokio::time::Instant::now();
    let pool = director.pool().clone();
    let members = mk_members(&["10.0.0.1:8000"]);
    running.spawn(async move {
        // the queue is asleep by now
        tokio::time::sleep(Duration::from_secs(5)).await;
        pool.replace(members, Moment::START);
    });
    let Picking::Made(answer) = waiting.await else {
        panic!("nobody else is asked")
    };
    let answer = answer.unwrap();
    assert_eq!(destination(&answer), "10.0.0.1:8000");
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[test]
fn no_request_waits_for_an_endpoint_that_subset_labels_or_roles_forbid() {
    let members = [("10.0.0.1:8000", "a"), ("10.0.0.2:8000", "b")].map(|(address, gpu)| {
        let mut member = crate::fixtures::mk_member(address, address.parse().unwrap());
        let role = ("llm-d.ai/role".into(), "prefill".into());
        member.labels = Arc::new([("gpu".into(), gpu.into()), role].into());
        member
    });
    let director = mk_director(&[]);
    let request = |subset: Option<&str>, gpu: Option<&str>| {
        let query = mk_query(1, subset);
        let labels = gpu.map(|gpu| Arc::new([("gpu".into(), gpu.into())].into()));
        Request {
            subset: query.subset,
            labels: labels.into_iter().collect(),
            ..Request::default()
        }
    };
    let is_hopeless = |subset, gpu| {
        let config = director.config.load();
        let resolved = Resolved::default();
        let query = mk_query(1, None);
        let mut prepared = director
            .prepare(&config, query, &resolved, Moment::START)
            .unwrap();
        prepared.request = request(subset, gpu);
        director.is_hopeless(&config, &prepared)
    };
    assert!(!is_hopeless(None, Some("c")), "one may come");
    assert!(is_hopeless(Some("10.0.0.1"), None));
    director.pool().replace(members.to_vec(), Moment::START);
    assert!(!is_hopeless(None, None));
    assert!(!is_hopeless(Some("10.0.0.1"), Some("a")));
    assert!(
        is_hopeless(Some("10.0.0.1"), Some("b")),
        "another one has it"
    );
    assert!(is_hopeless(None, Some("c")));
    assert!(is_hopeless(Some("10.0.0.3"), None));
    let mut config = Config::default();
    config.profile.filters = vec![Filter::Role(Role::Decode)];
    director.config.replace(config);
    assert!(is_hopeless(None, None), "none decodes");
}

/// Gateways try another pool after 503, and not after 429.
#[rstest]
#[case::empty(&[], None, None, 503, "no-endpoints")]
#[case::other_subset(&["10.0.0.1:8000"], Some("10.9.9.9"), None, 503, "no-endpoints")]
#[case::empty_subset(&["10.0.0.1:8000"], Some(""), None, 503, "no-endpoints")]
#[case::no_role(&["10.0.0.1:8000"], None, Some(Role::Prefill), 503, "no-endpoints")]
#[case::full(&["10.0.0.1:8000"], Some("10.0.0.1"), Some(Role::Decode), 429, "saturated")]
fn what_no_member_can_take_is_sent_to_another_pool_before_it_is_shed(
    #[case] members: &[&str],
    #[case] subset: Option<&str>,
    #[case] role: Option<Role>,
    #[case] status: u16,
    #[case] reason: &str,
) {
    let director = mk_director(members);
    let mut config = Config::default();
    config.profile.filters = role.map(Filter::Role).into_iter().collect();
    config.detector = scheduling::Detector::Concurrency {
        mode: scheduling::ConcurrencyMode::Requests,
        max_requests: 0.0,
        max_tokens: 1.0,
        headroom: 0.0,
    };
    director.config.replace(config);
    let resolved = Resolved {
        priority: -1,
        ..Resolved::default()
    };
    let decision = director.decide(mk_query(1, subset), &resolved, DEFAULT_TRANSIT);
    let Decision::Picked(Picking::Made(Err(reject))) = decision else {
        panic!("the pool is full")
    };
    assert_eq!((reject.status(), reject.reason()), (status, reason));
}

/// Reads a request's body as its stream reads it.
fn mk_read(path: &'static str, body: &'static str) -> Query {
    let body = Bytes::from_static(body.as_bytes());
    let api = Api::for_path(path.as_bytes()).unwrap().unwrap();
    let mut query = mk_query(1, None);
    query.head.path = Bytes::from_static(path.as_bytes());
    query.parsed = Some(api.parse(&body).unwrap());
    query.is_inference = true;
    query.body = body;
    query
}

#[test]
fn a_client_directs_no_transfer_of_a_kv_cache_unless_that_is_allowed() {
    const BODY: &str = r#"{"kv_transfer_params":{"remote_host":"10.9.9.9"},"model":"m","messages":[],"bootstrap_room":7,"prompt_embeds":"AA"}"#;
    let director = mk_director(&["10.0.0.1:8000"]);
    let sent = |director: &Director| {
        let query = mk_read("/v1/chat/completions", BODY);
        let edit = decide(director, query).unwrap().route.edit;
        let parts = edit.apply_body(Bytes::from_static(BODY.as_bytes()));
        String::from_utf8(parts.flatten().collect()).unwrap()
    };
    assert_eq!(
        sent(&director),
        r#"{"kv_transfer_params":null,"model":"m","messages":[],"bootstrap_room":null,"prompt_embeds":"AA"}"#
    );
    assert_eq!(director.transfers_removed.get(), 2);
    director.config.replace(Config {
        allow_client_kv_transfer: true,
        ..Config::default()
    });
    assert_eq!(sent(&director), BODY);
}

/// vLLM uses this member as the prompt, beside the text that the Processor reads.
#[rstest]
#[case::coordinator(true, r#"{"prompt_token_ids":null,"a":1}"#, 0)]
#[case::nobody(false, "null", 1)]
fn transfer_parameters_bring_no_prompt_past_the_processor(
    #[case] allow_client_kv_transfer: bool,
    #[case] sent: &str,
    #[case] removed: u64,
) {
    let external = Scripted::silent().external();
    let director = mk_director(&["10.0.0.1:8000"]).staging(Some(Arc::clone(&external)));
    director.config.replace(Config {
        allow_client_kv_transfer,
        ..Config::default()
    });
    let query = mk_read(
        "/v1/chat/completions",
        r#"{"model":"m","messages":[],"kv_transfer_params":{"prompt_token_ids":[1],"a":1}}"#,
    );
    let (config, parsed) = (director.config.load(), query.parsed.as_ref().unwrap());
    let mut edit = Edit::default();
    director.guard(&config, &query.head, parsed, &mut edit);
    let body: Vec<_> = edit.apply_body(query.body.clone()).collect();
    let want = format!(r#"{{"model":"m","messages":[],"kv_transfer_params":{sent}}}"#);
    assert_eq!(body.concat(), want.as_bytes());
    assert_eq!(director.transfers_removed.get(), removed);
}

/// The part that was not read may have a member that the client may not set.
#[test]
fn a_body_seen_in_part_is_refused_in_a_pool_whose_servers_have_roles() {
    let director = mk_director(&["10.0.0.1:8000"]);
    let cut = || {
        let mut query = mk_read("/v1/completions", r#"{"model":"m"}"#);
        query.parsed = None;
        query
    };
    assert!(decide(&director, cut()).is_ok());
    let mut config = Config::default();
    config.profile.filters = vec![Filter::Role(Role::Decode)];
    director.config.replace(config.clone());
    assert_eq!(decide(&director, cut()).unwrap_err(), Reject::BodyNotSeen);
    config.allow_client_kv_transfer = true;
    director.config.replace(config);
    assert!(decide(&director, cut()).is_ok());
}

/// The model name that the client sent could not be put back into a compressed response.
#[rstest]
#[case::rewritten("gpt-4o", &["accept-encoding"])]
#[case::as_it_is("m", &[])]
fn no_compressed_answer_is_asked_for_where_its_model_is_changed(
    #[case] asked: &str,
    #[case] removed: &[&str],
) {
    let director = mk_director(&["10.0.0.1:8000"]);
    let target = crate::RewriteTarget {
        model: "m".to_owned(),
        weight: 1,
    };
    director.config.replace(Config {
        rewrites: vec![crate::RewriteRule {
            models: ["gpt-4o".to_owned()].into(),
            targets: vec![target],
        }],
        ..Config::default()
    });
    let body = if asked == "m" {
        r#"{"model":"m","prompt":"x"}"#
    } else {
        r#"{"model":"gpt-4o","prompt":"x"}"#
    };
    let mut query = mk_read("/v1/completions", body);
    let field = (
        Bytes::from_static(b"accept-encoding"),
        Bytes::from_static(b"gzip"),
    );
    query.head.fields.push(field);
    let edit = decide(&director, query).unwrap().route.edit;
    assert_eq!(edit.headers_to_remove(), removed);
}

/// The mark is not part of the JSON, whose members may be edited.
#[test]
fn a_byte_order_mark_does_not_go_on() {
    let director = mk_director(&["10.0.0.1:8000"]);
    let body = "\u{feff}{\"model\":\"m\",\"prompt\":\"x\",\"kv_transfer_params\":{}}";
    let edit = decide(&director, mk_read("/v1/completions", body))
        .unwrap()
        .route
        .edit;
    let parts: Vec<_> = edit
        .apply_body(Bytes::from_static(body.as_bytes()))
        .collect();
    let want = r#"{"model":"m","prompt":"x","kv_transfer_params":null}"#;
    assert_eq!(parts.concat(), want.as_bytes());
}
