//! Images: JPEG, PNG and WebP to rows of pixels.
//!
//! The first bytes say which format it is, whatever the name of the field. Height and width are compared with
//! the bound before memory is taken for them: a file of a kilobyte can claim gigabytes. What was decoded then
//! takes 3 to 10 bytes a pixel for a moment. Orientation in EXIF is applied where it is asked for (`exif`);
//! profiles of colours are not, as in Pillow.

use std::io::Cursor;

use forebay_core::{Error, Kind, Result};
use smallvec::smallvec;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::decoder::{Array, Data};
use crate::orientation::Orientation;
use crate::transforms::{self, Interpolation, ParsedTransforms, Transform, TransformContext};

/// Pixels that an image may have unless said otherwise.
pub const PIXELS_MAX_DEFAULT: u64 = 1 << 26;
/// The longest side of any of the formats.
const SIDE_MAX: usize = 1 << 20;

/// A decoder of images.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageDecoder {
    channels: Channels,
    transforms: Vec<Transform>,
    /// Applies the orientation in EXIF.
    is_upright: bool,
    pixels_max: u64,
    interpolation: Interpolation,
}

/// Channels of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channels {
    /// As they are stored: grey, grey and alpha, RGB, RGB and alpha; of 8 or 16 bits.
    AsStored,
    /// Red, green, blue; alpha is left out.
    Rgb,
    /// Brightness; no third dimension.
    Grey,
}

/// A decoded image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    /// Rows.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
    /// Values of a pixel: 1 to 4.
    pub channels: usize,
    /// Bytes of a value: 1 or 2 (little endian).
    pub channel_bytes: usize,
    /// Row after row.
    pub bytes: Vec<u8>,
}

impl ImageDecoder {
    /// Returns whether this is a name of one.
    pub(crate) fn is_kind(kind: &str) -> bool {
        matches!(kind, "image" | "rgb" | "gray" | "grey")
    }

    /// `kind` is `image`, `rgb` or `gray`; `transforms` as in [`transforms`], `exif` and `max_pixels=N`.
    pub(crate) fn parse(kind: &str, transforms: Option<&str>) -> Result<Self> {
        let channels = match kind {
            "rgb" => Channels::Rgb,
            "gray" | "grey" => Channels::Grey,
            _ => Channels::AsStored,
        };
        let ParsedTransforms {
            transforms,
            is_upright,
            pixels_max,
            interpolation,
        } = transforms.map(transforms::parse).transpose()?.unwrap_or_default();
        Ok(Self {
            channels,
            transforms,
            is_upright,
            pixels_max: pixels_max.unwrap_or(PIXELS_MAX_DEFAULT),
            interpolation,
        })
    }

    /// Decodes an image and does the transforms; random ones by `sample_seed`, without which they are what
    /// they are on average: the middle, not mirrored.
    ///
    /// Errors: `Corrupt` if it is damaged, of another format, too large, or smaller than what is to be cut
    /// out of it.
    pub fn decode(&self, bytes: &[u8], sample_seed: Option<u64>) -> Result<Pixels> {
        let (pixels, orientation) = match bytes {
            [0xff, 0xd8, 0xff, ..] => self.jpeg(bytes)?,
            [0x89, b'P', b'N', b'G', ..] => self.png(bytes)?,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => self.webp(bytes)?,
            _ => {
                let message = "the field is no JPEG, PNG or WebP; for other images use the decoder \"pil\"";
                return Err(Error::new(Kind::Corrupt, message));
            }
        };
        let pixels = orientation.apply(self.converted(pixels));
        let context = TransformContext {
            pixels_max: self.pixels_max,
            interpolation: self.interpolation,
            sample_seed,
        };
        let transform = |pixels, transform: &Transform| transform.apply(pixels, context);
        self.transforms.iter().try_fold(pixels, transform)
    }

    /// Height and width, if an image may be as large.
    fn checked(&self, height: usize, width: usize) -> Result<(u32, u32)> {
        let sides = (u32::try_from(height), u32::try_from(width));
        match sides {
            (Ok(0), _) | (_, Ok(0)) => Err(Error::new(Kind::Corrupt, "the image has no pixels")),
            (Ok(height), Ok(width)) if u64::from(height) * u64::from(width) <= self.pixels_max => {
                Ok((height, width))
            }
            _ => {
                let message = "the image has more pixels than images may have; raise max_pixels (as in \"rgb:max_pixels=200000000\") if it is meant";
                Err(Error::new(Kind::Corrupt, message)
                    .with("height", height)
                    .with("width", width)
                    .with("max_pixels", self.pixels_max))
            }
        }
    }

    /// Returns what EXIF says, if it is asked for.
    fn orientation(&self, exif: Option<&[u8]>) -> Orientation {
        let exif = exif.filter(|_| self.is_upright);
        exif.map(Orientation::of_exif).unwrap_or_default()
    }

    fn jpeg(&self, bytes: &[u8]) -> Result<(Pixels, Orientation)> {
        let options = DecoderOptions::new_fast()
            .set_max_width(SIDE_MAX)
            .set_max_height(SIDE_MAX);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(|why| damaged("JPEG", &why))?;
        let found = decoder.dimensions();
        let (width, height) = found.ok_or_else(|| damaged("JPEG", &"it has no size"))?;
        let (height, width) = self.checked(height, width)?;
        // The decoder would fill up what is missing with grey.
        if !ends(bytes) {
            return Err(damaged("JPEG", &"it is cut off"));
        }
        let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
        let wanted = if is_grey {
            ColorSpace::Luma
        } else {
            ColorSpace::RGB
        };
        let orientation = self.orientation(decoder.exif().map(Vec::as_slice));
        decoder.set_options(options.jpeg_set_out_colorspace(wanted));
        let bytes = decoder.decode().map_err(|why| damaged("JPEG", &why))?;
        let pixels = whole(Pixels {
            height,
            width,
            channels: wanted.num_components(),
            channel_bytes: 1,
            bytes,
        })?;
        Ok((pixels, orientation))
    }

    fn png(&self, bytes: &[u8]) -> Result<(Pixels, Orientation)> {
        use png::{BitDepth, ColorType, Transformations};
        let limits = png::Limits {
            bytes: usize::try_from(self.pixels_max.saturating_mul(8)).unwrap_or(usize::MAX),
        };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let expanded = Transformations::EXPAND;
        decoder.set_transformations(if self.channels == Channels::AsStored {
            expanded
        } else {
            expanded | Transformations::STRIP_16
        });
        let head = decoder.read_header_info().map_err(|why| damaged("PNG", &why))?;
        let (height, width) = self.checked(head.height as usize, head.width as usize)?;
        let mut reader = decoder.read_info().map_err(|why| damaged("PNG", &why))?;
        let size = reader
            .output_buffer_size()
            .ok_or_else(|| damaged("PNG", &"its size is too large"))?;
        let (color, depth) = reader.output_color_type();
        let mut bytes = vec![0; size];
        reader
            .next_frame(&mut bytes)
            .map_err(|why| damaged("PNG", &why))?;
        let channel_bytes = if depth == BitDepth::Sixteen { 2 } else { 1 };
        if channel_bytes == 2 {
            bytes
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|pair| pair.swap(0, 1));
        }
        let pixels = whole(Pixels {
            height,
            width,
            channels: match color {
                ColorType::Grayscale | ColorType::Indexed => 1,
                ColorType::GrayscaleAlpha => 2,
                ColorType::Rgb => 3,
                ColorType::Rgba => 4,
            },
            channel_bytes,
            bytes,
        })?;
        // EXIF may stand behind the pixels; if nothing more can be read there, it stands in front or nowhere.
        if self.is_upright {
            reader.finish().ok();
        }
        Ok((pixels, self.orientation(reader.info().exif_metadata.as_deref())))
    }

    fn webp(&self, bytes: &[u8]) -> Result<(Pixels, Orientation)> {
        let mut decoder =
            image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(|why| damaged("WebP", &why))?;
        decoder.set_memory_limit(usize::try_from(self.pixels_max.saturating_mul(8)).unwrap_or(usize::MAX));
        let (width, height) = decoder.dimensions();
        let (height, width) = self.checked(height as usize, width as usize)?;
        let size = decoder
            .output_buffer_size()
            .ok_or_else(|| damaged("WebP", &"its size is too large"))?;
        let mut bytes = vec![0; size];
        decoder
            .read_image(&mut bytes)
            .map_err(|why| damaged("WebP", &why))?;
        let pixels = whole(Pixels {
            height,
            width,
            channels: if decoder.has_alpha() { 4 } else { 3 },
            channel_bytes: 1,
            bytes,
        })?;
        let exif = decoder.exif_metadata().unwrap_or_default();
        Ok((pixels, self.orientation(exif.as_deref())))
    }

    /// The channels that are wanted. What is not wanted as stored has values of one byte by now.
    fn converted(&self, pixels: Pixels) -> Pixels {
        match (self.channels, pixels.channels) {
            (Channels::AsStored, _) | (Channels::Rgb, 3) | (Channels::Grey, 1) => pixels,
            (Channels::Rgb, 4) => pixels.mapped::<4, 3>(|[red, green, blue, _]| [red, green, blue]),
            (Channels::Rgb, 2) => pixels.mapped::<2, 3>(|[grey, _]| [grey; 3]),
            (Channels::Rgb, _) => pixels.mapped::<1, 3>(|[grey]| [grey; 3]),
            (Channels::Grey, 4) => pixels.mapped::<4, 1>(|[red, green, blue, _]| [luma(red, green, blue)]),
            (Channels::Grey, 3) => pixels.mapped::<3, 1>(|[red, green, blue]| [luma(red, green, blue)]),
            (Channels::Grey, _) => pixels.mapped::<2, 1>(|[grey, _]| [grey]),
        }
    }
}

/// Returns whether a JPEG has its end behind the start of its pixels; Pillow wants the same. A small image
/// in front has an end of its own, which does not count.
fn ends(jpeg: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xda;
    const END: [u8; 2] = [0xff, 0xd9];
    let mut at = 2;
    // Segments in front of the pixels: marker, length, content. Bytes that fill up are 0xff.
    while let Some([0xff, marker, high, low]) = jpeg.get(at..at + 4) {
        match *marker {
            START_OF_SCAN => break,
            0xff => at += 1,
            0x01 | 0xd0..=0xd9 => at += 2,
            _ => at += 2 + usize::from(u16::from_be_bytes([*high, *low])),
        }
    }
    let pixels = jpeg.get(at..).unwrap_or_default();
    pixels.windows(2).rev().any(|pair| pair == END)
}

/// Brightness as Pillow computes it (ITU-R 601-2).
fn luma(red: u8, green: u8, blue: u8) -> u8 {
    let sum = u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000;
    (sum >> 16) as u8
}

fn damaged(format: &str, why: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("the image is a damaged {format}")).caused_by(why.to_string())
}

/// As many bytes as there must be, or an error: what a library says is not trusted twice.
fn whole(pixels: Pixels) -> Result<Pixels> {
    let expected = pixels.height as usize * pixels.width as usize * pixels.pixel_bytes();
    if pixels.bytes.len() == expected {
        return Ok(pixels);
    }
    Err(
        Error::new(Kind::Corrupt, "the image has another size than it says")
            .with("bytes", pixels.bytes.len())
            .with("expected", expected),
    )
}

impl Pixels {
    /// Bytes of a pixel.
    pub(crate) fn pixel_bytes(&self) -> usize {
        self.channels * self.channel_bytes
    }

    fn mapped<const FROM: usize, const TO: usize>(self, map: impl Fn([u8; FROM]) -> [u8; TO]) -> Self {
        let pixels = self.bytes.as_chunks::<FROM>().0;
        let mut bytes = Vec::with_capacity(pixels.len() * TO);
        for pixel in pixels {
            bytes.extend_from_slice(&map(*pixel));
        }
        Self {
            channels: TO,
            bytes,
            ..self
        }
    }

    /// Height, width, and channels if there are several.
    pub(crate) fn into_array(self) -> Array {
        let mut shape = smallvec![self.height as usize, self.width as usize];
        if self.channels > 1 {
            shape.push(self.channels);
        }
        Array {
            dtype: if self.channel_bytes == 2 { "<u2" } else { "|u1" }.into(),
            shape,
            is_fortran: false,
            data: Data::Own(self.bytes),
        }
    }
}

#[cfg(test)]
mod tests;
