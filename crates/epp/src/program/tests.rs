use rstest::rstest;

use super::*;
use crate::config::Compat;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn read(config_file: Option<&str>, config_text: Option<&str>) -> anyhow::Result<Config> {
    let args = ConfigArgs {
        config_file: config_file.map(Into::into),
        config_text: config_text.map(str::to_owned),
        config_compat: Compat::Strict,
    };
    let freshness = Freshness {
        fresh_for: Duration::from_millis(7),
        stale_for: STALE_FOR,
    };
    let (config, _) = configuration(args, freshness)?;
    Ok(Config::clone(&config.load()))
}

#[test]
fn without_a_file_the_default_holds_with_the_freshness_of_the_flags() {
    let mut config = read(None, None).unwrap();
    assert_eq!(config.profile.freshness.fresh_for, Duration::from_millis(7));
    config.profile.freshness = Freshness::default();
    assert_eq!(config, Config::default());
}

/// Which the program ends with exit code 64 for.
#[rstest]
#[case(None, Some("{"), "--config-text: the file: ")]
#[case(
    None,
    Some("{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugin: []}"),
    "--config-text: plugin: "
)]
#[case(
    Some("/nonexistent/epp.yaml"),
    None,
    "--config-file /nonexistent/epp.yaml: cannot read it: "
)]
fn a_bad_configuration_is_an_error_of_the_caller(
    #[case] file: Option<&str>,
    #[case] text: Option<&str>,
    #[case] want: &str,
) {
    let error = read(file, text).unwrap_err();
    let error = error.downcast_ref::<ConfigError>().expect("exit code 64");
    assert!(error.to_string().starts_with(want), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_draining_epp_stays_ready_for_its_successor_and_then_for_proxies_takes_streams() {
    let readiness = Readiness::new();
    for part in [crate::Part::Discovery, crate::Part::Metrics] {
        readiness.set(part, true);
    }
    let (goaway, drained) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = Tasks::new();
    let stop = goaway.clone();
    tasks.spawn(async move {
        stop.cancelled().await;
        (EXT_PROC, Ok(()))
    });
    let start = Instant::now();
    let seen = async {
        while readiness.is_ready() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let unready = start.elapsed();
        goaway.cancelled().await;
        (unready, start.elapsed())
    };
    let drain = drain(&mut tasks, secs(30), &readiness, &goaway, &drained);
    let (result, (unready, went)) = tokio::join!(drain, seen);
    result.expect("drains");
    assert!(unready >= secs(10) && unready < secs(11), "{unready:?}");
    assert_eq!(went, secs(14));
}
