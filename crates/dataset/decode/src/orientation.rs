//! Orientation of a camera by EXIF; images rotated and mirrored.
//!
//! EXIF is a TIFF file of tags in the image's file; only one of its tags is looked at. What cannot be read
//! means upright, as for Pillow: wrong metadata does not make a sample bad.

use crate::image::Pixels;

/// One of the eight ways in which rows and columns can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Orientation {
    /// Rows become columns; done last.
    is_transposed: bool,
    is_upside_down: bool,
    is_mirrored: bool,
}

const TAG: u16 = 0x0112;
const ENTRY_BYTES: usize = 12;
/// In front of the TIFF file where it lies in a JPEG, and in some WebP files.
const EXIF: &[u8] = b"Exif\0\0";

impl Orientation {
    /// Left and right changed.
    pub(crate) const MIRRORED: Self = Self {
        is_transposed: false,
        is_upside_down: false,
        is_mirrored: true,
    };

    /// Returns what the EXIF of an image says.
    pub(crate) fn of_exif(exif: &[u8]) -> Self {
        let number = tag(exif.strip_prefix(EXIF).unwrap_or(exif)).unwrap_or(1);
        Self {
            is_transposed: matches!(number, 5..=8),
            is_upside_down: matches!(number, 3 | 4 | 6 | 7),
            is_mirrored: matches!(number, 2 | 3 | 7 | 8),
        }
    }

    /// The image as it is meant to be seen.
    pub(crate) fn apply(self, pixels: Pixels) -> Pixels {
        if self == Self::default() {
            return pixels;
        }
        let (rows, columns) = (pixels.height as usize, pixels.width as usize);
        let (height, width) = if self.is_transposed {
            (pixels.width, pixels.height)
        } else {
            (pixels.height, pixels.width)
        };
        let pixel = pixels.pixel_bytes();
        let mut bytes = Vec::with_capacity(pixels.bytes.len());
        for y in 0..height as usize {
            for x in 0..width as usize {
                let (row, column) = if self.is_transposed { (x, y) } else { (y, x) };
                let row = if self.is_upside_down { rows - 1 - row } else { row };
                let column = if self.is_mirrored {
                    columns - 1 - column
                } else {
                    column
                };
                let at = (row * columns + column) * pixel;
                bytes.extend_from_slice(&pixels.bytes[at..at + pixel]);
            }
        }
        Pixels {
            height,
            width,
            bytes,
            ..pixels
        }
    }
}

/// The orientation in the first directory of a TIFF file.
fn tag(tiff: &[u8]) -> Option<u32> {
    let is_little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    };
    let long = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    };
    let directory = usize::try_from(long(4)?).ok()?;
    let first = directory.checked_add(2)?;
    for entry in 0..usize::from(short(directory)?) {
        let at = first.checked_add(entry * ENTRY_BYTES)?;
        if short(at)? == TAG {
            return match short(at + 2)? {
                3 => short(at + 8).map(u32::from),
                4 => long(at + 8),
                _ => None,
            };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(is_little: bool, number: u16) -> Vec<u8> {
        let mut tiff = Vec::new();
        let short = |tiff: &mut Vec<u8>, value: u16| {
            tiff.extend(if is_little {
                value.to_le_bytes()
            } else {
                value.to_be_bytes()
            });
        };
        let long = |tiff: &mut Vec<u8>, value: u32| {
            tiff.extend(if is_little {
                value.to_le_bytes()
            } else {
                value.to_be_bytes()
            });
        };
        tiff.extend(if is_little { b"II" } else { b"MM" });
        short(&mut tiff, 42);
        long(&mut tiff, 8);
        short(&mut tiff, 2);
        for (tag, value) in [(0x010f, 9), (TAG, number)] {
            short(&mut tiff, tag);
            short(&mut tiff, 3);
            long(&mut tiff, 1);
            short(&mut tiff, value);
            short(&mut tiff, 0);
        }
        tiff
    }

    #[test]
    fn all_eight_ways_are_turned_upright() {
        // 0 1 2
        // 3 4 5
        let image = Pixels {
            height: 2,
            width: 3,
            channels: 1,
            channel_bytes: 1,
            bytes: (0..6).collect(),
        };
        for (number, size, expected) in [
            (1, (2, 3), [0, 1, 2, 3, 4, 5]),
            (2, (2, 3), [2, 1, 0, 5, 4, 3]),
            (3, (2, 3), [5, 4, 3, 2, 1, 0]),
            (4, (2, 3), [3, 4, 5, 0, 1, 2]),
            (5, (3, 2), [0, 3, 1, 4, 2, 5]),
            (6, (3, 2), [3, 0, 4, 1, 5, 2]),
            (7, (3, 2), [5, 2, 4, 1, 3, 0]),
            (8, (3, 2), [2, 5, 1, 4, 0, 3]),
            (9, (2, 3), [0, 1, 2, 3, 4, 5]),
        ] {
            for is_little in [true, false] {
                let found = Orientation::of_exif(&exif(is_little, number)).apply(image.clone());
                assert_eq!((found.height, found.width), size, "{number}");
                assert_eq!(found.bytes, expected, "{number}");
            }
        }
    }

    #[test]
    fn exif_that_cannot_be_read_means_upright() {
        let whole = [EXIF, &exif(true, 6)].concat();
        assert_ne!(Orientation::of_exif(&whole), Orientation::default());
        let mut far = whole.clone();
        far[10..14].copy_from_slice(&[0xff; 4]);
        for exif in [
            &whole[..whole.len() - 4],
            &whole[..9],
            b"",
            b"II*",
            far.as_slice(),
        ] {
            assert_eq!(Orientation::of_exif(exif), Orientation::default());
        }
    }
}
