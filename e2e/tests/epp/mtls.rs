//! Mutual TLS between Envoy and the endpoint picker: the files of `docs/epp-security.md`, on a second set of programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use testbed::pki::{Authority, Certificate};
use testbed::standalone::{MAX_PICKERS, MODEL, PickerPorts, Ports, Setup, Standalone, socket};
use testbed::{Requests, eventually, write_volume};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::stand::{SOON, Stand};

const DOCS: &str = include_str!("../../../docs/epp-security.md");
/// Of the endpoint picker, in the docs.
const EPP: &str = "llama-epp.llm.svc";
/// Of the gateway, in the docs.
const GATEWAY: &str = "spiffe://west/ns/gateways/sa/inference";
/// Apart from those of the other programs: a second set runs on them, in one test at a time.
pub(crate) const PORTS: Ports = Ports {
    clients: 18_080,
    servers: 18_000,
    pickers: [PickerPorts {
        ext_proc: 19_002,
        health: 19_003,
        metrics: 19_090,
    }; MAX_PICKERS],
    admin: 19_001,
    ..Ports::USUAL
};
/// At a time.
const CLIENTS: u32 = 4;
/// So that connections are made all the time.
const REQUESTS_PER_CONNECTION: u32 = 5;
/// With the new certificates alone: some ten new connections.
const AFTERWARDS: u32 = 50;
/// Tokens of an answer that goes on for as long as anything takes here: at most one each 10 ms.
const LONG: u32 = 12_000;
const PICKED: &str = "llm_d_epp_request_total";

/// Who an Envoy says it is; each has a listener and a cluster of its own, and a directory with its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// As in the docs.
    Gateway,
    /// Of the gateway's name, by another CA.
    Stranger,
    /// Of another name, by the CA.
    Renamed,
    /// Without a certificate.
    Anonymous,
    /// What the gateway was before the rotation.
    Former,
}

/// The programs, with certificates.
struct Secured {
    standalone: Standalone,
    authority: Authority,
}

pub(crate) async fn a_gateway_without_the_right_certificate_gets_no_pick(
    stand: &Stand,
) -> Result<()> {
    let secured = Secured::start(stand, "refused").await?;
    let outcome = async {
        for (peer, reason) in [
            (Peer::Stranger, "certificate"),
            (Peer::Renamed, "name"),
            (Peer::Anonymous, "no_certificate"),
        ] {
            secured.is_refused(peer, reason).await?;
        }
        let picked = secured.metric(PICKED).await?;
        let answer = peer_url(Peer::Gateway).chat(MODEL, "hello").await?;
        ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        ensure!(secured.metric(PICKED).await? > picked, "no pick is counted");
        Ok(())
    };
    let outcome = outcome.await;
    secured.standalone.stop().await;
    outcome
}

pub(crate) async fn certificates_and_cas_are_rotated_under_load_without_a_failed_request(
    stand: &Stand,
) -> Result<()> {
    let secured = Secured::start(stand, "rotated").await?;
    let (sent, done) = (AtomicU32::new(0), CancellationToken::new());
    let rotation = async {
        let _done = done.clone().drop_guard();
        secured.rotated(&sent).await
    };
    let (load, rotation) = tokio::join!(load(&sent, &done), rotation);
    secured.standalone.stop().await;
    load.and(rotation)
}

/// Sends requests until it is done; the first that is not answered ends it.
async fn load(sent: &AtomicU32, done: &CancellationToken) -> Result<()> {
    let gateway = peer_url(Peer::Gateway);
    let clients = (0..CLIENTS).map(async |_| {
        while !done.is_cancelled() {
            let answer = gateway.chat(MODEL, "hello").await?;
            let nth = sent.fetch_add(1, Ordering::Relaxed);
            let text = answer.text();
            ensure!(
                answer.status == 200 && answer.json()["usage"].is_object(),
                "request {nth}: {}: {text}",
                answer.status
            );
        }
        Ok(())
    });
    try_join_all(clients).await?;
    Ok(())
}

// === impl Peer ===

impl Peer {
    const ALL: [Self; 5] = [
        Self::Gateway,
        Self::Stranger,
        Self::Renamed,
        Self::Anonymous,
        Self::Former,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Gateway => "client",
            Self::Stranger => "stranger",
            Self::Renamed => "renamed",
            Self::Anonymous => "anonymous",
            Self::Former => "former",
        }
    }

    fn port(self) -> u16 {
        let nth = Self::ALL.iter().position(|peer| *peer == self);
        PORTS.clients + u16::try_from(nth.unwrap_or_default()).unwrap_or_default()
    }

    /// A text of the docs with this one's files, in the directory in which Envoy runs.
    fn own(self, text: &str) -> String {
        text.replace("/etc/envoy/client", &format!("/etc/envoy/{}", self.name()))
            .replace("/etc/envoy", ".")
    }

    /// The sample's cluster of the endpoint picker, with this one's certificate.
    fn cluster(self, sample: &Value) -> Value {
        let mut cluster = sample.clone();
        let block = self.own(documented("transport_socket:"));
        let block: Value = serde_yaml::from_str(&block).unwrap();
        let mut socket = block["transport_socket"].clone();
        if self == Self::Anonymous {
            let context = &mut socket["typed_config"]["common_tls_context"];
            context["tls_certificate_sds_secret_configs"] = json!([]);
        }
        cluster["transport_socket"] = socket;
        let mut requests = REQUESTS_PER_CONNECTION;
        if self != Self::Gateway {
            cluster["name"] = self.name().into();
            cluster["load_assignment"]["cluster_name"] = self.name().into();
            // else a failed check alone would answer 503
            cluster["health_checks"] = json!([]);
            requests = 1;
        }
        let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let options = &mut cluster["typed_extension_protocol_options"][options];
        options["common_http_protocol_options"] = json!({"max_requests_per_connection": requests});
        cluster
    }

    /// The sample's listener, which asks by this one's cluster.
    fn listener(self, sample: &Value) -> Value {
        let mut listener = sample.clone();
        listener["name"] = self.name().into();
        listener["address"] = socket([127, 0, 0, 1].into(), self.port());
        let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
        let ext_proc = &mut manager["http_filters"][0]["typed_config"];
        ext_proc["grpc_service"]["envoy_grpc"]["cluster_name"] = self.name().into();
        listener
    }
}

// === impl Secured ===

impl Secured {
    /// Its programs have files and logs of this name.
    async fn start(stand: &Stand, name: &str) -> Result<Self> {
        let files = stand.standalone.files().join(name);
        std::fs::create_dir_all(&files)?;
        let (authority, other) = (Authority::make("first")?, Authority::make("other")?);
        write_pair(&files, "tls", 1, &authority.server(&[], &[EPP])?)?;
        write_cas(&files, "clients", 1, &[&authority])?;
        write_cas(&files, "epp-ca", 1, &[&authority])?;
        let secret = Peer::Gateway.own(documented_secret("validation_context:"));
        std::fs::write(files.join("epp-ca.yaml"), secret)?;
        let gateway = authority.workload(GATEWAY)?;
        let renamed = authority.workload("spiffe://west/ns/gateways/sa/another")?;
        for (peer, pair) in [
            (Peer::Gateway, &gateway),
            (Peer::Former, &gateway),
            (Peer::Stranger, &other.workload(GATEWAY)?),
            (Peer::Renamed, &renamed),
        ] {
            write_pair(&files, peer.name(), 1, pair)?;
            let secret = peer.own(documented_secret("tls_certificate:"));
            std::fs::write(files.join(format!("{}.yaml", peer.name())), secret)?;
        }
        let flags = ["--cert-path=tls", "--client-ca-file=clients/ca.crt"];
        let san = format!("--client-san={GATEWAY}");
        let setup = Setup {
            epp_flags: flags
                .into_iter()
                .chain([&*san])
                .map(ToOwned::to_owned)
                .collect(),
            configure_envoy,
            ..Setup::sample(PORTS)
        };
        let standalone = setup.start(&files, &stand.logs.join(name)).await?;
        Ok(Self {
            standalone,
            authority,
        })
    }

    /// What the docs say under "Rotate", for all certificates and CAs.
    async fn rotated(&self, sent: &AtomicU32) -> Result<()> {
        let files = self.standalone.files();
        let (first, second) = (&self.authority, Authority::make("second")?);
        let former = peer_url(Peer::Former).chat(MODEL, "hello").await?;
        ensure!(former.status == 200, "{}: {}", former.status, former.text());
        let began = Instant::now();
        let mut open = peer_url(Peer::Gateway)
            .chat_stream(MODEL, "hello", LONG)
            .await?;

        // both are trusted
        let (cas, secrets) = (self.reloads("client_ca").await?, self.secrets().await?);
        write_cas(files, "clients", 2, &[first, &second])?;
        write_cas(files, "epp-ca", 2, &[first, &second])?;
        self.standalone.reload_epp().await;
        self.until_reloaded("client_ca", cas).await?;
        self.until_secrets(secrets).await?;

        // the new are presented; that nobody tells the endpoint picker is a part of the promise
        let (pairs, secrets) = (self.reloads("certificate").await?, self.secrets().await?);
        write_pair(files, "tls", 2, &second.server(&[], &[EPP])?)?;
        write_pair(files, Peer::Gateway.name(), 2, &second.workload(GATEWAY)?)?;
        self.until_reloaded("certificate", pairs).await?;
        self.until_secrets(secrets).await?;

        // the old one is not
        let (cas, secrets) = (self.reloads("client_ca").await?, self.secrets().await?);
        write_cas(files, "clients", 3, &[&second])?;
        write_cas(files, "epp-ca", 3, &[&second])?;
        self.standalone.reload_epp().await;
        self.until_reloaded("client_ca", cas).await?;
        self.until_secrets(secrets).await?;

        self.is_refused(Peer::Former, "certificate").await?;
        let connections = self.envoy("cluster.epp.upstream_cx_total").await?;
        let enough = sent.load(Ordering::Relaxed) + AFTERWARDS;
        eventually(
            "requests with the new certificates",
            SOON,
            async || match sent.load(Ordering::Relaxed) {
                now if now >= enough => Ok(()),
                now => Err(format!("{now} of {enough}")),
            },
        )
        .await?;
        let made = self.envoy("cluster.epp.upstream_cx_total").await? - connections;
        ensure!(made >= 2.0, "{made} new connections");
        // there is one each 10 ms at most: so many came meanwhile, and fewer on a busy machine, which has to make the others first
        let passed = began.elapsed();
        let meanwhile = passed.as_millis() / 10;
        let goes_on = async {
            for _ in 0..=meanwhile {
                let event = open.next_event().await.map_err(anyhow::Error::msg)?;
                ensure!(event.is_some(), "an answer that began before has ended");
            }
            Ok(())
        };
        timeout(SOON + passed * 4, goes_on).await?
    }

    /// A clear answer of the proxy, no pick, and a count that names the cause.
    async fn is_refused(&self, peer: Peer, reason: &str) -> Result<()> {
        let failures =
            format!("epp_tls_handshake_failures_total{{port=\"ext_proc\",reason=\"{reason}\"}}");
        let before = self.metric(&failures).await?;
        let answer = peer_url(peer).chat(MODEL, "hello").await?;
        ensure!(
            answer.status == 503 && answer.pod().is_none(),
            "{peer:?}: {} from {:?}: {}",
            answer.status,
            answer.pod(),
            answer.text()
        );
        let what = format!("{peer:?} is counted as {reason}");
        self.until(&what, &failures, before).await
    }

    async fn reloads(&self, item: &str) -> Result<f64> {
        self.metric(&reloads(item)).await
    }

    async fn until_reloaded(&self, item: &str, before: f64) -> Result<()> {
        self.until(item, &reloads(item), before).await
    }

    /// Waits until the endpoint picker's metric is more than that.
    async fn until(&self, what: &str, metric: &str, before: f64) -> Result<()> {
        let grown = eventually(what, SOON, async || {
            match self.standalone.metric(metric).await? {
                Some(now) if now > before => Ok(()),
                now => Err(format!("{metric}: {now:?}, {before} before")),
            }
        });
        Ok(grown.await?)
    }

    /// The metric, 0 where the page has none of it yet.
    async fn metric(&self, metric: &str) -> Result<f64> {
        let value = self.standalone.metric(metric).await;
        Ok(value.map_err(anyhow::Error::msg)?.unwrap_or(0.0))
    }

    /// How often Envoy has taken certificates or CAs into use, for the gateway's cluster.
    async fn secrets(&self) -> Result<f64> {
        self.envoy("cluster.epp.client_ssl_socket_factory.ssl_context_update_by_sds")
            .await
    }

    async fn until_secrets(&self, before: f64) -> Result<()> {
        let grown = eventually("Envoy has read its files", SOON, async || {
            match self.secrets().await {
                Ok(now) if now > before => Ok(()),
                now => Err(format!("{now:?}, {before} before")),
            }
        });
        Ok(grown.await?)
    }

    /// One of Envoy's counters.
    async fn envoy(&self, counter: &str) -> Result<f64> {
        let page = Requests::new(self.standalone.admin_url());
        let page = page.get("/stats").await?.text();
        let line = page.lines().find_map(|line| line.strip_prefix(counter));
        let value = line.and_then(|line| line.strip_prefix(": "));
        Ok(value.with_context(|| format!("no {counter}"))?.parse()?)
    }
}

fn configure_envoy(config: &mut Value, _: &Setup) {
    config["node"] = json!({"id": "gateway", "cluster": "gateways"});
    let resources = &mut config["static_resources"];
    let (listener, cluster) = (
        resources["listeners"][0].clone(),
        resources["clusters"][1].clone(),
    );
    resources["clusters"][1] = Peer::Gateway.cluster(&cluster);
    for peer in Peer::ALL {
        if peer == Peer::Gateway {
            continue;
        }
        for (place, added) in [
            ("listeners", peer.listener(&listener)),
            ("clusters", peer.cluster(&cluster)),
        ] {
            if let Some(resources) = resources[place].as_array_mut() {
                resources.push(added);
            }
        }
    }
}

fn reloads(item: &str) -> String {
    format!("epp_certificate_reloads_total{{port=\"ext_proc\",item=\"{item}\",result=\"success\"}}")
}

/// Through Envoy, as this one.
fn peer_url(peer: Peer) -> Requests {
    Requests::new(format!("http://127.0.0.1:{}", peer.port()))
}

/// The part of the docs that begins so.
fn documented(beginning: &str) -> &'static str {
    let mut blocks = blocks();
    blocks
        .find(|block| block.starts_with(beginning))
        .unwrap_or_default()
}

/// The file of the docs with the secret that has this.
fn documented_secret(holds: &str) -> &'static str {
    let mut blocks = blocks();
    blocks
        .find(|block| block.starts_with("resources:") && block.contains(holds))
        .unwrap_or_default()
}

fn blocks() -> impl Iterator<Item = &'static str> {
    let blocks = DOCS.split("```yaml\n").skip(1);
    blocks.filter_map(|block| block.split("```").next())
}

/// As a Secret of type `kubernetes.io/tls` is mounted.
fn write_pair(files: &Path, name: &str, generation: u64, pair: &Certificate) -> Result<()> {
    let Certificate { certificate, key } = pair;
    let content = [("tls.crt", certificate), ("tls.key", key)];
    write(files, name, generation, content)
}

/// As a ConfigMap with a bundle is mounted.
fn write_cas(files: &Path, name: &str, generation: u64, cas: &[&Authority]) -> Result<()> {
    let bundle: String = cas.iter().map(|ca| ca.pem()).collect();
    write(files, name, generation, [("ca.crt", &bundle)])
}

fn write<'a>(
    files: &Path,
    name: &str,
    generation: u64,
    content: impl IntoIterator<Item = (&'static str, &'a String)>,
) -> Result<()> {
    let content = content.into_iter();
    let content = content.map(|(name, text)| (name.to_owned(), text.clone().into_bytes()));
    let content: BTreeMap<String, Vec<u8>> = content.collect();
    let directory = files.join(name);
    std::fs::create_dir_all(&directory)?;
    Ok(write_volume(&directory, generation, &content)?)
}
