//! `SHA256SUMS.sig`: who vouches for the manifest.
//!
//! One line per signature: `ed25519`, the public key, the signature, in base64, separated by spaces. What is
//! signed are the bytes of the manifest's file, nothing added, so `openssl` can check it too. The key in the
//! line only says which of the trusted keys to try.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer as _};
use forebay_core::{Error, Kind, Result};

use super::key::{PublicKey, SecretKey};

/// Signatures that a file may have.
pub const SIGNATURES_MAX: usize = 64;
const ALGORITHM: &str = "ed25519";
const LINE_BYTES_MAX: usize = 256;

/// The line that vouches for these bytes of a manifest. Several lines make a file with several signatures.
#[must_use]
pub fn sign(manifest: &[u8], key: &SecretKey) -> String {
    let signature = BASE64.encode(key.0.sign(manifest).to_bytes());
    format!("{ALGORITHM} {} {signature}\n", key.public())
}

/// Returns which of the trusted keys vouches for these bytes of a manifest.
///
/// # Errors
/// `Checksum` if a trusted key's signature is of other bytes, `Denied` if no trusted key has signed,
/// `InvalidInput` if this is no file of signatures.
pub fn verify(manifest: &[u8], signatures: &str, trusted: &[PublicKey]) -> Result<PublicKey> {
    let mut signers = Vec::new();
    for (index, line) in signatures.lines().enumerate() {
        if index >= SIGNATURES_MAX {
            return Err(malformed().with("signatures_max", SIGNATURES_MAX));
        }
        let (signer, signature) = parse(line).ok_or_else(|| malformed().with("line", index + 1))?;
        if let Some(key) = trusted.iter().find(|key| key.to_string() == signer) {
            return match key.0.verify_strict(manifest, &signature) {
                Ok(()) => Ok(*key),
                Err(_) => Err(Error::new(
                    Kind::Checksum,
                    "the manifest is not the one that was signed: do not use this data before you know why",
                )
                .with("key", key)),
            };
        }
        signers.push(signer);
    }
    Err(
        Error::new(Kind::Denied, "no key that you trust has signed this manifest")
            .with("signed_by", signers.join(" ")),
    )
}

/// The public key, as text, and the signature of a line.
fn parse(line: &str) -> Option<(&str, Signature)> {
    if line.len() > LINE_BYTES_MAX {
        return None;
    }
    let mut words = line.split(' ');
    let (algorithm, key, signature) = (words.next()?, words.next()?, words.next()?);
    if algorithm != ALGORITHM || words.next().is_some() {
        return None;
    }
    let bytes: [u8; 64] = BASE64.decode(signature).ok()?.try_into().ok()?;
    Some((key, Signature::from_bytes(&bytes)))
}

fn malformed() -> Error {
    Error::new(
        Kind::InvalidInput,
        "this is no file of signatures: each line is `ed25519`, public key, signature",
    )
}
