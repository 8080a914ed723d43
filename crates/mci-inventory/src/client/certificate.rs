//! Why a server's certificate is rejected. Pure.

use std::{error::Error, io};

use rustls::CertificateError;

/// Why the TLS handshake with a server failed: all of these are the server's certificate, or what the credentials know
/// of it, and none is the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateProblem {
    /// No authority of the credentials has signed it, or it cannot be used for another reason.
    Untrusted,
    /// It has expired, or is not valid yet, by this machine's clock.
    Expired,
    /// It is not of the host that the credentials name.
    NameMismatch,
}

/// The certificate that a call failed for; none: it failed for another reason.
pub fn certificate_problem(error: &(dyn Error + 'static)) -> Option<CertificateProblem> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
            return Some(CertificateProblem::of(why));
        }
        // what it was made of is not among its sources
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

// === impl CertificateProblem ===

impl CertificateProblem {
    fn of(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Self::Expired,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::NameMismatch
            }
            _ => Self::Untrusted,
        }
    }
}
