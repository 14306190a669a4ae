//! A look at Thrift before the `parquet` crate believes it.
//!
//! The crate takes memory for as many elements as some lists claim to have, follows a schema as deep as it is
//! nested, and unpacks a page to whatever size it says. With hostile numbers each of these ends the process,
//! which [`guarded`](super::guarded) cannot catch. So the bytes are walked once before: every list and text
//! must fit into what is left, and structures, schemas and pages have limits. The crate goes by the number of
//! a field and not by its type, so in what it must not be misled about both have to agree ([`Shape`]).
//! Thrift's compact protocol; nothing is kept.

use parquet::errors::ParquetError;

use crate::index::FIELDS_MAX;

/// Structures and lists inside of each other; the deepest that Parquet defines has less than ten.
const DEPTH_MAX: usize = 32;
/// Groups of a schema inside of each other.
const SCHEMA_DEPTH_MAX: usize = 64;
/// The names on the way to a column, together.
const PATH_BYTES_MAX: usize = 64 << 10;

/// Types of fields and elements. Those of one byte or none have no name here.
const BYTE: u8 = 3;
const I32: u8 = 5;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Sizes by the header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PageSizes {
    /// Of the header itself.
    pub(super) header_bytes: usize,
    /// Of the page, unpacked.
    pub(super) unpacked_bytes: usize,
    /// Of the page as it is stored.
    pub(super) stored_bytes: usize,
    /// Bytes of levels in it, which are not compressed.
    pub(super) levels_bytes: usize,
}

/// Returns whether a structure can be read: every length in it fits.
pub(super) fn fits(structure: &[u8]) -> bool {
    Reader(structure).skip(STRUCT, 0).is_some()
}

/// Returns whether the footer of a file can be read: that, and its schema is neither too deep nor too wide.
pub(super) fn footer_fits(footer: &[u8]) -> bool {
    let mut has_schema = false;
    let walked = Reader(footer).fields(|field, kind, reader| match (field, kind) {
        _ if has_schema => reader.skip(kind, 0),
        (1, I32) => reader.skip(kind, 0),
        (2, LIST) => {
            has_schema = true;
            reader.schema()
        }
        // Nothing else comes before the schema.
        _ => None,
    });
    walked.is_some()
}

/// The sizes in the header of a page, which starts these bytes.
pub(super) fn page_sizes(page: &[u8]) -> Option<PageSizes> {
    Reader(page).shaped(PAGE, 0)?;
    let mut sizes = PageSizes::default();
    let mut reader = Reader(page);
    reader.fields(|field, kind, reader| {
        match (field, kind) {
            (2, I32) => sizes.unpacked_bytes = reader.size()?,
            (3, I32) => sizes.stored_bytes = reader.size()?,
            // The second kind of data page.
            (8, STRUCT) => reader.fields(|field, kind, reader| {
                match (field, kind) {
                    (5 | 6, I32) => sizes.levels_bytes = sizes.levels_bytes.checked_add(reader.size()?)?,
                    _ => reader.skip(kind, 0)?,
                }
                Some(())
            })?,
            _ => reader.skip(kind, 0)?,
        }
        Some(())
    })?;
    sizes.header_bytes = page.len() - reader.0.len();
    Some(sizes)
}

/// The error where [`page_sizes`] finds none.
pub(super) fn no_header() -> ParquetError {
    ParquetError::General("a page without a header that can be read".into())
}

/// Fields of a structure by number: type, and shape if they are structures. Others are whatever
/// they say.
#[derive(Clone, Copy)]
struct Shape(fn(i16) -> Option<(u8, Shape)>);

const ANY: Shape = Shape(|_| None);
/// A choice between structures without fields.
const CHOICE: Shape = Shape(|_| Some((STRUCT, ANY)));
const NUMBERS: Shape = Shape(|field| (1..=4).contains(&field).then_some((I32, ANY)));

/// The header of a page.
const PAGE: Shape = Shape(|field| {
    Some(match field {
        1..=4 => (I32, ANY),
        5 => (STRUCT, NUMBERS),
        6 => (STRUCT, ANY),
        7 => (STRUCT, Shape(|field| (field <= 2).then_some((I32, ANY)))),
        8 => (STRUCT, Shape(|field| (field <= 6).then_some((I32, ANY)))),
        _ => return None,
    })
});

/// An element of a schema.
const ELEMENT: Shape = Shape(|field| {
    Some(match field {
        4 => (BINARY, ANY),
        1..=9 => (I32, ANY),
        10 => (STRUCT, LOGICAL_TYPE),
        _ => return None,
    })
});

const LOGICAL_TYPE: Shape = Shape(|field| {
    let shape = match field {
        // Decimals, times, whole numbers and variants, places.
        5 => NUMBERS,
        7 | 8 => Shape(|field| (field == 2).then_some((STRUCT, CHOICE))),
        10 | 16 => Shape(|field| (field == 1).then_some((BYTE, ANY))),
        17 | 18 => Shape(|field| match field {
            1 => Some((BINARY, ANY)),
            2 => Some((I32, ANY)),
            _ => None,
        }),
        _ => ANY,
    };
    Some((STRUCT, shape))
});

/// The tree that a list of elements is, each with the number of its children behind it.
#[derive(Default)]
struct Schema {
    elements: usize,
    leaves: usize,
    /// Of each open group: children that are still to come, and bytes of the names down to it.
    open: Vec<(usize, usize)>,
}

impl Schema {
    fn add(&mut self, name_bytes: usize, children: usize, count: usize) -> Option<()> {
        let above = self.open.last().map_or(0, |(_, path_bytes)| *path_bytes);
        let path_bytes = above.checked_add(name_bytes)?;
        self.elements += 1;
        if children > count - self.elements || path_bytes > PATH_BYTES_MAX {
            return None;
        }
        if let Some((left, _)) = self.open.last_mut() {
            *left = left.checked_sub(1)?;
        }
        if children > 0 {
            self.open.push((children, path_bytes));
        } else {
            self.leaves += 1;
        }
        while self.open.last().is_some_and(|(left, _)| *left == 0) {
            self.open.pop();
        }
        (self.open.len() <= SCHEMA_DEPTH_MAX && self.leaves <= FIELDS_MAX).then_some(())
    }
}

/// Rest of a structure; every method gives `None` where it does not fit.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A number that is no less than 0: numbers with a sign have it in their lowest bit.
    fn size(&mut self) -> Option<usize> {
        let number = self.varint()?;
        let size = i32::try_from(number >> 1).ok().filter(|_| number & 1 == 0)?;
        usize::try_from(size).ok()
    }

    fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }

    /// Number and type of the elements that follow; each has a byte at least.
    fn list(&mut self) -> Option<(usize, u8)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            few => usize::from(few),
        };
        (count <= self.0.len()).then_some((count, head & 0x0f))
    }

    /// The fields of a structure: number and type of each, with the reader at its value.
    fn fields(&mut self, mut each: impl FnMut(i16, u8, &mut Self) -> Option<()>) -> Option<()> {
        let mut field = 0_i16;
        loop {
            let head = self.byte()?;
            if head & 0x0f == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => {
                    let number = self.varint()?;
                    i16::try_from((number >> 1).cast_signed() ^ -(number & 1).cast_signed()).ok()?
                }
                step => field.checked_add(i16::from(step))?,
            };
            each(field, head & 0x0f, self)?;
        }
    }

    /// Passes over a structure of a shape: each field once, in order, and no lists, of which the shapes here
    /// have none.
    fn shaped(&mut self, shape: Shape, depth: usize) -> Option<()> {
        let mut last = 0;
        self.fields(|field, kind, reader| {
            if field <= last || depth == DEPTH_MAX {
                return None;
            }
            last = field;
            let (expected, inner) = (shape.0)(field).unwrap_or((kind, ANY));
            match kind {
                _ if kind != expected => None,
                STRUCT => reader.shaped(inner, depth + 1),
                LIST | 10 | 11 => None,
                _ => reader.skip(kind, depth),
            }
        })
    }

    /// Passes over a list of elements of a schema.
    fn schema(&mut self) -> Option<()> {
        let mut schema = Schema::default();
        let (count, kind) = self.list()?;
        for _ in 0..count {
            if kind != STRUCT {
                return None;
            }
            Reader(self.0).shaped(ELEMENT, 0)?;
            let (mut name_bytes, mut children) = (0, 0);
            self.fields(|field, kind, reader| {
                match field {
                    4 => name_bytes = reader.binary()?.len(),
                    5 => children = reader.size()?,
                    _ => reader.skip(kind, 0)?,
                }
                Some(())
            })?;
            schema.add(name_bytes, children, count)?;
        }
        Some(())
    }

    /// Passes over a value.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        match kind {
            // The truth of a field stands in its type.
            1 | 2 => Some(()),
            BYTE => self.take(1).map(|_| ()),
            4 | I32 | 6 => self.varint().map(|_| ()),
            7 => self.take(8).map(|_| ()),
            BINARY => self.binary().map(|_| ()),
            LIST | 10 => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.element(kind, depth))
            }
            11 => {
                let count = usize::try_from(self.varint()?).ok()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                if count > self.0.len() {
                    return None;
                }
                (0..count).try_for_each(|_| {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 0x0f, depth)
                })
            }
            STRUCT => self.fields(|_, kind, reader| reader.skip(kind, depth + 1)),
            13 => self.take(16).map(|_| ()),
            _ => None,
        }
    }

    /// Passes over an element of a list, where a truth is a byte.
    fn element(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => self.take(1).map(|_| ()),
            _ => self.skip(kind, depth + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Kind;

    use super::*;
    use crate::parquet::ParquetFile;

    /// A footer with a schema of these elements: name, and how many children.
    fn footer(elements: &[(&str, u32)]) -> Vec<u8> {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        let varint = |out: &mut Vec<u8>, mut number: usize| {
            while number >= 0x80 {
                out.push((number & 0x7f) as u8 | 0x80);
                number >>= 7;
            }
            out.push(number as u8);
        };
        varint(&mut footer, elements.len());
        for (name, children) in elements {
            // Repetition, name, children; then the end.
            footer.extend([0x35, 0, 0x18]);
            varint(&mut footer, name.len());
            footer.extend(name.as_bytes());
            if *children > 0 {
                footer.push(0x15);
                varint(&mut footer, *children as usize * 2);
            }
            footer.push(0);
        }
        footer.push(0);
        footer
    }

    #[test]
    fn a_schema_may_be_deep_and_wide_up_to_a_limit() {
        let deep = |depth: usize| {
            let groups = std::iter::repeat_n(("g", 1), depth);
            footer(&groups.chain([("leaf", 0)]).collect::<Vec<_>>())
        };
        assert!(footer_fits(&deep(SCHEMA_DEPTH_MAX)));
        assert!(!footer_fits(&deep(SCHEMA_DEPTH_MAX + 1)));
        let wide = |leaves: usize| {
            let leaves = std::iter::repeat_n(("leaf", 0), leaves);
            let root = ("root", u32::try_from(leaves.len()).unwrap());
            footer(&[root].into_iter().chain(leaves).collect::<Vec<_>>())
        };
        assert!(footer_fits(&wide(FIELDS_MAX)));
        assert!(!footer_fits(&wide(FIELDS_MAX + 1)));
    }

    #[test]
    fn what_claims_more_than_is_there_does_not_fit() {
        assert!(!footer_fits(&footer(&[("root", 1_000_000_000), ("leaf", 0)])));
        let long = "n".repeat(PATH_BYTES_MAX / 2);
        assert!(footer_fits(&footer(&[(&long, 1), ("leaf", 0)])));
        assert!(!footer_fits(&footer(&[(&long, 1), (&long, 1), ("leaf", 0)])));
        // A list, a text and a map of two thousand million elements, and structures without end.
        for bytes in [
            &[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7, 0][..],
            &[0x18, 0xff, 0xff, 0xff, 0xff, 7, 0],
            &[0x1b, 0xff, 0xff, 0xff, 0xff, 7, 0x55, 0],
            &[0x1c; 1000],
        ] {
            assert!(!fits(bytes), "{bytes:?}");
        }
        assert!(fits(&[0x15, 2, 0x21, 0x39, 0x21, 1, 2, 0]));
    }

    #[test]
    fn a_footer_that_would_end_the_process_is_refused() {
        let deep = std::iter::repeat_n(("g", 1), 300_000).chain([("leaf", 0)]);
        let claims = std::iter::repeat_n(("g", 1 << 30), 30).chain([("leaf", 0)]);
        for elements in [deep.collect::<Vec<_>>(), claims.collect()] {
            let mut file = footer(&elements);
            let bytes = u32::try_from(file.len()).unwrap();
            file.extend(bytes.to_le_bytes());
            file.extend(b"PAR1");
            let error = ParquetFile::parse(&file, file.len() as u64).err().unwrap();
            assert_eq!(error.kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn the_type_of_a_field_cannot_hide_a_schema() {
        let hidden = footer(&[("root", 1_000_000_000), ("leaf", 0)]);
        let text = |head: &[u8]| [head, &[u8::try_from(hidden.len()).unwrap()], &hidden, &[0]].concat();
        // The version as a text, another text before the schema, and one whose number is that of the schema
        // once the crate has cut it.
        for head in [&[0x18][..], &[0x28], &[0x08, 0x84, 0x80, 0x08]] {
            assert!(!footer_fits(&text(head)), "{head:?}");
        }
        // The crate passes over a second schema.
        let mut twice = footer(&[("root", 2), ("leaf", 0), ("leaf", 0)]);
        twice.pop();
        twice.extend([0x09, 4]);
        twice.extend(&hidden[3..]);
        assert!(footer_fits(&twice));
        // Elements: the name as a list, the children as another number, twice, or behind a list of truths
        // that the crate takes for empty.
        for element in [
            &[0x35, 0, 0x19, 0x18, 4, b'r', b'o', b'o', b't', 0][..],
            &[0x35, 0, 0x18, 1, b'r', 0x16, 2, 0],
            &[0x35, 0, 0x18, 1, b'r', 0x15, 2, 0x05, 10, 2, 0],
            &[0x35, 0, 0x18, 1, b'r', 0xf9, 0x11, 1, 0],
            // A logical type of a whole number with its width as a text.
            &[0x35, 0, 0x18, 1, b'r', 0x6c, 0xac, 0x18, 1, 0, 0, 0, 0],
        ] {
            let footer = [&[0x15, 2, 0x19, 0x1c][..], element, &[0]].concat();
            assert!(!footer_fits(&footer), "{element:?}");
        }
        // A logical type as it should be.
        let whole_number = [0x35, 0, 0x18, 1, b'r', 0x6c, 0xac, 0x13, 8, 0x11, 0, 0, 0];
        let footer = [&[0x15, 2, 0x19, 0x1c][..], &whole_number, &[0]].concat();
        assert!(footer_fits(&footer));
    }

    #[test]
    fn the_type_of_a_field_cannot_hide_the_size_of_a_page() {
        for header in [
            &[0x15, 0, 0x16, 6, 0x15, 6, 0][..],
            &[0x18, 0, 0x15, 6, 0x15, 6, 0],
            &[0x15, 0, 0x15, 6, 0x15, 6, 0x05, 4, 0xfe, 0x0f, 0],
            &[0x15, 0, 0x15, 6, 0x15, 6, 0x5c, 0x55, 4, 0x05, 10, 4, 0, 0],
        ] {
            assert_eq!(page_sizes(header), None, "{header:?}");
        }
    }

    #[test]
    fn a_page_says_its_sizes() {
        let header = [
            0x15, 6, 0x15, 0x80, 1, 0x15, 20, 0x5c, 0x55, 4, 0x15, 6, 0x11, 0, 0, 0xff,
        ];
        let expected = PageSizes {
            header_bytes: 15,
            unpacked_bytes: 64,
            stored_bytes: 10,
            levels_bytes: 5,
        };
        assert_eq!(page_sizes(&header), Some(expected));
        assert_eq!(page_sizes(&header[..14]), None);
        // Less than nothing.
        assert_eq!(page_sizes(&[0x15, 0, 0x15, 1, 0]), None);
    }
}
