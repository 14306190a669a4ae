//! Transforms of a decoded image: `224x224`, `short=256`, `cover=224x224`, `crop=224`,
//! `random_crop=224`, `random_resized_crop=224` (`transforms/resized_crop.rs`), `random_flip`;
//! `interpolation=bicubic` says how (`transforms/resize.rs`).
//!
//! Random transforms are functions of the seed of the sample, so fields of one sample (an image
//! and its mask) are cut and mirrored alike.
//!
//! Sizes are height by width, as in the shape of the array. Cutting takes the middle, where torchvision's
//! `CenterCrop` takes it.

mod resize;
mod resized_crop;

use forebay_core::{Error, Kind, Result};

use crate::image::Pixels;
use crate::orientation::Orientation;
pub(crate) use resize::Interpolation;
use resize::{Fit, resize, shorter};
use resized_crop::ResizedCrop;

/// Transforms of one image.
const TRANSFORMS_MAX: usize = 8;
/// The longest side that can be asked for.
const SIDE_MAX: u32 = 65_535;

/// One transform.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transform {
    /// To this size, whatever the proportions.
    Resize(Size),
    /// The shorter side to this length.
    Short(u32),
    /// To this size; what sticks out at the longer side is cut off.
    Cover(Size),
    /// The middle.
    Crop(Size),
    /// A part anywhere.
    RandomCrop(Size),
    /// A part anywhere, of random size and proportions, resized.
    RandomResizedCrop(ResizedCrop),
    /// Mirrored, every second time.
    RandomFlip,
}

/// Height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) height: u32,
    pub(crate) width: u32,
}

/// Transforms and options behind the name of a decoder.
#[derive(Debug, Default)]
pub(crate) struct ParsedTransforms {
    pub(crate) transforms: Vec<Transform>,
    /// Marks that `exif` is among them; it comes first wherever it stands.
    pub(crate) is_upright: bool,
    /// The bound on pixels, if it is among them.
    pub(crate) pixels_max: Option<u64>,
    /// The interpolation of all of them.
    pub(crate) interpolation: Interpolation,
}

/// Parses transforms.
pub(crate) fn parse(text: &str) -> Result<ParsedTransforms> {
    let mut parsed = ParsedTransforms::default();
    for word in text.split(',').map(str::trim) {
        let wrong = || {
            let message = "no such transform for an image; there are 224x224 (height and width), short=256, cover=224x224, crop=224x224 (or one number for a square), random_crop=224x224, random_resized_crop=224 (then scale=0.08..1 and ratio=3/4..4/3 if others are wanted), random_flip, interpolation=bilinear (or nearest, box, bicubic, lanczos), exif and max_pixels=200000000";
            Error::new(Kind::InvalidInput, message).with("transform", word)
        };
        let (name, value) = word.split_once('=').unwrap_or(("", word));
        let transform = match name {
            "" if value == "exif" => {
                parsed.is_upright = true;
                continue;
            }
            "" if value == "random_flip" => Transform::RandomFlip,
            "" if value.contains('x') => Transform::Resize(size(value).ok_or_else(wrong)?),
            "short" => Transform::Short(side(value).ok_or_else(wrong)?),
            "cover" => Transform::Cover(size(value).ok_or_else(wrong)?),
            "crop" => Transform::Crop(size(value).ok_or_else(wrong)?),
            "random_crop" => Transform::RandomCrop(size(value).ok_or_else(wrong)?),
            "random_resized_crop" => {
                Transform::RandomResizedCrop(ResizedCrop::new(size(value).ok_or_else(wrong)?))
            }
            "scale" | "ratio" => {
                let is_set = match parsed.transforms.last_mut() {
                    Some(Transform::RandomResizedCrop(crop)) => crop.set(name, value),
                    _ => false,
                };
                if is_set {
                    continue;
                }
                return Err(wrong());
            }
            "interpolation" => {
                parsed.interpolation = Interpolation::parse(value).ok_or_else(wrong)?;
                continue;
            }
            "max_pixels" => {
                parsed.pixels_max = Some(
                    value
                        .parse()
                        .ok()
                        .filter(|pixels| *pixels > 0)
                        .ok_or_else(wrong)?,
                );
                continue;
            }
            _ => return Err(wrong()),
        };
        parsed.transforms.push(transform);
    }
    if parsed.transforms.len() > TRANSFORMS_MAX {
        return Err(Error::new(
            Kind::InvalidInput,
            "an image takes at most 8 transforms",
        ));
    }
    Ok(parsed)
}

fn side(text: &str) -> Option<u32> {
    text.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side))
}

fn size(text: &str) -> Option<Size> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    Some(Size {
        height: side(height)?,
        width: side(width)?,
    })
}

/// Options that all transforms of an image share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransformContext {
    /// No image may become larger.
    pub(crate) pixels_max: u64,
    pub(crate) interpolation: Interpolation,
    /// Without a seed, random transforms take the middle and do not mirror.
    pub(crate) sample_seed: Option<u64>,
}

impl Transform {
    /// The image after this transform.
    pub(crate) fn apply(self, pixels: Pixels, context: TransformContext) -> Result<Pixels> {
        let sample_seed = context.sample_seed;
        match self {
            Self::Resize(size) => resize(&pixels, size, Fit::Stretch, context),
            Self::Short(short) => resize(&pixels, shorter(&pixels, short), Fit::Stretch, context),
            Self::Cover(size) => resize(&pixels, size, Fit::Cover, context),
            Self::Crop(size) => crop(pixels, size, half),
            Self::RandomCrop(size) => match sample_seed {
                Some(sample_seed) => {
                    let mut halves = [sample_seed as u32, (sample_seed >> 32) as u32].into_iter();
                    crop(pixels, size, |margin| {
                        part(margin, halves.next().unwrap_or_default())
                    })
                }
                None => crop(pixels, size, half),
            },
            Self::RandomResizedCrop(wanted) => {
                let Pixels { height, width, .. } = pixels;
                let part = wanted.part(Size { height, width }, sample_seed);
                let mut corner = [part.top, part.left].into_iter();
                let cut = crop(pixels, part.size, |_| corner.next().unwrap_or_default())?;
                resize(&cut, wanted.size, Fit::Stretch, context)
            }
            // The lowest bit, which hardly moves a cut.
            Self::RandomFlip if sample_seed.is_some_and(|sample_seed| sample_seed & 1 == 1) => {
                Ok(Orientation::MIRRORED.apply(pixels))
            }
            Self::RandomFlip => Ok(pixels),
        }
    }
}

/// One of the places that a margin leaves, by 32 random bits.
fn part(margin: u32, random: u32) -> usize {
    (((u64::from(margin) + 1) * u64::from(random)) >> 32) as usize
}

/// A part of the image; `place` says where, first of the rows that are left over, then of the columns.
fn crop(pixels: Pixels, size: Size, mut place: impl FnMut(u32) -> usize) -> Result<Pixels> {
    if size.height > pixels.height || size.width > pixels.width {
        let message =
            "the image is smaller than what is to be cut out of it; resize it first (short=… or cover=…)";
        return Err(Error::new(Kind::Corrupt, message)
            .with("height", pixels.height)
            .with("width", pixels.width));
    }
    if (size.height, size.width) == (pixels.height, pixels.width) {
        return Ok(pixels);
    }
    let (top, left) = (
        place(pixels.height - size.height),
        place(pixels.width - size.width),
    );
    let pixel = pixels.pixel_bytes();
    let (row, cut) = (pixels.width as usize * pixel, size.width as usize * pixel);
    let mut bytes = Vec::with_capacity(cut * size.height as usize);
    for line in pixels
        .bytes
        .chunks_exact(row)
        .skip(top)
        .take(size.height as usize)
    {
        bytes.extend_from_slice(&line[left * pixel..left * pixel + cut]);
    }
    Ok(Pixels {
        height: size.height,
        width: size.width,
        bytes,
        ..pixels
    })
}

/// Half of it; a half pixel goes to the even side, as Python rounds.
fn half(margin: u32) -> usize {
    let half = margin / 2;
    (half + (margin & 1) * (half & 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(height: u32, width: u32) -> Pixels {
        let bytes = (0..height)
            .flat_map(|y| (0..width).map(move |x| (y * 10 + x) as u8))
            .collect();
        Pixels {
            height,
            width,
            channels: 1,
            channel_bytes: 1,
            bytes,
        }
    }

    fn apply(text: &str, pixels: Pixels) -> Result<Pixels> {
        seeded(text, pixels, None)
    }

    fn seeded(text: &str, pixels: Pixels, sample_seed: Option<u64>) -> Result<Pixels> {
        let parsed = parse(text)?;
        let context = TransformContext {
            pixels_max: 1 << 20,
            interpolation: parsed.interpolation,
            sample_seed,
        };
        let transform = |pixels, transform: &Transform| transform.apply(pixels, context);
        parsed.transforms.iter().try_fold(pixels, transform)
    }

    #[test]
    fn a_random_crop_can_lie_anywhere_and_follows_its_seed() {
        let cut = |sample_seed| seeded("random_crop=2x3", image(4, 5), sample_seed).unwrap().bytes;
        let mix = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let found: std::collections::BTreeSet<Vec<u8>> =
            (0..1000).map(|number| cut(Some(mix(number)))).collect();
        let all = (0..3_u8).flat_map(|top| (0..3_u8).map(move |left| (top, left)));
        let all = all.map(|(top, left)| {
            let row = |y: u8| (0..3).map(move |x| (top + y) * 10 + left + x);
            row(0).chain(row(1)).collect::<Vec<u8>>()
        });
        assert_eq!(found, all.collect());
        assert_eq!(cut(Some(7)), cut(Some(7)));
        assert_eq!(cut(None), [11, 12, 13, 21, 22, 23]);
        assert_eq!(cut(Some(u64::MAX)), [22, 23, 24, 32, 33, 34]);
        let error = seeded("random_crop=5", image(4, 9), Some(1)).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
    }

    #[test]
    fn a_random_part_is_resized_to_what_was_asked_for() {
        let transforms = "random_resized_crop=3x4,scale=0.5..1,ratio=1..2";
        let cut = |sample_seed| seeded(transforms, image(6, 9), sample_seed).unwrap();
        let found: std::collections::BTreeSet<Vec<u8>> =
            (0..50).map(|sample_seed| cut(Some(sample_seed)).bytes).collect();
        assert!(found.len() > 20, "{}", found.len());
        assert_eq!((cut(Some(5)).height, cut(Some(5)).width), (3, 4));
        // Without a seed all of it, since its proportions are allowed.
        assert_eq!(cut(None), apply("3x4", image(6, 9)).unwrap());
        assert_eq!(apply("random_resized_crop=2", image(4, 40)).unwrap().width, 2);
        for wrong in [
            "scale=0.5..1",
            "short=4,ratio=1..2",
            "random_resized_crop=4,scale=2..1",
        ] {
            assert_eq!(parse(wrong).unwrap_err().kind(), Kind::InvalidInput, "{wrong}");
        }
    }

    #[test]
    fn exif_is_no_size() {
        let parsed = parse("short=9,exif").unwrap();
        assert_eq!((parsed.is_upright, parsed.transforms.len()), (true, 1));
        assert!(!parse("9x9").unwrap().is_upright);
    }

    #[test]
    fn every_second_seed_mirrors() {
        let flipped = |sample_seed| seeded("random_flip", image(1, 3), sample_seed).unwrap().bytes;
        assert_eq!(flipped(Some(0)), [0, 1, 2]);
        assert_eq!(flipped(Some(1)), [2, 1, 0]);
        assert_eq!(flipped(None), [0, 1, 2]);
    }

    #[test]
    fn the_middle_is_cut_out() {
        let cut = apply("crop=2x3", image(4, 9)).unwrap();
        assert_eq!(cut.bytes, [13, 14, 15, 23, 24, 25]);
        // Margins of 3 and 1: torchvision starts at round(1.5) and round(0.5).
        assert_eq!(apply("crop=1", image(4, 2)).unwrap().bytes, [20]);
        assert_eq!(apply("crop=5", image(4, 9)).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn sizes_are_height_by_width() {
        let size = |text| {
            let pixels = apply(text, image(6, 9)).unwrap();
            assert_eq!(pixels.bytes.len() as u32, pixels.height * pixels.width);
            (pixels.height, pixels.width)
        };
        assert_eq!(size("3x4"), (3, 4));
        assert_eq!(size("short=4"), (4, 6));
        assert_eq!(size("cover=5x2"), (5, 2));
        assert_eq!(size("short=8,crop=7x7"), (7, 7));
    }

    #[test]
    fn a_plain_surface_stays_plain() {
        let mut pixels = image(7, 5);
        pixels.bytes.fill(77);
        let found = apply("cover=11x3", pixels).unwrap();
        assert!(found.bytes.iter().all(|value| *value == 77));
    }

    #[test]
    fn interpolation_holds_for_every_step_wherever_it_stands() {
        let checks = |text| {
            let mut pixels = image(8, 8);
            for (at, value) in pixels.bytes.iter_mut().enumerate() {
                *value = if (at / 8 + at) % 2 == 0 { 0 } else { 255 };
            }
            apply(text, pixels).unwrap().bytes
        };
        let is_pure = |bytes: &[u8]| bytes.iter().all(|value| matches!(value, 0 | 255));
        assert!(!is_pure(&checks("5x5")));
        for text in [
            "5x5,interpolation=nearest",
            "interpolation=nearest,cover=5x3",
            "short=5,interpolation=nearest,crop=4",
            "random_resized_crop=5,interpolation=nearest",
        ] {
            assert!(is_pure(&checks(text)), "{text}");
        }
        assert_eq!(checks("5x5"), checks("5x5,interpolation=bilinear"));
        assert_ne!(checks("5x5"), checks("5x5,interpolation=bicubic"));
        assert_eq!(
            parse("5x5,interpolation=cubic").unwrap_err().kind(),
            Kind::InvalidInput
        );
    }

    #[test]
    fn a_thin_image_cannot_become_huge() {
        let error = apply("short=60000", image(1, 200)).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
    }
    #[test]
    fn a_thin_image_is_not_resized_through_a_huge_one() {
        for (height, width) in [(1, 1 << 20), (1 << 20, 1)] {
            let thin = Pixels {
                height,
                width,
                channels: 1,
                channel_bytes: 1,
                bytes: vec![0; 1 << 20],
            };
            for transforms in ["224x224", "cover=224x224"] {
                let error = apply(transforms, thin.clone()).unwrap_err();
                assert_eq!(error.kind(), Kind::Corrupt);
            }
            assert!(apply("4x4", thin).is_ok());
        }
    }
}
