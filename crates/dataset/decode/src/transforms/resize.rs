//! Another size: `interpolation=bilinear` (if nothing else is said), `nearest`, `box`, `bicubic` or
//! `lanczos`, as Pillow has them.
//!
//! All but `nearest` weigh all pixels that a new one covers (antialiasing, as Pillow does and torchvision
//! with `antialias=True`); colours with alpha are weighted by it. `nearest` invents no value, so it is for
//! masks and labels.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use forebay_core::{Error, Kind, Result};

use super::{Size, TransformContext};
use crate::image::Pixels;

/// The image halfway through a resize, in images of the largest size: a thin one is large there though it
/// is small before and after.
const BETWEEN_TIMES_MAX: u64 = 4;

/// The filter that makes new pixels of old ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Interpolation {
    /// The old pixel at the middle of the new one.
    Nearest,
    /// The mean of what is covered.
    Box,
    #[default]
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Interpolation {
    /// Reads a name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "nearest" => Self::Nearest,
            "box" => Self::Box,
            "bilinear" => Self::Bilinear,
            "bicubic" => Self::Bicubic,
            "lanczos" => Self::Lanczos,
            _ => return None,
        })
    }

    fn filter(self) -> Option<FilterType> {
        match self {
            Self::Nearest => None,
            Self::Box => Some(FilterType::Box),
            Self::Bilinear => Some(FilterType::Bilinear),
            // The same curve as Pillow's: a = -0.5.
            Self::Bicubic => Some(FilterType::CatmullRom),
            Self::Lanczos => Some(FilterType::Lanczos3),
        }
    }
}

/// Treatment of other proportions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// They are given up.
    Stretch,
    /// Cuts off what sticks out, as much on both sides.
    Cover,
}

/// The size with this shorter side and the same proportions.
pub(super) fn shorter(pixels: &Pixels, short: u32) -> Size {
    let (height, width) = (u64::from(pixels.height), u64::from(pixels.width));
    let long = |longer: u64, shorter: u64| {
        let side = u64::from(short) * longer / shorter.max(1);
        u32::try_from(side).unwrap_or(u32::MAX).max(1)
    };
    if width <= height {
        Size {
            height: long(height, width),
            width: short,
        }
    } else {
        Size {
            height: short,
            width: long(width, height),
        }
    }
}

/// Pixels of the larger image that a resizer could have halfway: it does one side after the other.
fn between(pixels: &Pixels, size: Size) -> u64 {
    let rows_first = u64::from(pixels.width) * u64::from(size.height);
    let columns_first = u64::from(size.width) * u64::from(pixels.height);
    rows_first.max(columns_first)
}

/// The image in another size. Errors: `Corrupt` if that is too large.
pub(super) fn resize(pixels: &Pixels, size: Size, fit: Fit, context: TransformContext) -> Result<Pixels> {
    if u64::from(size.height) * u64::from(size.width) > context.pixels_max
        || between(pixels, size) > context.pixels_max.saturating_mul(BETWEEN_TIMES_MAX)
    {
        let message =
            "the image would become larger than images may be; choose a smaller size, or raise max_pixels";
        return Err(Error::new(Kind::Corrupt, message)
            .with("height", size.height)
            .with("width", size.width));
    }
    let bytes = match context.interpolation.filter() {
        None => nearest(pixels, size, fit),
        Some(filter) => filtered(pixels, size, fit, filter)?,
    };
    Ok(Pixels {
        height: size.height,
        width: size.width,
        bytes,
        ..*pixels
    })
}

fn filtered(pixels: &Pixels, size: Size, fit: Fit, filter: FilterType) -> Result<Vec<u8>> {
    let kind = match (pixels.channels, pixels.channel_bytes) {
        (1, 1) => PixelType::U8,
        (2, 1) => PixelType::U8x2,
        (3, 1) => PixelType::U8x3,
        (4, 1) => PixelType::U8x4,
        (1, _) => PixelType::U16,
        (2, _) => PixelType::U16x2,
        (3, _) => PixelType::U16x3,
        _ => PixelType::U16x4,
    };
    let failed = |why: String| Error::new(Kind::Corrupt, "the image cannot be resized").caused_by(why);
    let source = ImageRef::new(pixels.width, pixels.height, &pixels.bytes, kind)
        .map_err(|why| failed(why.to_string()))?;
    let mut target = Image::new(size.width, size.height, kind);
    let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    if fit == Fit::Cover {
        options = options.fit_into_destination(Some((0.5, 0.5)));
    }
    Resizer::new()
        .resize(&source, &mut target, &options)
        .map_err(|why| failed(why.to_string()))?;
    Ok(target.into_vec())
}

/// By ourselves: the library would read behind a row if a place were rounded up.
fn nearest(pixels: &Pixels, size: Size, fit: Fit) -> Vec<u8> {
    let (height, width) = (f64::from(pixels.height), f64::from(pixels.width));
    let (mut rows, mut columns) = (height, width);
    if fit == Fit::Cover {
        let wanted = f64::from(size.width) / f64::from(size.height);
        rows = height.min(width / wanted);
        columns = width.min(height * wanted);
    }
    // Where the middles of the new pixels lie in what is taken of a side.
    let places = |side: f64, taken: f64, new: u32| {
        let (start, step) = ((side - taken) / 2.0, taken / f64::from(new));
        (0..new).map(move |at| (start + (f64::from(at) + 0.5) * step).min(side - 1.0) as usize)
    };
    let pixel = pixels.pixel_bytes();
    let columns: Vec<usize> = places(width, columns, size.width).collect();
    let mut bytes = Vec::with_capacity(columns.len() * size.height as usize * pixel);
    for row in places(height, rows, size.height) {
        let row = &pixels.bytes[row * pixels.width as usize * pixel..];
        for column in &columns {
            bytes.extend_from_slice(&row[column * pixel..(column + 1) * pixel]);
        }
    }
    bytes
}
