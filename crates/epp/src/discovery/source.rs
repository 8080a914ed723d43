//! Which source the flags and the configuration name.

use discovery::{Source, SourceFlags};
use process::ConfigError;

use crate::{args::PoolArgs, config::FileDiscovery as ConfiguredFile};

/// The one source that is named, by flags or as the configuration's `file-discovery`.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) fn named_source(
    args: &PoolArgs,
    file: Option<&ConfiguredFile>,
) -> Result<Source, ConfigError> {
    let flags = SourceFlags {
        pool_name: args.pool_name.as_deref(),
        endpoint_selector: args.endpoint_selector.as_ref(),
        endpoint_target_ports: args.endpoint_target_ports.as_ref(),
        endpoints_file: args.endpoints_file.as_deref(),
        namespace: args.namespace(),
    };
    let Some(file) = file else {
        return Source::of(flags);
    };
    flags.check()?;
    if flags.endpoints_file.is_some() || flags.endpoint_selector.is_some() {
        return Err(Source::one_of(
            "file-discovery of the configuration beside another source",
        ));
    }
    // the pool's name is that of the metrics
    Ok(Source::File {
        path: file.path.clone(),
        watch: file.watch,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use discovery::Opened;
    use rstest::rstest;

    use super::*;
    use crate::args::Args;

    fn args(flags: &[&str]) -> PoolArgs {
        let words = ["epp"].iter().chain(flags);
        Args::try_parse_from(words).unwrap().pool
    }

    fn mk_selector(namespace: &str) -> Source {
        Source::Selector {
            namespace: namespace.to_owned(),
            selector: "app=x,!old".parse().unwrap(),
            ports: "8000,8001".parse().unwrap(),
        }
    }

    fn mk_pool() -> Source {
        Source::Pool {
            namespace: "default".to_owned(),
            name: "llm".to_owned(),
        }
    }

    fn mk_file() -> Source {
        Source::File {
            path: "e.yaml".into(),
            watch: true,
        }
    }

    #[rstest]
    #[case(&["--pool-name", "llm"], mk_pool())]
    #[case(&["--endpoint-selector", "app=x,!old", "--endpoint-target-ports", "8000,8001"], mk_selector("default"))]
    #[case(&["--pool-namespace", "ml", "--endpoint-selector=app=x,!old", "--endpoint-target-ports=8000,8001"], mk_selector("ml"))]
    #[case(&["--endpoints-file", "e.yaml"], mk_file())]
    #[case(&["--endpoints-file", "e.yaml", "--pool-name", "llm"], mk_file())]
    fn one_source_is_named(#[case] flags: &[&str], #[case] expected: Source) {
        assert_eq!(named_source(&args(flags), None).unwrap(), expected);
    }

    #[rstest]
    #[case(&[], "no source of endpoints: expected exactly one of")]
    #[case(&["--pool-name", "llm", "--endpoint-selector", "a", "--endpoint-target-ports", "1"], "--pool-name and --endpoint-selector: ")]
    #[case(&["--endpoints-file", "e", "--endpoint-selector", "a", "--endpoint-target-ports", "1"], "--endpoints-file and --endpoint-selector: ")]
    #[case(&["--endpoint-selector", "a"], "--endpoint-selector without --endpoint-target-ports: ")]
    #[case(&["--pool-name", "llm", "--endpoint-target-ports", "1"], "--endpoint-target-ports without --endpoint-selector: ")]
    fn none_and_two_are_refused(#[case] flags: &[&str], #[case] text: &str) {
        let error = named_source(&args(flags), None).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }

    async fn open_file(text: &str) -> anyhow::Result<Opened> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.yaml");
        std::fs::write(&path, text).unwrap();
        let source = Source::File { path, watch: false };
        source
            .open(async || Err(anyhow::anyhow!("Kubernetes is not needed")))
            .await
    }

    #[tokio::test]
    async fn a_file_needs_no_kubernetes() {
        let text = "endpoints: [{name: a, address: 10.0.0.1, port: 8000}]";
        let opened = open_file(text).await.expect("it opens");
        assert!(opened.objects.is_none());
    }

    #[tokio::test]
    async fn a_bad_file_is_a_configuration_error() {
        let error = open_file("endpoints: 5").await.err().expect("refused");
        assert!(error.downcast_ref::<ConfigError>().is_some());
        assert!(
            error
                .to_string()
                .contains("e.yaml: it is no list of endpoints"),
            "{error}"
        );
    }

    #[test]
    fn a_file_of_the_configuration_is_the_only_source() {
        let file = ConfiguredFile {
            path: "/e.yaml".into(),
            watch: false,
        };
        let expected = Source::File {
            path: "/e.yaml".into(),
            watch: false,
        };
        for flags in [&[][..], &["--pool-name", "llm"]] {
            assert_eq!(named_source(&args(flags), Some(&file)).unwrap(), expected);
        }
        let both = named_source(&args(&["--endpoints-file", "f"]), Some(&file));
        assert!(both.unwrap_err().to_string().contains("file-discovery"));
    }
}
