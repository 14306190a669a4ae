//! A secret: reads like any text and never writes itself.
//!
//! Debug, logs, errors and serialised configurations show [`HIDDEN`] in its place.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text in place of a secret.
pub const HIDDEN: &str = "(hidden)";

/// Text that is never printed: `Debug`, `Display` and `Serialize` all say `(hidden)`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself; only for those who sign, compare or store it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(SecretVisitor).map(Self)
    }
}

/// Takes text only, and does not repeat anything else: serde's own message would quote a number.
struct SecretVisitor;

impl serde::de::Visitor<'_> for SecretVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<String, E> {
        Err(E::custom("a secret is a text in quotes"))
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<String, E> {
        self.visit_i64(0)
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<String, E> {
        self.visit_i64(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_itself() {
        let secret = Secret::new("hunter2");
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert_eq!(secret.reveal(), "hunter2");
    }
}
