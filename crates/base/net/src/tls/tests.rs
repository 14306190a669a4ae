//! Files, reloading and the sentences of failures; connections are tested in `tests/`.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Kind, ManualClock};
use forebay_testkit::Authority;
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use super::*;

fn files(folder: &Path, name: &str) -> TlsFiles {
    TlsFiles {
        cert: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
        client_ca: None,
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::default())
}

#[test]
fn a_certificate_and_the_key_of_another_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.node().write(folder.path(), "a");
    authority.node().write(folder.path(), "b");
    let mixed = TlsFiles {
        key: folder.path().join("b.key"),
        ..files(folder.path(), "a")
    };
    let error = ServerTls::load(mixed, clock()).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    assert!(error.to_string().contains("do not belong together"), "{error}");
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let folder = tempfile::tempdir().unwrap();
    Authority::new().node().write(folder.path(), "a");
    let good = files(folder.path(), "a");
    let swapped = TlsFiles {
        cert: good.key.clone(),
        ..good.clone()
    };
    let missing = TlsFiles {
        key: folder.path().join("nothing.key"),
        ..good.clone()
    };
    let no_ca = TlsFiles {
        client_ca: Some(good.key.clone()),
        ..good.clone()
    };
    for (files, setting) in [
        (swapped, "tls.cert"),
        (missing, "tls.key"),
        (no_ca, "tls.client_ca"),
    ] {
        let error = ServerTls::load(files, clock()).unwrap_err().to_string();
        assert!(error.contains(setting) && error.contains("file: "), "{error}");
    }
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(&good.key, encrypted).unwrap();
    let error = ServerTls::load(good, clock()).unwrap_err().to_string();
    assert!(error.contains("without a passphrase"), "{error}");
}

#[test]
fn a_changed_file_is_read_again_and_a_bad_one_keeps_the_old_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    authority.node().write(folder.path(), "a");
    let tls = ServerTls::load(files(folder.path(), "a"), clock()).unwrap();
    let first = tls.config();
    tls.reload();
    assert!(Arc::ptr_eq(&first, &tls.config()), "nothing has changed");
    std::fs::write(folder.path().join("a.pem"), "half a certif").unwrap();
    tls.reload();
    assert!(Arc::ptr_eq(&first, &tls.config()), "a bad file changes nothing");
    authority.node().write(folder.path(), "a");
    tls.reload();
    assert!(!Arc::ptr_eq(&first, &tls.config()), "the new one holds");
}

#[test]
fn a_certificate_behind_a_symbolic_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let authority = Authority::new();
    for version in ["v1", "v2"] {
        std::fs::create_dir(path.join(version)).unwrap();
        authority.node().write(&path.join(version), "tls");
    }
    symlink("v1", path.join("data")).unwrap();
    let tls = ServerTls::load(files(&path.join("data"), "tls"), clock()).unwrap();
    let first = tls.config();
    symlink("v2", path.join("data.new")).unwrap();
    std::fs::rename(path.join("data.new"), path.join("data")).unwrap();
    tls.reload();
    assert!(!Arc::ptr_eq(&first, &tls.config()));
}

#[test]
fn files_are_looked_at_once_a_second() {
    let folder = tempfile::tempdir().unwrap();
    Authority::new().node().write(folder.path(), "a");
    let clock = clock();
    let tls = ServerTls::load(files(folder.path(), "a"), clock.clone()).unwrap();
    assert!(!tls.is_look_due(), "they were read just now");
    clock.advance(std::time::Duration::from_secs(1));
    assert!(tls.is_look_due());
    assert!(!tls.is_look_due(), "somebody looks already");
}

#[test]
fn a_key_that_others_may_read_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let (_, key) = Authority::new().node().write(folder.path(), "a");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(ServerTls::load(files(folder.path(), "a"), clock()).is_ok());
}

#[test]
fn a_client_certificate_needs_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ca = Some(authority.write(folder.path()));
    let (cert, key) = authority.client("trainer").write(folder.path(), "trainer");
    let half = ClientTls {
        ca: ca.clone(),
        cert: Some(cert.clone()),
        key: None,
    };
    assert!(half.config().unwrap_err().to_string().contains("both or none"));
    let whole = ClientTls {
        key: Some(key),
        ..half
    };
    assert!(whole.config().unwrap().client_auth_cert_resolver.has_certs());
}

#[test]
fn names_of_hosts_come_without_port_and_brackets() {
    for (host, name) in [
        ("node.example:9000", "node.example"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]:9000", "::1"),
        ("node", "node"),
        ("::1", "::1"),
    ] {
        let expected = ServerName::try_from(name).unwrap();
        assert_eq!(server_name(host).unwrap(), expected, "{host}");
    }
    assert!(server_name("no host:1").is_err());
}

#[test]
fn subject_and_end_of_a_certificate_are_read() {
    let authority = Authority::new();
    let der = CertificateDer::from_pem_slice(authority.client("träiner\n1").cert.as_bytes()).unwrap();
    let info = CertificateInfo::read(&der).unwrap();
    assert_eq!(info.subject, "CN=träiner?1");
    let der = CertificateDer::from_pem_slice(authority.expired_node().cert.as_bytes()).unwrap();
    let info = CertificateInfo::read(&der).unwrap();
    assert_eq!(info.not_after.to_string(), "2020-02-01T00:00:00Z");
}

proptest! {
    #[test]
    fn no_bytes_stop_the_reader_of_certificates(
        place in 0_usize..400, byte in any::<u8>(), length in 0_usize..600,
    ) {
        let pem = Authority::new().client("a").cert;
        let mut der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec();
        if let Some(spot) = der.get_mut(place) {
            *spot = byte;
        }
        der.truncate(length);
        let _ = CertificateInfo::read(&der);
    }
}

#[test]
fn failures_say_what_to_do() {
    use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
    let cases = [
        (
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Kind::Denied,
            "FOREBAY_CA",
        ),
        (
            Error::InvalidCertificate(CertificateError::Expired),
            Kind::Denied,
            "renew",
        ),
        (
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            Kind::InvalidInput,
            "http://",
        ),
        (
            Error::AlertReceived(AlertDescription::CertificateRequired),
            Kind::Denied,
            "FOREBAY_CLIENT_CERT",
        ),
        (
            Error::AlertReceived(AlertDescription::UnknownCA),
            Kind::Denied,
            "tls.client_ca",
        ),
    ];
    for (why, kind, words) in cases {
        let io = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
        let error = explain(&io).unwrap();
        assert!(
            error.kind() == kind && error.to_string().contains(words),
            "{error}"
        );
    }
    assert!(explain(&std::io::Error::from(std::io::ErrorKind::BrokenPipe)).is_none());
}
