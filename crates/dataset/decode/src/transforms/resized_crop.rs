//! A random part of random size and proportions: `random_resized_crop=224,scale=0.08..1,ratio=3/4..4/3`, as
//! torchvision's `RandomResizedCrop`.
//!
//! Ten times a share of the area (evenly between the bounds of `scale`) and proportions (width by height,
//! evenly on a logarithmic scale between those of `ratio`) are drawn; the first part that fits into the
//! image is cut out somewhere. If none fits, and where nothing is drawn, it is the middle, as much of it as
//! has such proportions.
//!
//! The numbers are `word(sample_seed, n)` of docs/flows/dataset-order.md: 2t for the area of try t, 2t + 1
//! for its proportions, 20 and 21 for the place. Only operations that are exact to the last bit on every
//! machine are used (no logarithm is), so the pixels are the same everywhere.

use super::{Size, part};

const TRIES: u64 = 10;
const TOP: u64 = 2 * TRIES;
const LEFT: u64 = TOP + 1;
/// The largest proportions that can be asked for, either way.
const RATIO_MAX: f64 = 1000.0;
/// Halvings of a range: as many as 32 random bits.
const HALVINGS: u32 = 32;

/// Bounds of the crops that are taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResizedCrop {
    /// Size that the crop is resized to.
    pub(crate) size: Size,
    /// Shares of the area.
    pub(crate) scale: Bounds,
    /// Width by height.
    pub(crate) ratio: Bounds,
}

/// The least and the most of something; both positive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    least: f64,
    most: f64,
}

/// A part of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CropRect {
    pub(crate) size: Size,
    pub(crate) top: usize,
    pub(crate) left: usize,
}

impl ResizedCrop {
    /// With the bounds that torchvision has.
    pub(crate) fn new(size: Size) -> Self {
        Self {
            size,
            scale: Bounds {
                least: 0.08,
                most: 1.0,
            },
            ratio: Bounds {
                least: 3.0 / 4.0,
                most: 4.0 / 3.0,
            },
        }
    }

    /// Reads bounds of a name: `scale` or `ratio`; whether they make sense.
    pub(crate) fn set(&mut self, name: &str, text: &str) -> bool {
        let Some(bounds) = Bounds::parse(text) else {
            return false;
        };
        match name {
            "scale" if bounds.most <= 1.0 => self.scale = bounds,
            "ratio" if bounds.most <= RATIO_MAX && bounds.least >= 1.0 / RATIO_MAX => self.ratio = bounds,
            _ => return false,
        }
        true
    }

    /// The part of an image of this size.
    pub(crate) fn part(&self, of: Size, sample_seed: Option<u64>) -> CropRect {
        let drawn = sample_seed.and_then(|sample_seed| self.drawn(of, sample_seed));
        drawn.unwrap_or_else(|| self.middle(of))
    }

    fn drawn(&self, of: Size, sample_seed: u64) -> Option<CropRect> {
        let area = f64::from(of.height) * f64::from(of.width);
        for attempt in 0..TRIES {
            let area = area * self.scale.even(high(sample_seed, 2 * attempt));
            let ratio = self.ratio.logarithmic(high(sample_seed, 2 * attempt + 1));
            let height = (area / ratio).sqrt().round_ties_even();
            let width = (area * ratio).sqrt().round_ties_even();
            let fits = |side: f64, most: u32| (1.0..=f64::from(most)).contains(&side);
            if fits(height, of.height) && fits(width, of.width) {
                let size = Size {
                    height: height as u32,
                    width: width as u32,
                };
                return Some(CropRect {
                    size,
                    top: part(of.height - size.height, high(sample_seed, TOP)),
                    left: part(of.width - size.width, high(sample_seed, LEFT)),
                });
            }
        }
        None
    }

    fn middle(&self, of: Size) -> CropRect {
        let (height, width) = (f64::from(of.height), f64::from(of.width));
        let side = |side: f64, most: u32| (side.round_ties_even() as u32).clamp(1, most);
        let mut size = of;
        if width / height < self.ratio.least {
            size.height = side(width / self.ratio.least, of.height);
        } else if width / height > self.ratio.most {
            size.width = side(height * self.ratio.most, of.width);
        }
        CropRect {
            size,
            top: ((of.height - size.height) / 2) as usize,
            left: ((of.width - size.width) / 2) as usize,
        }
    }
}

impl Bounds {
    /// `0.08..1`; numbers may be fractions, `3/4..4/3`.
    fn parse(text: &str) -> Option<Self> {
        let (least, most) = text.split_once("..")?;
        let (least, most) = (number(least)?, number(most)?);
        (0.0 < least && least <= most).then_some(Self { least, most })
    }

    /// Somewhere between them.
    fn even(self, random: u32) -> f64 {
        self.least + (self.most - self.least) * (f64::from(random) / 4_294_967_296.0)
    }

    /// Somewhere between them, where twice as much is as likely as half: each bit chooses a half of what is
    /// left.
    fn logarithmic(self, random: u32) -> f64 {
        let (mut least, mut most) = (self.least, self.most);
        for bit in 0..HALVINGS {
            let middle = (least * most).sqrt();
            if random << bit >> 31 == 1 {
                least = middle;
            } else {
                most = middle;
            }
        }
        least
    }
}

fn number(text: &str) -> Option<f64> {
    let plain = |text: &str| {
        let number: f64 = text.trim().parse().ok()?;
        number.is_finite().then_some(number)
    };
    match text.split_once('/') {
        Some((above, below)) => Some(plain(above)? / plain(below)?).filter(|number| number.is_finite()),
        None => plain(text),
    }
}

/// The upper half of the n-th word of a sample_seed.
fn high(sample_seed: u64, number: u64) -> u32 {
    let mut word = sample_seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ (word >> 31)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crop(text: &[(&str, &str)]) -> ResizedCrop {
        let size = Size { height: 8, width: 8 };
        let mut crop = ResizedCrop::new(size);
        assert!(text.iter().all(|(name, bounds)| crop.set(name, bounds)));
        crop
    }

    fn size(height: u32, width: u32) -> Size {
        Size { height, width }
    }

    #[test]
    fn parts_lie_in_the_image_and_keep_their_bounds() {
        let crop = crop(&[("scale", "0.25..0.5"), ("ratio", "1/2..2")]);
        let (mut areas, mut wide, mut corners) = (0.0, 0, 0);
        for sample_seed in 0..4000 {
            let of = size(300, 400);
            let part = crop.part(of, Some(sample_seed * 7919));
            let (height, width) = (f64::from(part.size.height), f64::from(part.size.width));
            assert!(
                part.top + part.size.height as usize <= 300 && part.left + part.size.width as usize <= 400
            );
            let share = height * width / 120_000.0;
            assert!((0.247..0.503).contains(&share), "{part:?}");
            assert!((0.49..2.03).contains(&(width / height)), "{part:?}");
            areas += share / 4000.0;
            wide += i32::from(width > height);
            corners += i32::from(part.top < 20 && part.left < 20);
        }
        // Half of all is wider than high, as far as it fits; the area is even.
        assert!((0.36..0.39).contains(&areas), "{areas}");
        assert!((1900..2200).contains(&wide), "{wide}");
        assert!((20..400).contains(&corners), "{corners}");
    }

    #[test]
    fn a_crop_is_a_function_of_its_seed() {
        let crop = crop(&[]);
        let part = crop.part(size(375, 500), Some(12_345));
        assert_eq!(part, crop.part(size(375, 500), Some(12_345)));
        assert_ne!(part, crop.part(size(375, 500), Some(12_346)));
        // Numbers that another program computed from the text at the top.
        let expected = CropRect {
            size: size(212, 179),
            top: 23,
            left: 94,
        };
        assert_eq!(part, expected);
    }

    #[test]
    fn what_never_fits_and_what_is_not_drawn_is_the_middle() {
        let crop = crop(&[("scale", "1..1")]);
        for (of, expected, top, left) in [
            (size(10, 100), size(10, 13), 0, 43),
            (size(100, 10), size(13, 10), 43, 0),
            (size(10, 12), size(10, 12), 0, 0),
            (size(1, 1000), size(1, 1), 0, 499),
        ] {
            let middle = CropRect {
                size: expected,
                top,
                left,
            };
            assert_eq!(crop.part(of, None), middle);
            if of != size(10, 12) {
                assert_eq!(crop.part(of, Some(7)), middle);
            }
        }
    }

    #[test]
    fn bounds_that_make_no_sense_are_refused() {
        let mut crop = crop(&[]);
        for (name, text) in [
            ("scale", "0..1"),
            ("scale", "0.5"),
            ("scale", "0.5..1.1"),
            ("scale", "0.8..0.4"),
            ("scale", "nan..1"),
            ("ratio", "1/0..2"),
            ("ratio", "-1..1"),
            ("ratio", "1..inf"),
            ("ratio", "0.000001..1"),
            ("area", "0.1..1"),
        ] {
            assert!(!crop.set(name, text), "{name}={text}");
        }
    }
}
