//! The key file: the access key that a node makes at its first start, and the token of its admin API.
//!
//! `<data>/keys.toml` has mode 0600 and is written once, whole (temporary file, fsync, rename). Both secrets
//! come from the kernel's random source. When the configuration names keys, no access key is made, only the
//! token.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_core::{Error, Kind, Result, Secret};
use serde::{Deserialize, Serialize};

/// Content of the key file. `Debug` hides the secrets.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The access key for S3.
    pub access_key_id: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<Secret>,
    /// The bearer token of the admin API.
    pub admin_token: Option<Secret>,
}

/// The same with the secrets in the clear, for the file only.
#[derive(Serialize)]
struct Stored<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    access_key_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_access_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_token: Option<&'a str>,
}

/// Says whether the node needs an access key of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedsAccessKey {
    /// No key is configured.
    Yes,
    /// The configuration has keys.
    No,
}

impl KeyFile {
    /// Returns where the key file of a data folder lies.
    #[must_use]
    pub fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("keys.toml")
    }

    /// Reads a key file; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(why) => {
                return Err(
                    Error::io(format!("cannot read the key file: {why}"), why).with("file", path.display())
                );
            }
        };
        // The parser's message may quote the line, and the line may be a secret.
        let file: Self = toml::from_str(&text).map_err(|_| {
            let message = "the key file is damaged; correct it, or remove it to get new keys";
            Error::new(Kind::Corrupt, message).with("file", path.display())
        })?;
        if file.access_key_id.is_some() != file.secret_access_key.is_some() {
            let message = "the key file needs both access_key_id and secret_access_key, or none";
            return Err(Error::new(Kind::Corrupt, message).with("file", path.display()));
        }
        Ok(Some(file))
    }

    /// Reads the key file of a data folder, and makes what is missing in it.
    pub fn ensure(data_dir: &Path, needs: NeedsAccessKey) -> Result<Self> {
        let path = Self::path(data_dir);
        let found = Self::read(&path)?;
        if found.is_some() {
            warn_if_others_can_read(&path);
        }
        let mut file = found.unwrap_or(Self {
            access_key_id: None,
            secret_access_key: None,
            admin_token: None,
        });
        let makes_key = needs == NeedsAccessKey::Yes && file.access_key_id.is_none();
        let makes_token = file.admin_token.is_none();
        if makes_key {
            file.access_key_id = Some(random_text(20, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")?);
            file.secret_access_key = Some(Secret::new(random_text(40, ALPHABET)?));
        }
        if makes_token {
            file.admin_token = Some(Secret::new(random_text(40, ALPHABET)?));
        }
        if makes_key || makes_token {
            file.write(&path)?;
        }
        Ok(file)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let stored = Stored {
            access_key_id: self.access_key_id.as_deref(),
            secret_access_key: self.secret_access_key.as_ref().map(Secret::reveal),
            admin_token: self.admin_token.as_ref().map(Secret::reveal),
        };
        let body = toml::to_string(&stored).map_err(|why| {
            Error::new(Kind::Internal, "cannot write the key file").caused_by(why.to_string())
        })?;
        let text = format!("# Keys of this Forebay node. Keep this file to yourself.\n{body}");
        write_private(path, text.as_bytes()).map_err(|why| {
            Error::io(format!("cannot write the key file: {why}"), why).with("file", path.display())
        })
    }
}

const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension(format!("toml.{}.tmp", std::process::id()));
    let written = (|| {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent()
            .map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
    })();
    if written.is_err() {
        // Best effort: the error that matters is the one of the write.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn warn_if_others_can_read(path: &Path) {
    let mode = fs::metadata(path).map_or(0, |meta| meta.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        tracing::warn!(file = %path.display(), mode = format!("{mode:o}"), "others can read the key file; run chmod 600 on it");
    }
}

/// Bytes of the kernel's random source.
pub(crate) fn random_bytes(count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0u8; count];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|why| Error::io("the kernel gives no random bytes", why.into()))?;
    }
    Ok(bytes)
}

/// Random characters of an alphabet of 32 or 64, so that each byte gives one without bias.
fn random_text(characters: usize, alphabet: &[u8]) -> Result<String> {
    debug_assert!(256 % alphabet.len() == 0);
    let bytes = random_bytes(characters)?;
    Ok(bytes
        .iter()
        .map(|byte| char::from(alphabet[usize::from(*byte) % alphabet.len()]))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_start_makes_a_private_file_and_later_ones_keep_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = KeyFile::ensure(dir.path(), NeedsAccessKey::Yes).unwrap();
        let mode = fs::metadata(KeyFile::path(dir.path()))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(first.access_key_id.as_ref().unwrap().len(), 20);
        assert_eq!(KeyFile::ensure(dir.path(), NeedsAccessKey::Yes).unwrap(), first);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn configured_keys_leave_only_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::ensure(dir.path(), NeedsAccessKey::No).unwrap();
        assert!(file.access_key_id.is_none() && file.admin_token.is_some());
        let later = KeyFile::ensure(dir.path(), NeedsAccessKey::Yes).unwrap();
        assert!(later.access_key_id.is_some());
        assert_eq!(later.admin_token, file.admin_token);
    }

    #[test]
    fn a_damaged_file_is_an_error_that_does_not_quote_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(KeyFile::path(dir.path()), "secret_access_key = hunter2hunter2").unwrap();
        let error = KeyFile::ensure(dir.path(), NeedsAccessKey::Yes).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}
