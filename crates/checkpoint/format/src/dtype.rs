//! Types of elements, in safetensors' words.

use std::fmt;

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// The type of a tensor's elements. Names are those of safetensors, which are also what a manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the documentation")]
#[allow(non_camel_case_types, reason = "safetensors' own words")]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// Every type.
    pub const ALL: [Self; 17] = [
        Self::BOOL,
        Self::U8,
        Self::I8,
        Self::F8_E4M3,
        Self::F8_E5M2,
        Self::F8_E8M0,
        Self::I16,
        Self::U16,
        Self::F16,
        Self::BF16,
        Self::I32,
        Self::U32,
        Self::F32,
        Self::C64,
        Self::F64,
        Self::I64,
        Self::U64,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::BOOL | Self::U8 | Self::I8 | Self::F8_E4M3 | Self::F8_E5M2 | Self::F8_E8M0 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::C64 | Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Its name in manifests and safetensors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BOOL => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8_E4M3 => "F8_E4M3",
            Self::F8_E5M2 => "F8_E5M2",
            Self::F8_E8M0 => "F8_E8M0",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::C64 => "C64",
            Self::F64 => "F64",
            Self::I64 => "I64",
            Self::U64 => "U64",
        }
    }

    /// The type of this name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.as_str() == name);
        found.ok_or_else(|| {
            let message = "this type of elements is not known; update forebay, or convert the tensor before it is saved";
            Error::new(Kind::Unsupported, message).with("dtype", name)
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Dtype;

    #[test]
    fn names_are_what_serde_writes_and_read_back() {
        for dtype in Dtype::ALL {
            assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("\"{dtype}\""));
            assert_eq!(Dtype::parse(dtype.as_str()).unwrap(), dtype);
        }
        assert!(Dtype::parse("f32").is_err());
    }
}
