//! Patches that are taken and that are refused.

use rstest::rstest;
use serde_json::json;

use super::*;

fn mk_knobs() -> Knobs {
    Knobs {
        latency: LatencyKnobs {
            time_to_first_token: HumanDuration::from_millis(20),
            inter_token_latency: HumanDuration::from_millis(5),
            ..LatencyKnobs::default()
        },
        metrics: FakeMetrics::default(),
        ready: true,
        hang: false,
        reject: false,
        fail: None,
        reset: None,
        cut: None,
    }
}

#[test]
fn a_patch_changes_what_it_names_and_null_takes_it_back() {
    let mut board = KnobBoard::new(&mk_knobs());
    let patch = json!({"latency": {"inter_token_latency": "1s"}, "metrics": {"waiting": 7}});
    let knobs = board.patch(&patch).expect("valid");
    assert_eq!(
        knobs.latency.inter_token_latency,
        HumanDuration::from_millis(1_000)
    );
    assert_eq!(
        knobs.latency.time_to_first_token,
        HumanDuration::from_millis(20)
    );

    let patch = json!({"latency": null, "fail": {"status": 500}});
    let knobs = board.patch(&patch).expect("valid");
    let fail = Some(Fail {
        status: 500,
        rate: 1.0,
    });
    let metrics = FakeMetrics {
        waiting: Some(FakeValue::Fixed(7.0)),
        ..FakeMetrics::default()
    };
    assert_eq!(
        knobs,
        Knobs {
            metrics,
            fail,
            ..mk_knobs()
        }
    );

    let patch = json!({"metrics": {"waiting": null}, "fail": null});
    assert_eq!(board.patch(&patch).expect("valid"), mk_knobs());
}

#[rstest]
#[case(json!([]), "object")]
#[case(json!({"redy": true}), "redy")]
#[case(json!({"redy": null}), "redy")]
#[case(json!({"latency": {"ttft": "1s"}}), "latency.ttft")]
#[case(json!({"ready": "no"}), "boolean")]
#[case(json!({"latency": {"inter_token_latency": "-1s"}}), "20ms")]
#[case(json!({"latency": {"time_to_first_token_std_dev": 0.4}}), "0 to 0.3")]
#[case(json!({"latency": {"time_scale": -1}}), "time_scale")]
#[case(json!({"metrics": {"kv": 1.5}}), "1.5")]
#[case(json!({"metrics": {"waiting": -1}}), "-1")]
#[case(json!({"metrics": {"kv": "ramp:0:2:1s"}}), "is 2:")]
#[case(json!({"metrics": {"running": "many"}}), "ramp:0:10:5s")]
#[case(json!({"metrics": {"status": 200}}), "200")]
#[case(json!({"reset": 1.5}), "reset is 1.5")]
#[case(json!({"cut": {"rate": 0.5}}), "after_tokens")]
#[case(json!({"cut": {"after_tokens": 3, "rate": -1}}), "cut.rate")]
#[case(json!({"fail": {"status": 200}}), "200")]
#[case(json!({"fail": {"status": 500, "rate": 2.0}}), "rate")]
#[case(json!({"fail": {"rate": 1.0}}), "status")]
#[case(json!({"fail": {"status": 500, "often": true}}), "often")]
fn a_bad_patch_is_refused_whole(#[case] bad: Value, #[case] told: &str) {
    let mut board = KnobBoard::new(&mk_knobs());
    let error = board.patch(&bad).expect_err("refused").to_string();
    assert!(error.contains(told), "{error}");
    assert_eq!(board.patch(&json!({})).expect("valid"), mk_knobs());
}
