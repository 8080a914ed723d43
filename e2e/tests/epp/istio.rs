//! The configuration that Istio makes of an `InferencePool`, on a second set of programs.
//!
//! `fixtures/istio/way-b-static-envoy.json` is what istiod (Go module `istio.io/istio`, v0.0.0-20260827124520-eed52ebb66ad) gave the Envoy of a Gateway with an
//! HTTPRoute to an InferencePool, whose endpoint picker had a `DestinationRule` with `tls: {mode: SIMPLE, insecureSkipVerify: true}`.
//! The endpoints, which Istio gives in messages of their own, were put into the clusters.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use testbed::standalone::{Setup, Standalone, lb_endpoint, socket};
use testbed::{Answer, Requests, eventually};

use crate::client::CHAT;
use crate::mtls::PORTS;
use crate::stand::{SOON, Stand, chat, text_of};

const RECORDED: &str = include_str!("../../fixtures/istio/way-b-static-envoy.json");
/// The Service of the endpoint picker, there.
const HOST: &str = "llama-epp.llm.svc.cluster.local";
/// The endpoint picker takes the client's choice.
const CHOICE: &str = "--conformance-headers";
/// What the last listener listens on: the one whose `DestinationRule` has no `sni`.
const NAMELESS_PORT: u16 = PORTS.clients + 1;
const REFUSED: &str = "epp_tls_handshake_failures_total{port=\"ext_proc\",reason=\"server_name\"}";

/// The programs, and where their logs are.
struct Programs {
    standalone: Standalone,
    logs: PathBuf,
}

pub(crate) async fn a_pick_is_served_behind_istio_over_tls(stand: &Stand) -> Result<()> {
    let programs = Programs::start(stand, "istio-tls", &[CHOICE], over_tls).await?;
    let outcome = programs.serves_each_pick().await;
    programs.standalone.stop().await;
    outcome
}

pub(crate) async fn a_pick_is_served_behind_istio_in_plaintext(stand: &Stand) -> Result<()> {
    let flags = [CHOICE, "--secure-serving=false"];
    let programs = Programs::start(stand, "istio-plaintext", &flags, in_plaintext).await?;
    let outcome = programs.serves_each_pick().await;
    programs.standalone.stop().await;
    outcome
}

pub(crate) async fn without_a_server_name_istio_is_refused_with_an_advice(
    stand: &Stand,
) -> Result<()> {
    let programs = Programs::start(stand, "istio-nameless", &[CHOICE], over_tls).await?;
    let outcome = programs.refuses_without_a_name().await;
    programs.standalone.stop().await;
    outcome
}

// === impl Programs ===

impl Programs {
    /// Their files and logs have this name.
    async fn start(
        stand: &Stand,
        name: &str,
        epp_flags: &[&str],
        configure_envoy: fn(&mut Value, &Setup),
    ) -> Result<Self> {
        let files = stand.standalone.files().join(name);
        std::fs::create_dir_all(&files)?;
        let logs = stand.logs.join(name);
        let setup = Setup {
            epp_flags: epp_flags.iter().copied().map(ToOwned::to_owned).collect(),
            configure_envoy,
            ..Setup::sample(PORTS)
        };
        let standalone = setup.start(&files, &logs).await?;
        Ok(Self { standalone, logs })
    }

    async fn serves_each_pick(&self) -> Result<()> {
        let gateway = Requests::new(self.standalone.url());
        for (nth, at) in self.standalone.servers().iter().enumerate() {
            for stream in [false, true] {
                let answer = ask(&gateway, &at.to_string(), stream).await?;
                let served = answer.headers.get("x-conformance-test-served-endpoint");
                ensure!(
                    answer.status == 200
                        && answer.pod() == Some(&*format!("llama-{nth}"))
                        && served.is_some_and(|served| *served == at.to_string())
                        && text_of(&answer).is_some_and(|text| !text.is_empty()),
                    "{at}, stream {stream}: {} {:?}: {}",
                    answer.status,
                    answer.headers,
                    answer.text()
                );
            }
        }
        Ok(())
    }

    async fn refuses_without_a_name(&self) -> Result<()> {
        let gateway = Requests::new(format!("http://127.0.0.1:{NAMELESS_PORT}"));
        let first = self.standalone.servers()[0].to_string();
        let answer = ask(&gateway, &first, false).await?;
        ensure!(
            answer.status == 500 && answer.pod().is_none(),
            "{} from {:?}: {}",
            answer.status,
            answer.pod(),
            answer.text()
        );
        let log = self.logs.join("epp.log");
        let said = eventually("the count and the advice", SOON, async || {
            let refused = self.standalone.metric(REFUSED).await?;
            let log = std::fs::read_to_string(&log).map_err(|error| error.to_string())?;
            if refused > Some(0.0) && log.contains("set `sni` there") {
                return Ok(());
            }
            Err(format!("{REFUSED}: {refused:?}; {log}"))
        });
        Ok(said.await?)
    }
}

/// Asks for an answer of this model server.
async fn ask(gateway: &Requests, server: &str, stream: bool) -> Result<Answer> {
    let mut headers = HeaderMap::new();
    let server = HeaderValue::from_str(server)?;
    headers.insert("test-epp-endpoint-selection", server);
    Ok(gateway
        .post(CHAT, headers, chat("hello", 3, stream))
        .await?)
}

/// With a `sni` in the `DestinationRule`, for which Istio sets the name in place of `auto_sni`; and a listener as recorded, without.
fn over_tls(config: &mut Value, setup: &Setup) {
    *config = recorded(setup);
    let resources = &mut config["static_resources"];
    let (mut listener, mut cluster) = (
        resources["listeners"][0].clone(),
        resources["clusters"][1].clone(),
    );
    let named = &mut resources["clusters"][1];
    named["transport_socket"]["typed_config"]["sni"] = HOST.into();
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    named["typed_extension_protocol_options"][options]["upstream_http_protocol_options"] =
        Value::Null;

    let nameless = format!("outbound|9002|nameless|{HOST}");
    listener["name"] = "nameless".into();
    listener["address"] = socket(Ipv4Addr::LOCALHOST.into(), NAMELESS_PORT);
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0];
    let filter = &mut route["typed_per_filter_config"]["envoy.filters.http.ext_proc"];
    filter["overrides"]["grpc_service"]["envoy_grpc"]["cluster_name"] = json!(nameless);
    cluster["name"] = json!(nameless);
    cluster["load_assignment"]["cluster_name"] = json!(nameless);
    for (place, added) in [("listeners", listener), ("clusters", cluster)] {
        if let Some(resources) = resources[place].as_array_mut() {
            resources.push(added);
        }
    }
}

/// Without a `DestinationRule`.
fn in_plaintext(config: &mut Value, setup: &Setup) {
    *config = recorded(setup);
    config["static_resources"]["clusters"][1]["transport_socket"] = Value::Null;
}

/// What Istio made, with the addresses of these programs.
fn recorded(setup: &Setup) -> Value {
    let mut config: Value = serde_json::from_str(RECORDED).unwrap();
    let local = Ipv4Addr::LOCALHOST;
    config["admin"]["address"] = socket(local.into(), setup.ports.admin);
    let resources = &mut config["static_resources"];
    resources["listeners"][0]["address"] = socket(local.into(), setup.ports.clients);
    let picker = (local, setup.ports.pickers[0].ext_proc).into();
    for (nth, endpoints) in [
        setup.addresses().map(lb_endpoint).collect(),
        vec![lb_endpoint(picker)],
    ]
    .into_iter()
    .enumerate()
    {
        let assignment = &mut resources["clusters"][nth]["load_assignment"];
        assignment["endpoints"][0]["lb_endpoints"] = endpoints.into();
    }
    config
}
