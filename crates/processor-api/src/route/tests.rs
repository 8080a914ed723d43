use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;

use super::*;

fn mk_request(token_ids: Vec<u32>) -> RouteRequest<'static> {
    RouteRequest {
        token_ids,
        request_id: Some("req-1".into()),
        reservation_id: Some(ReservationId::random(&mut StdRng::seed_from_u64(3))),
        model: Some("m".into()),
        lora_name: Some("sql".into()),
        cache_salt: Some("s".into()),
        candidates: Some(vec!["10.1.2.3:8000".into()]),
        priority: Some(-2),
        max_endpoints: Some(3),
    }
}

#[test]
fn the_minimal_json_form_is_read() {
    let request = RouteRequest::parse_json(r#"{"token_ids":[1,2],"later":{}}"#, 2).unwrap();
    let token_ids = vec![1, 2];
    let expected = RouteRequest {
        token_ids,
        ..RouteRequest::default()
    };
    assert_eq!(request, expected);
}

#[rstest]
#[case::no_ids("{}", WireError::Ids(IdsError::NoList))]
#[case::null(r#"{"token_ids":null}"#, WireError::Ids(IdsError::NoList))]
#[case::too_many(r#"{"token_ids":[1,2,3]}"#, WireError::Ids(IdsError::TooMany(2)))]
#[case::no_json("[", WireError::Json { line: 1, column: 1 })]
fn other_json_is_refused(#[case] json: &str, #[case] error: WireError) {
    assert_eq!(RouteRequest::parse_json(json, 2), Err(error));
}

proptest! {
    #[test]
    fn the_binary_form_reads_back(ids in prop::collection::vec(any::<u32>(), 0..50)) {
        let request = mk_request(ids);
        let frame = request.encode_binary();
        prop_assert_eq!(RouteRequest::parse_binary(&frame, 50), Ok(request));
    }

    #[test]
    fn a_binary_form_that_is_cut_is_refused(cut in 0_usize..400) {
        let frame = mk_request(vec![1, 2, 3]).encode_binary();
        prop_assume!(cut < frame.len());
        let whole_ids = frame.len() - cut <= 12 && (frame.len() - cut).is_multiple_of(4);
        let parsed = RouteRequest::parse_binary(&frame[..cut], 3);
        prop_assert_eq!(parsed.is_ok(), whole_ids, "{:?}", parsed);
    }
}

#[test]
fn the_binary_form_is_as_documented() {
    let frame = RouteRequest {
        token_ids: vec![1, 0x0102_0304],
        model: Some("m".into()),
        ..RouteRequest::default()
    }
    .encode_binary();
    let json = br#"{"model":"m"}"#;
    let expected = [
        &13_u32.to_le_bytes()[..],
        json,
        &[1, 0, 0, 0],
        &[4, 3, 2, 1],
    ]
    .concat();
    assert_eq!(frame, expected);
}

#[rstest]
#[case::too_many_ids(&[2, 0, 0, 0, b'{', b'}', 0, 0, 0, 0, 0, 0, 0, 0], WireError::Ids(IdsError::TooMany(1)))]
#[case::length_beyond_any_json(&[255, 255, 255, 255, b'{', b'}'], WireError::Frame)]
fn a_binary_form_over_its_bounds_is_refused(#[case] frame: &[u8], #[case] error: WireError) {
    assert_eq!(RouteRequest::parse_binary(frame, 1), Err(error));
}

#[test]
fn the_minimal_reply_is_read_and_a_full_one_reads_back() {
    let reply: RouteReply =
        serde_json::from_str(r#"{"worker_address":"worker-3:8080","source":"oracle"}"#).unwrap();
    assert_eq!(reply.worker_address, "worker-3:8080");
    assert_eq!(reply.source, RouteSource::None);
    let full = RouteReply {
        dp_rank: Some(1),
        overlap_blocks: 2,
        source: RouteSource::Predicted,
        ..reply
    };
    let json = serde_json::to_string(&full).unwrap();
    assert!(json.contains(r#""source":"predicted""#), "{json}");
    assert_eq!(serde_json::from_str::<RouteReply>(&json).unwrap(), full);
}

#[test]
fn a_keepalive_has_a_bound() {
    let id = ReservationId::random(&mut StdRng::seed_from_u64(4));
    let parsed = |count| {
        let reservation_ids = vec![id; count];
        let json = serde_json::to_vec(&Keepalive { reservation_ids }).unwrap();
        Keepalive::parse(&json).map(|message| message.reservation_ids.len())
    };
    assert_eq!(parsed(MAX_KEEPALIVES), Ok(MAX_KEEPALIVES));
    assert_eq!(parsed(MAX_KEEPALIVES + 1), Err(WireError::Keepalives));
}
