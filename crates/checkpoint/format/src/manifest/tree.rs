//! Tree by which names make up the user's state again: JSON that is opaque here, kept as the text that it is.
//!
//! As values it would take about sixteen times its bytes, and most who read a manifest never look at it. The
//! text is walked through once when it is read, so that whoever parses it later can: its depth and its
//! numbers are such that [`Tree::value`] takes them.

use std::fmt;

use forebay_core::{Error, Kind, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// See the top of this file. The default is `null`.
#[derive(Clone)]
pub struct Tree(Box<RawValue>);

impl Tree {
    /// Takes a text, if it is JSON.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|why| Error::new(Kind::InvalidInput, "the tree of a step is not JSON").caused_by(why))
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Returns what the text says, as values.
    pub fn value(&self) -> Result<Value> {
        serde_json::from_str(self.text())
            .map_err(|why| Error::new(Kind::Corrupt, "the tree of a step cannot be read").caused_by(why))
    }
}

impl From<&Value> for Tree {
    fn from(value: &Value) -> Self {
        Self(to_raw_value(value).expect("a value is JSON"))
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        serde_json::from_str::<Sound>(text.get()).map_err(D::Error::custom)?;
        Ok(Self(text))
    }
}

/// JSON that was walked through; nothing of it is held.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Self, A::Error> {
        while entries.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_text_that_it_came_as() {
        let text = r#"{"b": [1.50, "ä", "\u00e4"],  "a": null}"#;
        let tree = Tree::parse(text).unwrap();
        assert_eq!(tree.text(), text);
        assert_eq!(serde_json::to_string(&tree).unwrap(), text);
        assert_eq!(tree.value().unwrap()["b"][2], "ä");
        assert_eq!(Tree::default().value().unwrap(), Value::Null);
    }

    #[test]
    fn what_cannot_be_read_as_values_is_no_tree() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for text in ["", "{", "1 2", "NaN", "1e999", r#""\ud800""#, &deep] {
            assert!(Tree::parse(text).is_err(), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
        }
    }
}
