//! TLS to backends: how their certificates are verified.

use crate::model::{Trusted, Verification};
use crate::world::SubjectName;

use super::Options;
use super::proto::{ads, any, core, exactly, tls};

use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
use tls::subject_alt_name_matcher::SanType;

/// Name of Envoy's transport socket.
const TLS: &str = "envoy.transport_sockets.tls";

/// What is spoken inside of TLS.
const HTTP1: &str = "http/1.1";
const HTTP2: &str = "h2";

/// Whatever certificate is shown, for HTTP/2.
pub(super) fn unverified() -> core::TransportSocket {
    let context = tls::CommonTlsContext {
        alpn_protocols: vec![HTTP2.to_owned()],
        ..tls::CommonTlsContext::default()
    };
    socket(String::new(), context)
}

/// The name that is asked for, and that the certificate must have, is that of each request; `host` is for health checks.
pub(super) fn verified_by_host(host: Option<&str>, options: &Options) -> core::TransportSocket {
    let validation = tls::CertificateValidationContext {
        trusted_ca: Some(file(&options.roots)),
        ..tls::CertificateValidationContext::default()
    };
    let context = tls::CommonTlsContext {
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..tls::CommonTlsContext::default()
    };
    socket(host.unwrap_or_default().to_owned(), context)
}

/// As a policy says. Other authorities than before come by SDS: the cluster stays, and with it the streams to its hosts.
pub(super) fn verified(
    verification: &Verification,
    http2: bool,
    options: &Options,
) -> core::TransportSocket {
    let alpn = if http2 { HTTP2 } else { HTTP1 };
    let context = tls::CommonTlsContext {
        alpn_protocols: vec![alpn.to_owned()],
        ..verified_context(verification, options)
    };
    socket(verification.hostname.clone(), context)
}

/// The same where the cluster chooses between HTTP/2 and HTTP/1.1.
pub(super) fn verified_any(
    verification: &Verification,
    options: &Options,
) -> core::TransportSocket {
    let context = verified_context(verification, options);
    socket(verification.hostname.clone(), context)
}

fn verified_context(verification: &Verification, options: &Options) -> tls::CommonTlsContext {
    let names = verification.names.iter().map(|name| {
        let (kind, text) = match name {
            SubjectName::Dns(text) => (SanType::Dns, text),
            SubjectName::Uri(text) => (SanType::Uri, text),
        };
        tls::SubjectAltNameMatcher {
            san_type: kind.into(),
            matcher: Some(exactly(text)),
            ..tls::SubjectAltNameMatcher::default()
        }
    });
    let names = tls::CertificateValidationContext {
        match_typed_subject_alt_names: names.collect(),
        ..tls::CertificateValidationContext::default()
    };
    let validation = match &verification.authorities {
        Trusted::System => {
            ValidationContextType::ValidationContext(tls::CertificateValidationContext {
                trusted_ca: Some(file(&options.roots)),
                ..names
            })
        }
        Trusted::Bundle(bundle) => {
            let by_sds = tls::SdsSecretConfig {
                name: bundle.name().to_owned(),
                sds_config: Some(ads()),
            };
            let combined = CombinedCertificateValidationContext {
                default_validation_context: Some(names),
                validation_context_sds_secret_config: Some(by_sds),
                ..CombinedCertificateValidationContext::default()
            };
            ValidationContextType::CombinedValidationContext(combined)
        }
    };
    tls::CommonTlsContext {
        validation_context_type: Some(validation),
        ..tls::CommonTlsContext::default()
    }
}

fn file(path: &str) -> core::DataSource {
    core::DataSource {
        specifier: Some(core::data_source::Specifier::Filename(path.to_owned())),
        ..core::DataSource::default()
    }
}

fn socket(sni: String, context: tls::CommonTlsContext) -> core::TransportSocket {
    let context = tls::UpstreamTlsContext {
        sni,
        common_tls_context: Some(context),
        ..tls::UpstreamTlsContext::default()
    };
    core::TransportSocket {
        name: TLS.to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(any(
            &context,
        ))),
    }
}
