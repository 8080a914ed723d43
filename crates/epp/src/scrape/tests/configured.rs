//! Scraping as a configuration has it: over TLS, elsewhere, under other names, and changed while it runs.

use std::{fs, path::PathBuf};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::config::{Compat, Config, CurrentConfig};

/// A self-signed pair for 127.0.0.1, in files.
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn write(dir: &TempDir, name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = dir.path().join(format!("{name}.crt"));
        let key = dir.path().join(format!("{name}.key"));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Self { certificate, key }
    }

    fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.certificate).unwrap()
    }
}

/// A server of `server`; with `client`, only for who shows that certificate.
fn mk_acceptor(server: &Pair, client: Option<&Pair>) -> TlsAcceptor {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let mut roots = RootCertStore::empty();
            roots.add(client.certificate()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = PrivateKeyDer::from_pem_file(&server.key).unwrap();
    let config = builder.with_single_cert(vec![server.certificate()], key);
    TlsAcceptor::from(Arc::new(config.unwrap()))
}

/// Serves [`PAGE`] at `path`, and at no other.
async fn serve_tls(
    servers: &mut JoinSet<()>,
    acceptor: TlsAcceptor,
    path: &'static str,
) -> SocketAddr {
    serve(servers, move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return;
            };
            while let Some(head) = read_head(&mut stream).await {
                let is_ours = head.starts_with(&format!("GET {path} HTTP/1.1\r\n"));
                let status = if is_ours { "200 OK" } else { "404 Not Found" };
                answer(&mut stream, status, PAGE).await;
            }
        }
    })
    .await
}

fn mk_config(type_name: &str, parameters: &str) -> Config {
    let text = format!(
        "{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, \
         plugins: [{{type: {type_name}, parameters: {{{parameters}}}}}]}}"
    );
    Config::parse(&text, Compat::Strict).unwrap()
}

fn mk_source(parameters: &str) -> Config {
    mk_config("metrics-data-source", parameters)
}

fn mk_plan(config: &Config) -> watch::Receiver<Plan> {
    watch::channel(Plan::load(config).unwrap()).1
}

/// An endpoint nobody listens at: only its metrics are elsewhere.
fn mk_closed() -> SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

#[tokio::test]
async fn pages_come_over_tls_from_another_path_and_port_with_both_sides_checked() {
    let (mut servers, dir) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let (server, client) = (Pair::write(&dir, "server"), Pair::write(&dir, "client"));
    let acceptor = mk_acceptor(&server, Some(&client));
    let address = serve_tls(&mut servers, acceptor, "/stats?all=1").await;
    let config = mk_source(&format!(
        "scheme: https, path: '/stats?all=1', port: {}, insecureSkipVerify: false, caCertPath: {}, \
         clientCertPath: {}, clientKeyPath: {}",
        address.port(),
        server.certificate.display(),
        client.certificate.display(),
        client.key.display(),
    ));
    let snapshot = mk_snapshot(&[mk_closed()]);
    let running = start_with(Some(Arc::clone(&snapshot)), mk_plan(&config));
    let endpoint = &snapshot.members()[0].endpoint;
    running
        .until(endpoint, |reading| reading.scraped == FULL)
        .await;
}

#[rstest]
#[case::checked_and_unknown("insecureSkipVerify: false", false)]
#[case::unchecked_as_by_default("insecureSkipVerify: true", true)]
#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused_where_it_is_checked(
    #[case] check: &str,
    #[case] believed: bool,
) {
    let (mut servers, dir) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let (server, other) = (Pair::write(&dir, "server"), Pair::write(&dir, "other"));
    let acceptor = mk_acceptor(&server, None);
    let address = serve_tls(&mut servers, acceptor, "/metrics").await;
    let ca = other.certificate.display();
    let config = mk_source(&format!("scheme: https, {check}, caCertPath: {ca}"));
    let plan = Plan::load(&config).unwrap();
    let mut page = Page::new(address, plan.fetch);
    let mut scanner = Scanner::new(Arc::clone(EngineTable::default().engine("")));
    let read = page.read(&mut scanner).await;
    assert_eq!(read.is_ok(), believed, "{read:?}");
}

#[rstest]
#[case::no_authorities("insecureSkipVerify: false, caCertPath: /none", "caCertPath")]
#[case::empty_authorities("insecureSkipVerify: false, caCertPath: {empty}", "caCertPath")]
#[case::odd_authorities("insecureSkipVerify: false, caCertPath: {odd}", "caCertPath")]
#[case::no_certificate("clientCertPath: /none, clientKeyPath: {key}", "clientCertPath")]
#[case::empty_certificate("clientCertPath: {empty}, clientKeyPath: {key}", "clientCertPath")]
#[case::no_key("clientCertPath: {crt}, clientKeyPath: /none", "clientKeyPath")]
#[case::a_foreign_key("clientCertPath: {crt}, clientKeyPath: {foreign}", "clientKeyPath")]
fn a_file_that_cannot_be_used_is_named_by_its_key(#[case] parameters: &str, #[case] key: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (pair, other) = (Pair::write(&dir, "pair"), Pair::write(&dir, "other"));
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let files = [
        ("{empty}", write("empty", "")),
        ("{odd}", write("odd", odd)),
        ("{crt}", pair.certificate),
        ("{key}", pair.key),
        ("{foreign}", other.key),
    ];
    let parameters = files
        .iter()
        .fold(parameters.to_owned(), |text, (word, path)| {
            text.replace(word, &path.display().to_string())
        });
    let config = mk_source(&format!("scheme: https, {parameters}"));
    let refusal = Plan::load(&config).unwrap_err();
    assert_eq!(
        refusal.item,
        format!("parameters.{key} of metrics-data-source")
    );
}

/// Neither is read where it has no effect.
#[rstest]
#[case::without_tls("caCertPath: /none, clientCertPath: /none, clientKeyPath: /none")]
#[case::unchecked("scheme: https, caCertPath: /none")]
fn files_without_effect_may_be_missing_and_are_reported(#[case] parameters: &str) {
    let config = mk_source(parameters);
    assert!(Plan::load(&config).is_ok());
    assert!(
        config
            .ignored
            .iter()
            .any(|ignored| ignored.item.ends_with("caCertPath"))
    );
}

#[tokio::test]
async fn the_engine_is_named_by_the_label_that_the_user_chose() {
    let mut servers = JoinSet::new();
    let address = serve(&mut servers, async |mut stream| {
        while read_request(&mut stream).await {
            answer(
                &mut stream,
                "200 OK",
                "mine_waiting 3\nsglang:num_queue_reqs 9\n",
            )
            .await;
        }
    })
    .await;
    let config = mk_config(
        "core-metrics-extractor",
        "engineLabelKey: example.com/engine, engineConfigs: [{name: mine, queuedRequestsSpec: mine_waiting}]",
    );
    let labels = [
        ("llm-d.ai/engine-type", "sglang"),
        ("example.com/engine", "mine"),
    ];
    let snapshot = mk_labelled_snapshot(&[address], &labels);
    let running = start_with(Some(Arc::clone(&snapshot)), mk_plan(&config));
    let endpoint = &snapshot.members()[0].endpoint;
    running
        .until(endpoint, |reading| reading.scraped.waiting == Some(3.0))
        .await;
}

/// Its files, too: a mounted certificate is renewed.
#[tokio::test]
async fn a_changed_configuration_and_a_changed_file_are_followed_and_a_bad_one_is_not() {
    tokio::time::pause();
    let dir = tempfile::tempdir().unwrap();
    let ca = Pair::write(&dir, "ca").certificate;
    let https = format!(
        "scheme: https, insecureSkipVerify: false, caCertPath: {}",
        ca.display()
    );
    let config = CurrentConfig::new(mk_source("path: /a"));
    let (planner, mut plans) = Planner::begin(config.clone()).unwrap();
    let mut running = JoinSet::new();
    running.spawn(planner.run(futures::stream::pending()));
    config.replace(mk_source(&https));
    plans.changed().await.unwrap();
    let plan = plans.borrow_and_update().clone();
    assert!(plan.fetch.tls.is_some() && plan.fetch.path == "/metrics");
    fs::write(&ca, "half a fi").unwrap();
    let later = timeout(Duration::from_mins(1), plans.changed()).await;
    assert!(later.is_err(), "the former one stays");
    Pair::write(&dir, "ca");
    let later = timeout(Duration::from_mins(1), plans.changed()).await;
    assert!(later.is_ok(), "the renewed one is read");
}

#[tokio::test]
async fn endpoints_are_scraped_anew_by_a_new_plan() {
    let mut servers = JoinSet::new();
    let address = serve(&mut servers, async |mut stream| {
        while let Some(head) = read_head(&mut stream).await {
            let page = if head.starts_with("GET /b ") {
                "vllm:num_requests_waiting 5\n"
            } else {
                PAGE
            };
            answer(&mut stream, "200 OK", page).await;
        }
    })
    .await;
    let snapshot = mk_snapshot(&[address]);
    let (sender, plans) = watch::channel(Plan::default());
    let running = start_with(Some(Arc::clone(&snapshot)), plans);
    let endpoint = &snapshot.members()[0].endpoint;
    running
        .until(endpoint, |reading| reading.scraped == FULL)
        .await;
    sender.send_replace(Plan::load(&mk_source("path: /b")).unwrap());
    running
        .until(endpoint, |reading| reading.scraped.waiting == Some(5.0))
        .await;
}

#[tokio::test]
async fn the_interval_of_the_configuration_comes_before_that_of_the_flag() {
    let mut servers = JoinSet::new();
    let (asked, mut asks) = mpsc::channel(8);
    let address = serve(&mut servers, move |mut stream| {
        let asked = asked.clone();
        async move {
            while read_request(&mut stream).await {
                let _ = asked.try_send(());
                answer(&mut stream, "200 OK", PAGE).await;
            }
        }
    })
    .await;
    let plans = mk_plan(&mk_source("interval: 10ms"));
    let hour = Duration::from_hours(1);
    let _running = start_every(hour, Some(mk_snapshot(&[address])), plans);
    for nth in 0..3 {
        let ask = timeout(Duration::from_secs(10), asks.recv()).await;
        assert!(ask.is_ok(), "scrape {nth} does not come");
    }
}
