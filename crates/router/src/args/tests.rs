use std::{path::Path, time::Duration};

use clap::CommandFactory;
use process::docs::{check_part, flags};
use rstest::rstest;

use super::*;

fn args(flags: &[&str]) -> Result<Args, String> {
    let words = ["router"].iter().chain(flags);
    Args::try_parse_from(words).map_err(|error| error.to_string())
}

fn checked(flags: &[&str]) -> Result<(Source, Option<EventPorts>, Policy, Limits), String> {
    let args = args(flags)?;
    let checked = args.listen.check().and_then(|()| {
        Ok((
            args.pool.source()?,
            args.events.ports()?,
            args.choice.policy()?,
            args.state.limits(args.events.block_size)?,
        ))
    });
    checked.map_err(|error| error.to_string())
}

#[test]
fn the_command_line_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn every_flag_is_documented() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/router.md");
    let again = "UPDATE_DOCS=1 cargo test -p router documented";
    let made = flags(Args::command().get_arguments());
    check_part(&docs, "flags", &made, again).unwrap();
}

#[test]
fn without_flags_it_is_the_default_preset_that_decides() {
    let (source, ports, policy, limits) = checked(&["--pool-name", "llama"]).unwrap();
    assert_eq!(
        source,
        Source::Pool {
            namespace: "default".to_owned(),
            name: "llama".to_owned()
        }
    );
    let expected = EventPorts {
        events: 5557,
        replay: None,
        first_rank: FirstRank::Fixed(0),
        ranks: 1,
    };
    assert_eq!(ports, Some(expected));
    assert_eq!(policy.weights, Preset::Isthmus.weights());
    assert_eq!((policy.temperature, policy.busy_tokens), (0.0, None));
    assert_eq!(format!("{limits:?}"), format!("{:?}", Limits::default()));
}

#[test]
fn a_flag_overrides_its_part_of_the_preset_alone() {
    let flags = [
        "--pool-name=llama",
        "--preset=reference",
        "--overlap-credit=3",
        "--busy-threshold=1.5",
        "--max-batched-tokens=1000",
        "--kv-events=off",
        "--reservation-idle=5s",
    ];
    let (_, ports, policy, limits) = checked(&flags).unwrap();
    let expected = Weights {
        overlap_credit: 3.0,
        ..Preset::Reference.weights()
    };
    assert_eq!(policy.weights, expected);
    assert_eq!(policy.busy_tokens, Some(1500));
    assert_eq!(ports, None);
    assert_eq!(limits.idle, Duration::from_secs(5));
}

#[rstest]
#[case("5557", "5558", "1")]
#[case("5557", "5561", "4")]
#[case("5561", "5557", "4")]
fn ranks_may_have_the_ports_up_to_those_of_the_replay(
    #[case] events: &str,
    #[case] replay: &str,
    #[case] ranks: &str,
) {
    let flags = [
        "--pool-name=llama",
        "--kv-event-port",
        events,
        "--kv-event-replay-port",
        replay,
        "--kv-event-ranks",
        ranks,
        "--kv-event-first-rank=index:pod-index",
    ];
    let (_, ports, ..) = checked(&flags).unwrap();
    let expected = EventPorts {
        events: events.parse().unwrap(),
        replay: replay.parse().ok(),
        first_rank: FirstRank::Index("pod-index".into()),
        ranks: ranks.parse().unwrap(),
    };
    assert_eq!(ports, Some(expected));
}

#[rstest]
#[case(&[], "no source of endpoints: expected exactly one of")]
#[case(&["--http-port", "8080"], "two ports, for example --http-port 8091")]
#[case(&["--block-size", "0"], "--block-size 0: expected 1 to 65536")]
#[case(&["--kv-event-ranks", "65"], "--kv-event-ranks 65: expected 1 to 64")]
#[case(&["--kv-event-port", "65530"], "--kv-event-port 65530: expected 1 to 65528: further")]
#[case(&["--kv-event-replay-port", "65500", "--kv-event-ranks", "40"], "--kv-event-replay-port 65500: ")]
#[case(&["--kv-event-first-rank", "60000"], "--kv-event-port 5557: expected 1 to 5528: further")]
#[case(&["--kv-event-first-rank", "pod-index"], "label:KEY or index:KEY")]
#[case(&["--kv-event-replay-port", "5557"], "--kv-event-port 5557 and --kv-event-replay-port 5557: expected no port in both")]
#[case(&["--kv-event-port", "5557", "--kv-event-replay-port", "5558", "--kv-event-ranks", "4"], "one for each of --kv-event-ranks 4")]
#[case(&["--kv-event-port", "5560", "--kv-event-replay-port", "5557", "--kv-event-ranks", "4"], "--kv-event-port 5560 and")]
#[case(&["--preset", "dynamo"], "use isthmus or reference")]
#[case(&["--overlap-credit=-1"], "expected a number that is not negative")]
#[case(&["--router-temperature", "inf"], "expected a number that is not negative")]
#[case(&["--busy-threshold", "0"], "expected off or a number above 0")]
#[case(&["--max-batched-tokens", "0"], "--max-batched-tokens 0: expected at least 1")]
#[case(&["--assumed-worker-blocks", "0"], "--assumed-worker-blocks 16384")]
#[case(&["--reservation-idle", "0"], "--reservation-idle 60s")]
#[case(&["--index-max-bytes", "2TB"], "64MiB or 1GB")]
fn bad_values_are_refused_with_what_is_expected(#[case] flags: &[&str], #[case] said: &str) {
    let pool = if flags.is_empty() {
        &[][..]
    } else {
        &["--pool-name", "llama"]
    };
    let flags: Vec<&str> = pool.iter().chain(flags).copied().collect();
    let error = checked(&flags).unwrap_err();
    assert!(error.contains(said), "{error}");
}
