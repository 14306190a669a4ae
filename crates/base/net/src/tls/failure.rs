//! Sentences for failed handshakes, as the client sees them.

use std::error::Error as StdError;
use std::io;

use forebay_core::{Error, Kind};
use rustls::{AlertDescription, CertificateError, InvalidMessage};

/// Says what a TLS failure somewhere in this chain of errors means for a client and what to do about it;
/// `None` if there is none.
#[must_use]
pub fn explain(error: &(dyn StdError + 'static)) -> Option<Error> {
    let why = find(error)?;
    let (kind, message) = meaning(why);
    Some(Error::new(kind, message).caused_by(why.clone()))
}

/// Finds the error of rustls, which `io::Error` does not count among its sources.
fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner as &'a (dyn StdError + 'static)),
            None => error.source(),
        };
    }
    None
}

fn meaning(why: &rustls::Error) -> (Kind, String) {
    match why {
        rustls::Error::InvalidCertificate(why) => (Kind::Denied, certificate_meaning(why)),
        rustls::Error::NoCertificatesPresented => (Kind::Denied, "the node shows no certificate".into()),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => (
            Kind::InvalidInput,
            "the node does not speak TLS at this address; use http://".into(),
        ),
        rustls::Error::AlertReceived(alert) => alert_meaning(*alert),
        other => (Kind::Unavailable, format!("TLS with the node failed: {other}")),
    }
}

fn certificate_meaning(why: &CertificateError) -> String {
    match why {
        // A bad signature is one by another authority of the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the node's certificate is not signed by an authority that is trusted here; \
             give the file of its CA by ca=, --ca or FOREBAY_CA"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the node's certificate has expired; renew it, the node takes a new file without a restart".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the node's certificate is not valid yet; check the clocks of both machines".into()
        }
        CertificateError::NotValidForNameContext { presented, .. } => format!(
            "the node's certificate is for other names ({}); connect by one of them",
            presented.join(", ")
        ),
        CertificateError::NotValidForName => {
            "the node's certificate is for another name; connect by the name that it has".into()
        }
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the node's certificate is that of an authority; sign one for the node with it \
             (docs/guides/tls.md)"
                .into()
        }
        other => format!("the node's certificate is refused: {other}"),
    }
}

fn alert_meaning(alert: AlertDescription) -> (Kind, String) {
    match alert {
        AlertDescription::CertificateRequired => (
            Kind::Denied,
            "the node asks for a client certificate; \
             give one by FOREBAY_CLIENT_CERT and FOREBAY_CLIENT_KEY"
                .into(),
        ),
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateRevoked
        | AlertDescription::DecryptError => (
            Kind::Denied,
            format!(
                "the node refuses this client's certificate ({alert:?}); its tls.client_ca must have signed it"
            ),
        ),
        other => (
            Kind::Unavailable,
            format!("the node ended the TLS handshake ({other:?})"),
        ),
    }
}
