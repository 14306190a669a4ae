//! A column of numbers: as few bytes for each as its largest needs, and none if they are in arithmetic
//! progression.
//!
//! Number `i` is `base + i * step + stored(i)`, modulo 2^64, where `stored(i)` has `width` bytes (0 to 8),
//! little endian. The writer knows two shapes: a progression (width 0), and offsets from the smallest number
//! (step 0).

use super::bytes::{Cursor, put_u32, put_u64};

/// Bytes of a column's description.
pub(super) const COLUMN_BYTES: usize = 32;

/// Location of a column in its piece, and its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) width: u32,
    pub(super) count: u32,
    pub(super) offset: u32,
    pub(super) base: u64,
    pub(super) step: u64,
}

impl Column {
    /// Reads a description; `None` if it points outside of the piece.
    pub(super) fn read(cursor: &mut Cursor<'_>, piece_bytes: usize) -> Option<Self> {
        let column = Self {
            width: cursor.u32()?,
            count: cursor.u32()?,
            offset: cursor.u32()?,
            base: {
                cursor.u32()?;
                cursor.u64()?
            },
            step: cursor.u64()?,
        };
        let bytes = u64::from(column.width) * u64::from(column.count);
        let inside = u64::from(column.offset).checked_add(bytes)? <= piece_bytes as u64;
        (column.width <= 8 && inside).then_some(column)
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_u32(out, self.width);
        put_u32(out, self.count);
        put_u32(out, self.offset);
        put_u32(out, 0);
        put_u64(out, self.base);
        put_u64(out, self.step);
    }

    /// Number `at`; `None` past the end.
    pub(super) fn get(&self, piece: &[u8], at: u32) -> Option<u64> {
        if at >= self.count {
            return None;
        }
        let linear = self.base.wrapping_add(u64::from(at).wrapping_mul(self.step));
        if self.width == 0 {
            return Some(linear);
        }
        let width = self.width as usize;
        let start = self.offset as usize + at as usize * width;
        let stored = match piece.get(start..start + 8) {
            Some(eight) => {
                let raw = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
                raw & (u64::MAX >> (64 - 8 * self.width))
            }
            None => {
                let mut raw = [0; 8];
                raw[..width].copy_from_slice(piece.get(start..start + width)?);
                u64::from_le_bytes(raw)
            }
        };
        Some(linear.wrapping_add(stored))
    }

    /// A column of single bytes as they lie there.
    pub(super) fn heap<'a>(&self, piece: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.offset as usize;
        (self.width == 1 && self.base == 0 && self.step == 0)
            .then(|| piece.get(start..start + self.count as usize))
            .flatten()
    }
}

/// Columns that are being written: descriptions first, then data.
#[derive(Debug, Default)]
pub(super) struct Columns {
    described: Vec<Column>,
    data: Vec<u8>,
}

impl Columns {
    /// Adds numbers.
    pub(super) fn push(&mut self, numbers: &[u64]) {
        let first = numbers.first().copied().unwrap_or(0);
        let step = numbers.get(1).map_or(0, |second| second.wrapping_sub(first));
        let mut expected = first;
        let is_linear = numbers.iter().all(|number| {
            let fits = *number == expected;
            expected = expected.wrapping_add(step);
            fits
        });
        if is_linear {
            return self.describe(0, numbers.len(), first, step);
        }
        let smallest = numbers.iter().copied().min().unwrap_or(0);
        let largest = numbers.iter().copied().max().unwrap_or(0);
        let width = (64 - (largest - smallest).leading_zeros()).div_ceil(8);
        self.describe(width, numbers.len(), smallest, 0);
        for number in numbers {
            let stored = (number - smallest).to_le_bytes();
            self.data.extend_from_slice(&stored[..width as usize]);
        }
    }

    /// Adds bytes as they are.
    pub(super) fn push_heap(&mut self, bytes: &[u8]) {
        self.describe(1, bytes.len(), 0, 0);
        self.data.extend_from_slice(bytes);
    }

    fn describe(&mut self, width: u32, count: usize, base: u64, step: u64) {
        self.described.push(Column {
            width,
            count: u32::try_from(count).expect("a piece is closed long before"),
            offset: u32::try_from(self.data.len()).expect("a piece is closed long before"),
            base,
            step,
        });
    }

    /// Returns how many there are.
    pub(super) fn len(&self) -> usize {
        self.described.len()
    }

    /// Writes all behind what is there.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let data_offset = out.len() + self.described.len() * COLUMN_BYTES;
        let data_offset = u32::try_from(data_offset).expect("names of a piece are short");
        for column in &self.described {
            let offset = column.offset + data_offset;
            Column { offset, ..*column }.write(out);
        }
        out.extend_from_slice(&self.data);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(numbers: &[u64]) -> (Column, Vec<u64>) {
        let mut columns = Columns::default();
        columns.push(numbers);
        let mut piece = vec![7; 3];
        columns.write(&mut piece);
        let mut cursor = Cursor::new(&piece[3..]);
        let column = Column::read(&mut cursor, piece.len()).unwrap();
        let read = (0..column.count).map(|at| column.get(&piece, at).unwrap());
        assert_eq!(column.get(&piece, column.count), None);
        (column, read.collect())
    }

    #[test]
    fn a_progression_takes_no_bytes() {
        for numbers in [
            vec![],
            vec![9],
            vec![5, 5, 5],
            vec![100, 90, 80],
            vec![0, u64::MAX],
        ] {
            let (column, read) = round_trip(&numbers);
            assert_eq!((column.width, read), (0, numbers));
        }
    }

    #[test]
    fn the_width_is_what_the_span_needs() {
        for (span, width) in [(255, 1), (256, 2), (0xff_ffff, 3), (1 << 24, 4), (1 << 56, 8)] {
            let (column, _) = round_trip(&[1 << 60, (1 << 60) + 1, (1 << 60) + span]);
            assert_eq!(column.width, width, "{span}");
        }
    }

    #[test]
    fn a_column_outside_of_its_piece_is_refused() {
        let mut columns = Columns::default();
        columns.push(&[1, 5, 300]);
        let mut piece = Vec::new();
        columns.write(&mut piece);
        assert!(Column::read(&mut Cursor::new(&piece), piece.len()).is_some());
        assert!(Column::read(&mut Cursor::new(&piece), piece.len() - 1).is_none());
        piece[0] = 9;
        assert!(Column::read(&mut Cursor::new(&piece), usize::MAX).is_none());
    }

    proptest! {
        #[test]
        fn numbers_come_back(numbers in proptest::collection::vec(any::<u64>(), 0..50), shift in 0_u32..64) {
            let numbers: Vec<u64> = numbers.into_iter().map(|number| number >> shift).collect();
            prop_assert_eq!(round_trip(&numbers).1, numbers);
        }
    }
}
