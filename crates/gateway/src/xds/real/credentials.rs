//! Both ends' certificates of a bed, with the files as a kubelet has them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tls::{Acceptor, MadeTls, TlsMetrics};

use crate::infra::bootstrap;
use crate::pki::{Authority, Identity, now};
use crate::world::Key;

/// Credentials of the Envoys of `ns/gw` in cluster `west`, and of the server on loopback.
#[derive(Clone)]
pub(super) struct Credentials {
    authority: Authority,
    directory: Arc<TempDir>,
    generation: u32,
    /// Of the Gateway that the certificate is made for.
    uid: String,
}

impl Credentials {
    pub(super) fn new(uid: &str) -> Self {
        let credentials = Self {
            authority: Authority::make(now()).unwrap().0,
            directory: Arc::new(tempfile::tempdir().unwrap()),
            generation: 0,
            uid: uid.to_owned(),
        };
        credentials.write();
        credentials
    }

    /// The same files, of another authority.
    pub(super) fn replace(&mut self) {
        self.authority = Authority::make(now()).unwrap().0;
        self.generation += 1;
        self.write();
    }

    /// The same authority signs for a Gateway of this UID.
    pub(super) fn renew(&mut self, uid: &str) {
        uid.clone_into(&mut self.uid);
        self.generation += 1;
        self.write();
    }

    pub(super) fn path(&self) -> String {
        self.directory.path().to_str().unwrap().to_owned()
    }

    pub(super) fn acceptor(&self) -> Acceptor {
        let issued = self.authority.issue_server("127.0.0.1", now()).unwrap();
        let (chain, key) = (issued.certificate.into_bytes(), issued.key.into_bytes());
        let metrics = TlsMetrics::register(&mut Registry::default(), "test").port("ads");
        let ca = self.authority.pem().as_bytes();
        MadeTls::begin(ca, chain, key, metrics).unwrap().0
    }

    /// All files change at once, by a link.
    fn write(&self) {
        let identity = Identity {
            cluster: "west".to_owned(),
            gateway: Key::new("ns", "gw"),
            uid: self.uid.clone(),
        };
        let issued = self.authority.issue_client(&identity, now()).unwrap();
        let directory = self.directory.path();
        let name = format!("..{}", self.generation);
        std::fs::create_dir(directory.join(&name)).unwrap();
        let documents = bootstrap::documents(&self.path());
        let files = [
            ("tls.crt", issued.certificate),
            ("tls.key", issued.key),
            ("ca.crt", self.authority.pem().to_owned()),
        ];
        for (file, text) in files.into_iter().chain(documents) {
            std::fs::write(directory.join(&name).join(file), text).unwrap();
            let link = directory.join(file);
            if std::fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(file), link).unwrap();
            }
        }
        let fresh = directory.join("..data_tmp");
        symlink(name, &fresh).unwrap();
        std::fs::rename(fresh, directory.join("..data")).unwrap();
    }
}
