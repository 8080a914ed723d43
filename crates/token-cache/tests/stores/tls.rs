use std::{fs, net::TcpListener, path::Path};

use http_call::TrustFiles;
use rcgen::CertificateParams;
use redis_server::Server;
use token_cache::{Put, Settings, Store};
use tokio::task::JoinSet;

use ::tls::test_pki::Ca;

use crate::setup::{LONG, Setup, mk_entry, mk_key, parse};

fn write_pair(ca: &Ca, dir: &Path, names: &[&str]) {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let (certificate, key) = ca.sign(CertificateParams::new(names).unwrap());
    fs::write(dir.join("tls.crt"), certificate.pem()).unwrap();
    fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
}

/// One that lets in clients of its CA alone.
fn start_redis(dir: &Path) -> (Server, u16) {
    // free until Redis binds it, unless somebody is faster
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let file = |name: &str| dir.join(name).display().to_string();
    let number = port.to_string();
    let redis = Server::start_with(&[
        "--bind",
        "127.0.0.1",
        "--tls-port",
        &number,
        "--tls-cert-file",
        &file("tls.crt"),
        "--tls-key-file",
        &file("tls.key"),
        "--tls-ca-cert-file",
        &file("ca.crt"),
        "--tls-auth-clients",
        "yes",
    ]);
    (redis.unwrap(), port)
}

#[tokio::test]
async fn rediss_has_the_files_of_tls() {
    let ca = Ca::new("redis");
    let (server, client) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(server.path().join("ca.crt"), ca.pem()).unwrap();
    write_pair(&ca, server.path(), &["127.0.0.1"]);
    write_pair(&ca, client.path(), &[]);
    let (redis, port) = start_redis(server.path());
    let settings = Settings {
        tls: TrustFiles {
            ca_file: Some(server.path().join("ca.crt")),
            cert_dir: Some(client.path().to_owned()),
        },
        ..Settings::default()
    };
    let url = format!("rediss://127.0.0.1:{port}");
    let (store, upkeep) = Store::open(parse(&url), settings.clone()).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(upkeep.run());
    let setup = Setup {
        store,
        redis: Some(redis),
        tasks,
    };
    setup.works().await;
    let put = setup.store.put(mk_key(), mk_entry([1]), LONG).await;
    assert_eq!(put, Ok(Put::Stored));
    fs::remove_file(client.path().join("tls.key")).unwrap();
    let error = Store::open(parse(&url), settings).unwrap_err();
    assert!(error.to_string().contains("tls.key"), "{error}");
}

#[tokio::test]
async fn without_tls_its_files_are_not_used() {
    let redis = Server::start().unwrap();
    let settings = Settings {
        tls: TrustFiles {
            ca_file: Some("/nowhere".into()),
            cert_dir: None,
        },
        ..Settings::default()
    };
    let (store, upkeep) = Store::open(parse(&redis.url()), settings).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(upkeep.run());
    let setup = Setup {
        store,
        redis: Some(redis),
        tasks,
    };
    setup.works().await;
}
