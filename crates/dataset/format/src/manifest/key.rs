//! Keys that sign manifests: ed25519, in the PEM files that `openssl` reads and writes.
//!
//! `openssl genpkey -algorithm ed25519 -out key.pem` makes a secret key (PKCS #8), `openssl pkey -in key.pem
//! -pubout` its public half (SubjectPublicKeyInfo). For this one algorithm both are a fixed prefix and 32
//! bytes, so there is no parser of ASN.1 here: anything else (a passphrase, another algorithm, attributes) is
//! refused.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{SigningKey, VerifyingKey};
use forebay_core::{Error, Kind, Result};

/// DER of PKCS #8 version 1 with the algorithm 1.3.101.112, up to the 32 bytes of the seed.
const SECRET_PREFIX: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];
/// DER of `SubjectPublicKeyInfo` with the same algorithm, up to the 32 bytes of the key.
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
/// A larger file is no key of ours.
const PEM_BYTES_MAX: usize = 4096;

/// The key that signs. Its bytes are wiped when it is dropped and are never shown.
pub struct SecretKey(pub(super) SigningKey);

/// The key that verifies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub(super) VerifyingKey);

impl SecretKey {
    /// The key of 32 random bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads a PEM file.
    ///
    /// # Errors
    /// `InvalidInput` if it is not an ed25519 key as `openssl genpkey` writes it.
    pub fn from_pem(text: &str) -> Result<Self> {
        let seed = from_pem(text, "PRIVATE KEY", &SECRET_PREFIX).ok_or_else(|| {
            Error::new(
                Kind::InvalidInput,
                "this is no unencrypted ed25519 key: make one with `openssl genpkey -algorithm ed25519 -out key.pem`",
            )
        })?;
        Ok(Self::from_seed(&seed))
    }

    /// The PEM file, a secret.
    #[must_use]
    pub fn to_pem(&self) -> String {
        to_pem("PRIVATE KEY", &SECRET_PREFIX, self.0.as_bytes())
    }

    /// The key that verifies what this one signs.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public())
    }
}

impl PublicKey {
    /// The key of these 32 bytes.
    ///
    /// # Errors
    /// `InvalidInput` if they are no point of the curve, or one that anybody can sign for.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self> {
        let key = VerifyingKey::from_bytes(bytes).ok().filter(|key| !key.is_weak());
        key.map(Self)
            .ok_or_else(|| Error::new(Kind::InvalidInput, "these 32 bytes are no ed25519 public key"))
    }

    /// Reads a PEM file.
    ///
    /// # Errors
    /// `InvalidInput` if it is not an ed25519 public key as `openssl pkey -pubout` writes it.
    pub fn from_pem(text: &str) -> Result<Self> {
        let bytes = from_pem(text, "PUBLIC KEY", &PUBLIC_PREFIX).ok_or_else(|| {
            Error::new(
                Kind::InvalidInput,
                "this is no ed25519 public key: make it with `openssl pkey -in key.pem -pubout -out key.pub.pem`",
            )
        })?;
        Self::from_bytes(&bytes)
    }

    /// The PEM file.
    #[must_use]
    pub fn to_pem(&self) -> String {
        to_pem("PUBLIC KEY", &PUBLIC_PREFIX, self.0.as_bytes())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

fn from_pem(text: &str, label: &str, prefix: &[u8]) -> Option<[u8; 32]> {
    if text.len() > PEM_BYTES_MAX {
        return None;
    }
    let body = text.trim().strip_prefix(&format!("-----BEGIN {label}-----"))?;
    let body = body.strip_suffix(&format!("-----END {label}-----"))?;
    let body: String = body
        .chars()
        .filter(|character| !character.is_ascii_whitespace())
        .collect();
    let der = BASE64.decode(body).ok()?;
    der.strip_prefix(prefix)?.try_into().ok()
}

fn to_pem(label: &str, prefix: &[u8], key: &[u8; 32]) -> String {
    let body = BASE64.encode([prefix, key.as_slice()].concat());
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}
