//! Smallest and largest values of columns, for those columns where every row group has them and they compare
//! as they are stored.
//!
//! Left out are types whose stored order is not their value's order for a filter (unsigned and decimal
//! numbers, 96-bit times, raw bytes), texts that may have been cut to more than [`TEXT_BYTES_MAX`], and NaN.

use parquet::basic::ConvertedType;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;

use super::file::ParquetFile;
use crate::index::{ColumnKind, ColumnSpec, Value};

/// Longer texts are not worth their place in an index.
const TEXT_BYTES_MAX: usize = 256;
/// Columns beyond these have no statistics in the index.
const COLUMNS_MAX: usize = 1024;

/// The statistics of a file.
pub(super) struct Summary<'a> {
    columns: Vec<ColumnSpec>,
    /// For each row group, in the order of `columns`.
    values: Vec<Vec<Value<'a>>>,
}

impl<'a> Summary<'a> {
    pub(super) fn of(file: &'a ParquetFile) -> Self {
        let groups = file.footer.row_groups();
        let mut summary = Self {
            columns: Vec::new(),
            values: vec![Vec::new(); groups.len()],
        };
        let leaves = file.leaves().iter().enumerate().take(COLUMNS_MAX);
        for (number, leaf) in leaves.filter(|(_, leaf)| !leaf.is_list()) {
            let bounds: Option<Vec<_>> = groups
                .iter()
                .map(|group| bounds(group.columns().get(number)?))
                .collect();
            let Some(bounds) = bounds.filter(|bounds| !bounds.is_empty()) else {
                continue;
            };
            let kind = bounds[0].0.kind();
            if bounds
                .iter()
                .any(|(low, high)| low.kind() != kind || high.kind() != kind)
            {
                continue;
            }
            summary.add(&leaf.name, kind);
            for (group, (low, high)) in summary.values.iter_mut().zip(bounds) {
                group.extend([low, high]);
            }
        }
        summary
    }

    fn add(&mut self, path: &str, kind: ColumnKind) {
        for which in ["min", "max"] {
            self.columns
                .push(ColumnSpec::new(format!("{which}({path})"), kind));
        }
    }

    pub(super) fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    pub(super) fn values(&self, group: usize) -> Vec<Value<'a>> {
        self.values.get(group).cloned().unwrap_or_default()
    }
}

fn bounds(chunk: &ColumnChunkMetaData) -> Option<(Value<'_>, Value<'_>)> {
    let statistics = chunk.statistics()?;
    let converted = chunk.column_descr().converted_type();
    let is_plain = !matches!(
        converted,
        ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
            | ConvertedType::DECIMAL
            | ConvertedType::INTERVAL
    );
    if !is_plain || statistics.is_min_max_deprecated() {
        return None;
    }
    let int = |number: i64| Value::I64(number);
    let (low, high) = match statistics {
        Statistics::Boolean(both) => (int((*both.min_opt()?).into()), int((*both.max_opt()?).into())),
        Statistics::Int32(both) => (int((*both.min_opt()?).into()), int((*both.max_opt()?).into())),
        Statistics::Int64(both) => (int(*both.min_opt()?), int(*both.max_opt()?)),
        Statistics::Float(both) => (
            number((*both.min_opt()?).into())?,
            number((*both.max_opt()?).into())?,
        ),
        Statistics::Double(both) => (number(*both.min_opt()?)?, number(*both.max_opt()?)?),
        Statistics::ByteArray(_) if converted == ConvertedType::UTF8 => (
            text(statistics.min_bytes_opt()?)?,
            text(statistics.max_bytes_opt()?)?,
        ),
        _ => return None,
    };
    Some((low, high))
}

fn number(number: f64) -> Option<Value<'static>> {
    (!number.is_nan()).then_some(Value::F64(number))
}

fn text(bytes: &[u8]) -> Option<Value<'_>> {
    let text = std::str::from_utf8(bytes).ok();
    text.filter(|text| text.len() <= TEXT_BYTES_MAX).map(Value::Text)
}
