//! Columns of a Parquet file as fields of samples: their names, what their values are, and how lists are
//! nested.
//!
//! Every leaf of the schema is one field. Its name is its path without the steps that only make lists
//! (`tags.list.element` is `tags`); a leaf below a list is a list, however deep. How a value is written as
//! bytes is [`ValueKind`] and, for lists, `nested.rs`; its name ([`Leaf::encoding`]) is what an index keeps,
//! so that a reader need not open a file to know its columns.

use std::collections::HashMap;
use std::fmt;

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::schema::types::{BasicTypeInfo, SchemaDescriptor, Type};

/// Prefix of an encoding of a column of Parquet.
pub const ENCODING_PREFIX: &str = "parquet:";
/// Lists in lists, at most.
const DEPTH_MAX: usize = 8;

/// Kind of a value, and the bytes that it is handed over as. Numbers are little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// One byte, 0 or 1.
    Bool,
    /// A whole number of so many bytes.
    Int(u8),
    /// The same without a sign.
    Uint(u8),
    /// A number of 2, 4 or 8 bytes.
    Float(u8),
    /// Days since 1970 in 4 bytes.
    Date,
    /// Milliseconds since 1970 in 8 bytes.
    TimestampMs,
    /// Microseconds.
    TimestampUs,
    /// Nanoseconds.
    TimestampNs,
    /// Digits, with so many of them behind the point.
    Decimal(u8),
    /// UTF-8.
    Text,
    /// Any bytes.
    Bytes,
    /// Not read: a type that nobody needs here.
    Unsupported,
}

impl ValueKind {
    /// Bytes of every value; `None` if they differ.
    #[must_use]
    pub const fn width(self) -> Option<usize> {
        match self {
            Self::Bool => Some(1),
            Self::Int(width) | Self::Uint(width) | Self::Float(width) => Some(width as usize),
            Self::Date => Some(4),
            Self::TimestampMs | Self::TimestampUs | Self::TimestampNs => Some(8),
            Self::Decimal(_) | Self::Text | Self::Bytes | Self::Unsupported => None,
        }
    }

    fn of(leaf: &Type) -> Self {
        let info = leaf.get_basic_info();
        let physical = leaf.get_physical_type();
        match (physical, info.converted_type(), info.logical_type_ref()) {
            (_, ConvertedType::DECIMAL, _) => decimal(leaf),
            (Physical::BOOLEAN, ..) => Self::Bool,
            (Physical::FLOAT, ..) => Self::Float(4),
            (Physical::DOUBLE, ..) => Self::Float(8),
            (Physical::INT96, ..) => Self::TimestampNs,
            (Physical::INT32, ConvertedType::DATE, _) => Self::Date,
            (Physical::INT32, ConvertedType::INT_8, _) => Self::Int(1),
            (Physical::INT32, ConvertedType::INT_16, _) => Self::Int(2),
            (Physical::INT32, ConvertedType::UINT_8, _) => Self::Uint(1),
            (Physical::INT32, ConvertedType::UINT_16, _) => Self::Uint(2),
            (Physical::INT32, ConvertedType::UINT_32, _) => Self::Uint(4),
            (Physical::INT32, ..) => Self::Int(4),
            (Physical::INT64, ConvertedType::UINT_64, _) => Self::Uint(8),
            (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS, _) => Self::TimestampMs,
            (Physical::INT64, ConvertedType::TIMESTAMP_MICROS, _) => Self::TimestampUs,
            (Physical::INT64, _, Some(LogicalType::Timestamp(time))) => match time.unit {
                TimeUnit::MILLIS => Self::TimestampMs,
                TimeUnit::MICROS => Self::TimestampUs,
                TimeUnit::NANOS => Self::TimestampNs,
            },
            (Physical::INT64, ..) => Self::Int(8),
            (Physical::FIXED_LEN_BYTE_ARRAY, _, Some(LogicalType::Float16)) => Self::Float(2),
            (Physical::BYTE_ARRAY, ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON, _) => {
                Self::Text
            }
            (Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY, ..) => Self::Bytes,
        }
    }
}

/// More than 38 digits do not fit into the numbers that we compute with.
fn decimal(leaf: &Type) -> ValueKind {
    let scale = u8::try_from(leaf.get_scale()).ok().filter(|scale| *scale <= 38);
    match scale {
        Some(scale) if leaf.get_precision() <= 38 => ValueKind::Decimal(scale),
        _ => ValueKind::Unsupported,
    }
}

/// Returns what an encoding of a column says: its values, and how many lists are around them. `None`: it is
/// not one of Parquet.
#[must_use]
pub fn parse_encoding(encoding: &str) -> Option<(ValueKind, usize)> {
    let mut name = encoding.strip_prefix(ENCODING_PREFIX)?;
    let mut depth = 0;
    while let Some(inner) = name.strip_prefix("list[").and_then(|name| name.strip_suffix(']')) {
        (name, depth) = (inner, depth + 1);
    }
    let decimal = name
        .strip_prefix("decimal[")
        .and_then(|rest| rest.strip_suffix(']'));
    let kind = match decimal {
        Some(scale) => ValueKind::Decimal(scale.parse().ok()?),
        None => KINDS.into_iter().find(|kind| kind.to_string() == name)?,
    };
    Some((kind, depth))
}

/// Every kind but decimals.
const KINDS: [ValueKind; 19] = [
    ValueKind::Bool,
    ValueKind::Int(1),
    ValueKind::Int(2),
    ValueKind::Int(4),
    ValueKind::Int(8),
    ValueKind::Uint(1),
    ValueKind::Uint(2),
    ValueKind::Uint(4),
    ValueKind::Uint(8),
    ValueKind::Float(2),
    ValueKind::Float(4),
    ValueKind::Float(8),
    ValueKind::Date,
    ValueKind::TimestampMs,
    ValueKind::TimestampUs,
    ValueKind::TimestampNs,
    ValueKind::Text,
    ValueKind::Bytes,
    ValueKind::Unsupported,
];

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("bool"),
            Self::Int(width) => write!(f, "int{}", 8 * width),
            Self::Uint(width) => write!(f, "uint{}", 8 * width),
            Self::Float(width) => write!(f, "float{}", 8 * width),
            Self::Date => f.write_str("date"),
            Self::TimestampMs => f.write_str("timestamp[ms]"),
            Self::TimestampUs => f.write_str("timestamp[us]"),
            Self::TimestampNs => f.write_str("timestamp[ns]"),
            Self::Decimal(scale) => write!(f, "decimal[{scale}]"),
            Self::Text => f.write_str("str"),
            Self::Bytes => f.write_str("bytes"),
            Self::Unsupported => f.write_str("unsupported"),
        }
    }
}

/// A column that samples have as a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Its name as a field.
    pub name: String,
    /// Kind of its values, lists aside.
    pub kind: ValueKind,
    /// For each list around the value, from outside: the definition level from which it has an element.
    pub(super) lists: Vec<i16>,
    /// The definition level of a value that is there.
    pub(super) max_def: i16,
}

impl Leaf {
    /// Returns how its values are encoded, in a word: `parquet:int64`, `parquet:list[str]`.
    #[must_use]
    pub fn encoding(&self) -> String {
        let (open, close) = ("list[".repeat(self.lists.len()), "]".repeat(self.lists.len()));
        format!("{ENCODING_PREFIX}{open}{}{close}", self.kind)
    }

    /// Returns whether it is a list.
    #[must_use]
    pub fn is_list(&self) -> bool {
        !self.lists.is_empty()
    }
}

/// All columns, in the order of the file.
pub(super) fn leaves(schema: &SchemaDescriptor) -> Vec<Leaf> {
    let mut walk = SchemaWalk::default();
    for field in schema.root_schema().get_fields() {
        walk.visit(field, SchemaPosition::default());
    }
    let mut count: HashMap<String, u32> = HashMap::new();
    for leaf in &walk.leaves {
        *count.entry(leaf.name.clone()).or_default() += 1;
    }
    // Two columns whose names differ only in what was left out have their whole paths.
    for (leaf, column) in walk.leaves.iter_mut().zip(schema.columns()) {
        if count.get(&leaf.name).is_some_and(|count| *count > 1) {
            leaf.name = column.path().string();
        }
    }
    walk.leaves
}

/// Position of a walk through the schema.
#[derive(Debug, Clone, Default)]
struct SchemaPosition {
    path: Vec<String>,
    def: i16,
    lists: Vec<i16>,
    /// The names of so many next steps only make a list.
    hidden: u8,
}

#[derive(Default)]
struct SchemaWalk {
    leaves: Vec<Leaf>,
}

impl SchemaWalk {
    fn visit(&mut self, node: &Type, mut place: SchemaPosition) {
        let info = node.get_basic_info();
        match info.has_repetition().then(|| info.repetition()) {
            Some(Repetition::OPTIONAL) => place.def += 1,
            Some(Repetition::REPEATED) => {
                place.def += 1;
                place.lists.push(place.def);
            }
            Some(Repetition::REQUIRED) | None => {}
        }
        if place.hidden > 0 {
            place.hidden -= 1;
        } else {
            place.path.push(node.name().to_owned());
        }
        if node.is_primitive() {
            let too_deep = place.lists.len() > DEPTH_MAX;
            self.leaves.push(Leaf {
                name: place.path.join("."),
                kind: if too_deep {
                    ValueKind::Unsupported
                } else {
                    ValueKind::of(node)
                },
                lists: place.lists,
                max_def: place.def,
            });
            return;
        }
        if place.hidden == 0 {
            place.hidden = hidden_steps(info, node);
        }
        for field in node.get_fields() {
            self.visit(field, place.clone());
        }
    }
}

/// Returns how many of the steps below a group only make a list: the repeated group, and of the usual form of
/// a list its element too.
fn hidden_steps(info: &BasicTypeInfo, node: &Type) -> u8 {
    let [repeated] = node.get_fields() else { return 0 };
    let inner = repeated.get_basic_info();
    if !inner.has_repetition() || inner.repetition() != Repetition::REPEATED {
        return 0;
    }
    match info.converted_type() {
        ConvertedType::LIST => {
            let is_element = repeated.is_primitive()
                || repeated.get_fields().len() != 1
                || repeated.name() == "array"
                || repeated.name().ends_with("_tuple");
            if is_element { 1 } else { 2 }
        }
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;

    use super::*;

    fn of(schema: &str) -> Vec<(String, String)> {
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap()));
        let leaves = leaves(&schema);
        leaves
            .iter()
            .map(|leaf| (leaf.name.clone(), leaf.encoding()))
            .collect()
    }

    #[test]
    fn a_list_has_the_name_of_its_group() {
        let found = of("message m {
            optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
            optional group grid (LIST) { repeated group list { optional group element (LIST) {
                repeated group list { optional float element; } } } }
            optional group box { required int32 x (INT_16); optional int64 when (TIMESTAMP_MICROS); }
            optional group map (MAP) { repeated group key_value { required binary key (UTF8); optional double value; } }
            repeated int64 old;
        }");
        let expected = [
            ("tags", "parquet:list[str]"),
            ("grid", "parquet:list[list[float32]]"),
            ("box.x", "parquet:int16"),
            ("box.when", "parquet:timestamp[us]"),
            ("map.key", "parquet:list[str]"),
            ("map.value", "parquet:list[float64]"),
            ("old", "parquet:list[int64]"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, encoding)| ((*name).to_owned(), (*encoding).to_owned()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn encodings_can_be_read_again() {
        for (kind, lists) in KINDS
            .iter()
            .copied()
            .chain([ValueKind::Decimal(7)])
            .zip((0..3).cycle())
        {
            let leaf = Leaf {
                name: "x".into(),
                kind,
                lists: vec![0; lists],
                max_def: 0,
            };
            assert_eq!(
                parse_encoding(&leaf.encoding()),
                Some((kind, lists)),
                "{}",
                leaf.encoding()
            );
        }
        for wrong in ["int64", "parquet:list[int64", "parquet:decimal[]", "parquet:"] {
            assert_eq!(parse_encoding(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn columns_that_would_share_a_name_have_their_paths() {
        let found = of("message m {
            optional group a (LIST) { repeated group list { optional group element { required int32 b; } } }
            required group x { required int32 b; }
            required int32 c;
        }");
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.b", "x.b", "c"]);
    }
}
