//! PEM files: certificates and private keys, with errors that name the file.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_core::{Error, Kind, Result};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The largest PEM file that is read; a bundle of all public authorities has 250 KiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Permission bits that let group or others read a file.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Reads a chain of certificates, the one of the owner first.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(wrong(
            path,
            "the file has no certificate; it should begin with -----BEGIN CERTIFICATE-----",
        )),
        Err(why) => Err(wrong(path, "the file is not a certificate in PEM form").caused_by(why)),
    }
}

/// Reads the authorities that are trusted.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|why| {
            wrong(path, "the file has a certificate that cannot be an authority").caused_by(why)
        })?;
    }
    Ok(roots)
}

/// Reads a private key: PKCS#8, PKCS#1 or SEC1, not encrypted.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|why| {
        let message = if bytes.windows(9).any(|word| word == b"ENCRYPTED") {
            "the private key is encrypted; store it without a passphrase, readable by the node's user alone"
        } else {
            "the file has no private key in PEM form; it should begin with -----BEGIN PRIVATE KEY-----"
        };
        wrong(path, message).caused_by(why)
    })
}

/// Warns when others may read a private key.
pub(super) fn warn_if_shared(path: &Path) {
    if let Ok(metadata) = path.metadata()
        && metadata.mode() & READABLE_BY_OTHERS != 0
    {
        let mode = format!("{:o}", metadata.mode() & 0o777);
        tracing::warn!(file = %path.display(), mode, "other users may read the private key; chmod 600 it");
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |why: std::io::Error| {
        Error::io(format!("cannot read the file: {why}"), why).with("file", path.display())
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(path, "the file is too large to hold certificates"));
    }
    Ok(bytes)
}

pub(super) fn wrong(path: &Path, message: &'static str) -> Error {
    Error::new(Kind::InvalidInput, message).with("file", path.display())
}
