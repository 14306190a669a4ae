//! Access keys of the configuration: ids, secrets and rights, each checked.

use forebay_core::{BucketName, Error, Result, Secret};

use super::wrong;
use crate::config::{KeyAccess, KeyConfig};

/// An access key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySettings {
    /// Its id.
    pub id: String,
    /// Its secret.
    pub secret: Secret,
    /// Its rights.
    pub access: KeyAccess,
    /// Buckets that it may use; `None` is all.
    pub buckets: Option<Vec<BucketName>>,
}

impl KeySettings {
    pub(super) fn to_config(&self) -> KeyConfig {
        KeyConfig {
            id: self.id.clone(),
            secret: Some(self.secret.clone()),
            secret_file: None,
            access: self.access,
            buckets: self
                .buckets
                .as_ref()
                .map(|names| names.iter().map(ToString::to_string).collect()),
        }
    }
}

/// Checks all keys.
pub(super) fn resolve(said: Vec<KeyConfig>) -> Result<Vec<KeySettings>> {
    let mut keys: Vec<KeySettings> = Vec::new();
    for key in said {
        check_key_id(&key.id)?;
        if keys.iter().any(|other| other.id == key.id) {
            return Err(wrong("key.id", "the same access key id is there twice").with("key", &key.id));
        }
        let secret = key_secret(&key)?;
        let buckets = key.buckets.map(|names| {
            names
                .iter()
                .map(|name| BucketName::new(name))
                .collect::<Result<Vec<_>>>()
        });
        keys.push(KeySettings {
            secret,
            access: key.access,
            buckets: buckets
                .transpose()
                .map_err(|error| error.with("setting", "key.buckets").with("key", &key.id))?,
            id: key.id,
        });
    }
    Ok(keys)
}

/// Ids stand in headers and between slashes, so only plain characters.
fn check_key_id(id: &str) -> Result<()> {
    let is_fine = (3..=128).contains(&id.len())
        && id
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"_-.".contains(&c));
    if is_fine {
        return Ok(());
    }
    Err(wrong(
        "key.id",
        format!("'{id}' is not an access key id; use 3 to 128 letters, digits, '_', '-' or '.'"),
    ))
}

fn key_secret(key: &KeyConfig) -> Result<Secret> {
    let secret = match (&key.secret, &key.secret_file) {
        (Some(secret), None) => secret.clone(),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file).map_err(|why| {
                Error::io(format!("cannot read the secret: {why}"), why)
                    .with("setting", "key.secret_file")
                    .with("file", file.display())
            })?;
            Secret::new(text.trim_end_matches(['\r', '\n']))
        }
        _ => return Err(wrong("key", "give either secret or secret_file").with("key", &key.id)),
    };
    // Shorter ones can be guessed from one signed request; the message must not repeat the secret.
    if secret.reveal().len() < 8 {
        return Err(wrong("key.secret", "the secret is shorter than 8 characters").with("key", &key.id));
    }
    Ok(secret)
}
