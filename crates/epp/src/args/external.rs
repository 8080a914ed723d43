//! Flags of the external stage: a Processor that renders and tokenizes prompts, and may have its Router choose.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, value_parser};
use http::HeaderName;
use http_call::{BaseUrl, TrustFiles};
use process::ConfigError;
use processor_api::TokenField;

use super::{Size, Span};
use crate::external::Switches;

/// Where ids go in the body for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokenBodyField {
    /// `token_ids`.
    #[value(name = "token_ids")]
    TokenIds,
    /// `nvext.token_data`, as workers of Dynamo read it.
    Nvext,
    /// Nowhere: they go by key, or not at all.
    Off,
}

/// Whether requests name their model in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SetModelName {
    /// Where an external processor is used.
    Auto,
    /// In any case.
    Always,
    /// In none.
    Never,
}

/// Flags of the external stage.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "External processor")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each flag that is on or off"
)]
pub struct ExternalArgs {
    /// The Processor, such as `http://processor:8090`; /process is added unless the URL ends so. Read where
    /// --use-external-llm-processor is on.
    #[arg(long, env, value_name = "URL")]
    pub external_llm_processor_endpoint: Option<BaseUrl>,
    /// Ask the Processor about each chat and each prompt before the pick. Needs --external-llm-processor-endpoint. One of
    /// true, 1, yes, on, false, 0, no, off.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "false",
          num_args = 0..=1, default_missing_value = "true", value_parser = parse_switch)]
    pub use_external_llm_processor: bool,
    /// Have its Router choose the worker, by adding "route": true. Needs --use-external-llm-processor.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "false",
          num_args = 0..=1, default_missing_value = "true", value_parser = parse_switch)]
    pub use_external_llm_router: bool,
    /// How long a request waits for the Processor, 1ms to 1m.
    #[arg(long, env, value_name = "DURATION", default_value = "5s", value_parser = parse_timeout)]
    pub external_processor_timeout: Span,
    /// Requests that wait for it at once; others go on without it.
    #[arg(long, env, value_name = "N", default_value_t = 1024, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub external_processor_max_inflight: u32,
    /// Largest body that it is asked about, such as 16MiB.
    #[arg(long, env, value_name = "SIZE", default_value = "16MiB")]
    pub external_processor_max_body: Size,
    /// Largest reply that is taken.
    #[arg(long, env, value_name = "SIZE", default_value = "16MiB")]
    pub external_processor_max_response: Size,
    /// CAs in PEM that its certificate is checked against, for https; without it those of the system.
    #[arg(long, env, value_name = "FILE")]
    pub external_processor_ca_file: Option<PathBuf>,
    /// Directory with tls.crt and tls.key in PEM, to be known by.
    #[arg(long, env, value_name = "DIR")]
    pub external_processor_cert_dir: Option<PathBuf>,
    /// Refuse requests that it gives no reply to. Without it they are picked for here, and go on without ids.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "false",
          num_args = 0..=1, default_missing_value = "true", value_parser = parse_switch)]
    pub external_fail_closed: bool,
    /// A client's own "route" in the body, true or false, counts more than --use-external-llm-router.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "true",
          num_args = 0..=1, default_missing_value = "true", value_parser = parse_switch)]
    pub external_route_override: bool,
    /// Headers that go to it beside x-request-id, traceparent, tracestate and x-session-id; comma-separated. Not
    /// authorization, cookie, x-api-key and proxy-*.
    #[arg(long, env, value_name = "NAMES", value_delimiter = ',', value_parser = parse_forwarded)]
    pub external_forward_headers: Vec<String>,
    /// Where ids go in the body for a worker: `token_ids`; nvext, which is `nvext.token_data`; off, they go by key alone.
    #[arg(long, env, value_name = "FIELD", default_value = "token_ids")]
    pub token_body_field: TokenBodyField,
    /// Let clients send prompts as ids or embeddings: `token_ids`, `nvext.token_data`, `prompt_token_ids` (also in
    /// `kv_transfer_params`), `prompt_embeds`, `input_ids`, `input_embeds`, `embed_overrides`. Without it they are taken out
    /// while --use-external-llm-processor is on: they would read other tenants' prompts, or get round moderation.
    #[arg(long, env, value_name = "BOOL", action = ArgAction::Set, default_value = "false",
          num_args = 0..=1, default_missing_value = "true", value_parser = parse_switch)]
    pub allow_client_token_ids: bool,
    /// Set x-gateway-model-name to the model of the body, as the client named it: auto, with
    /// --use-external-llm-processor; always; never.
    #[arg(long, env, value_name = "WHEN", default_value = "auto")]
    pub set_model_name_header: SetModelName,
}

/// What the flags say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExternalSettings {
    /// Requests name their model in a header.
    pub(crate) names_models: bool,
    /// Absent: there is no stage.
    pub(crate) stage: Option<StageSettings>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StageSettings {
    pub(crate) switches: Switches,
    pub(crate) base: BaseUrl,
    pub(crate) timeout: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) max_reply: usize,
    pub(crate) tls: TrustFiles,
}

/// What proxies may be asked to wait for is longer; clients have mostly left by then.
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

// === impl ExternalArgs ===

impl ExternalArgs {
    /// What the flags say.
    ///
    /// # Errors
    /// For a Router without a Processor, and a Processor without its URL.
    pub(crate) fn settings(&self) -> Result<ExternalSettings, ConfigError> {
        let is_on = self.use_external_llm_processor;
        if self.use_external_llm_router && !is_on {
            return Err(ConfigError::new(
                "--use-external-llm-router without --use-external-llm-processor",
                "both, as the Processor calls the Router, or neither",
                "--use-external-llm-processor --use-external-llm-router --external-llm-processor-endpoint http://processor:8090",
            ));
        }
        let names_models = match self.set_model_name_header {
            SetModelName::Auto => is_on,
            SetModelName::Always => true,
            SetModelName::Never => false,
        };
        let stage = is_on.then(|| self.stage()).transpose()?;
        Ok(ExternalSettings {
            names_models,
            stage,
        })
    }

    fn stage(&self) -> Result<StageSettings, ConfigError> {
        let base = self.external_llm_processor_endpoint.clone();
        let base = base.ok_or_else(|| {
            ConfigError::new(
                "--use-external-llm-processor without --external-llm-processor-endpoint",
                "the URL of the Processor too",
                "--external-llm-processor-endpoint http://processor:8090",
            )
        })?;
        let tls = TrustFiles {
            ca_file: self.external_processor_ca_file.clone(),
            cert_dir: self.external_processor_cert_dir.clone(),
        };
        if tls != TrustFiles::default() && !base.is_https() {
            return Err(ConfigError::new(
                "--external-processor-ca-file or --external-processor-cert-dir without https",
                "an https URL in --external-llm-processor-endpoint, or neither of them",
                "--external-llm-processor-endpoint https://processor:8090",
            ));
        }
        let bytes = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
        let switches = Switches {
            routes: self.use_external_llm_router,
            clients_route: self.external_route_override,
            fail_closed: self.external_fail_closed,
            token_field: match self.token_body_field {
                TokenBodyField::TokenIds => Some(TokenField::TokenIds),
                TokenBodyField::Nvext => Some(TokenField::NvextTokenData),
                TokenBodyField::Off => None,
            },
            keeps_ids: self.allow_client_token_ids,
            max_body: bytes(self.external_processor_max_body),
            forwarded: self.external_forward_headers.clone(),
        };
        Ok(StageSettings {
            switches,
            base,
            timeout: self.external_processor_timeout.0,
            max_in_flight: usize::try_from(self.external_processor_max_inflight)
                .unwrap_or(usize::MAX),
            max_reply: bytes(self.external_processor_max_response),
            tls,
        })
    }
}

/// As the proposal writes them, in any case.
fn parse_switch(text: &str) -> Result<bool, String> {
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(&["true", "1", "yes", "on"]) {
        Ok(true)
    } else if is(&["false", "0", "no", "off"]) {
        Ok(false)
    } else {
        Err("it is none of true, 1, yes, on, false, 0, no, off".to_owned())
    }
}

fn parse_timeout(text: &str) -> Result<Span, String> {
    let span: Span = text.parse()?;
    if span.0 < Duration::from_millis(1) || span.0 > MAX_TIMEOUT {
        return Err(format!("{text:?} is not from 1ms to 1m"));
    }
    Ok(span)
}

/// In lower case.
fn parse_forwarded(text: &str) -> Result<String, String> {
    let name: HeaderName = text
        .trim()
        .parse()
        .map_err(|_| format!("{text:?} is no name of a header"))?;
    let name = name.as_str();
    let is_secret = ["authorization", "cookie", "x-api-key"].contains(&name);
    if is_secret || name.starts_with("proxy-") {
        return Err(format!("{name} may hold credentials: they stay here"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use crate::args::Args;

    const URL: &str = "--external-llm-processor-endpoint=http://processor:8090";
    const ON: &str = "--use-external-llm-processor";

    fn settings(flags: &[&str]) -> Result<ExternalSettings, String> {
        let words = ["epp", "--pool-name", "llm"].iter().chain(flags);
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        args.external.settings().map_err(|error| error.to_string())
    }

    /// All of D8, D9 and D10.
    #[rstest]
    #[case(&[], Ok(None))]
    #[case(&[URL], Ok(None))]
    #[case(&[ON], Err("--external-llm-processor-endpoint"))]
    #[case(&[ON, URL], Ok(Some(false)))]
    #[case(&["--use-external-llm-router"], Err("without --use-external-llm-processor"))]
    #[case(&["--use-external-llm-router", URL], Err("without --use-external-llm-processor"))]
    #[case(&["--use-external-llm-router", ON], Err("--external-llm-processor-endpoint"))]
    #[case(&["--use-external-llm-router", ON, URL], Ok(Some(true)))]
    fn a_router_needs_a_processor_and_a_processor_its_url(
        #[case] flags: &[&str],
        #[case] want: Result<Option<bool>, &str>,
    ) {
        let routes = settings(flags).map(|all| {
            assert_eq!(all.names_models, all.stage.is_some(), "auto");
            all.stage.map(|stage| stage.switches.routes)
        });
        match (routes, want) {
            (Ok(routes), Ok(want)) => assert_eq!(routes, want),
            (Err(error), Err(want)) => assert!(error.contains(want), "{error}"),
            other => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case("true", Some(true))]
    #[case("1", Some(true))]
    #[case("Yes", Some(true))]
    #[case("on", Some(true))]
    #[case("FALSE", Some(false))]
    #[case("0", Some(false))]
    #[case("no", Some(false))]
    #[case("off", Some(false))]
    #[case("y", None)]
    #[case("", None)]
    #[case("2", None)]
    fn switches_are_the_words_of_the_proposal(#[case] text: &str, #[case] want: Option<bool>) {
        let given = settings(&[URL, &format!("{ON}={text}")]);
        assert_eq!(given.ok().map(|all| all.stage.is_some()), want);
    }

    #[rstest]
    #[case("--external-processor-ca-file=/ca.crt")]
    #[case("--external-processor-cert-dir=/certs")]
    fn files_of_tls_need_a_url_of_tls(#[case] file: &str) {
        let error = settings(&[ON, URL, file]).unwrap_err();
        assert!(error.contains("https"), "{error}");
        let https = URL.replace("http:", "https:");
        let stage = settings(&[ON, &https, file]).unwrap().stage.unwrap();
        assert_ne!(stage.tls, TrustFiles::default());
    }

    #[test]
    fn the_default_switches_are_those_of_the_flags() {
        let stage = settings(&[ON, URL]).unwrap().stage.unwrap();
        assert_eq!(stage.switches, Switches::default());
        assert_eq!(
            (stage.timeout, stage.max_in_flight),
            (Duration::from_secs(5), 1024)
        );
        assert_eq!(stage.max_reply, 16 << 20);
    }

    #[rstest]
    #[case(&["--external-llm-processor-endpoint=ftp://x"], "--external-llm-processor-endpoint")]
    #[case(&["--external-llm-processor-endpoint=http://me:pw@x"], "--external-llm-processor-endpoint")]
    #[case(&["--external-forward-headers=x-tenant,Authorization"], "credentials")]
    #[case(&["--external-forward-headers=proxy-x"], "credentials")]
    #[case(&["--external-forward-headers=a b"], "no name of a header")]
    #[case(&["--external-processor-timeout=0"], "1ms to 1m")]
    #[case(&["--external-processor-timeout=2m"], "1ms to 1m")]
    #[case(&["--token-body-field=ids"], "token_ids")]
    fn what_cannot_work_is_refused_also_while_the_stage_is_off(
        #[case] flags: &[&str],
        #[case] part: &str,
    ) {
        let error = settings(flags).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    #[rstest]
    #[case("always", &[], true)]
    #[case("never", &[ON, URL], false)]
    fn the_header_of_the_model_has_a_switch_of_its_own(
        #[case] when: &str,
        #[case] flags: &[&str],
        #[case] want: bool,
    ) {
        let when = format!("--set-model-name-header={when}");
        let flags: Vec<_> = flags.iter().copied().chain([&*when]).collect();
        assert_eq!(settings(&flags).unwrap().names_models, want);
    }
}
