use super::*;

fn png(width: u32, height: u32, color: png::ColorType, depth: png::BitDepth, data: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(data).unwrap();
    writer.finish().unwrap();
    file
}

fn decode(kind: &str, bytes: &[u8]) -> Result<Pixels> {
    let (kind, transforms) = kind
        .split_once(':')
        .map_or((kind, None), |(kind, transforms)| (kind, Some(transforms)));
    ImageDecoder::parse(kind, transforms)?.decode(bytes, None)
}

#[test]
fn channels_are_as_stored_or_as_asked_for() {
    let rgba = png(
        2,
        1,
        png::ColorType::Rgba,
        png::BitDepth::Eight,
        &[10, 20, 30, 0, 200, 100, 50, 255],
    );
    assert_eq!(decode("image", &rgba).unwrap().channels, 4);
    assert_eq!(decode("rgb", &rgba).unwrap().bytes, [10, 20, 30, 200, 100, 50]);
    assert_eq!(decode("gray", &rgba).unwrap().bytes, [18, 124]);
    let grey = png(2, 1, png::ColorType::Grayscale, png::BitDepth::Eight, &[7, 9]);
    assert_eq!(decode("rgb", &grey).unwrap().bytes, [7, 7, 7, 9, 9, 9]);
    assert_eq!(*decode("image", &grey).unwrap().into_array().shape, [1, 2]);
}

#[test]
fn sixteen_bits_are_kept_as_stored_and_cut_to_eight_otherwise() {
    let deep = png(
        2,
        1,
        png::ColorType::Grayscale,
        png::BitDepth::Sixteen,
        &[0x12, 0x34, 0xff, 0x00],
    );
    let stored = decode("image", &deep).unwrap().into_array();
    assert_eq!(
        (&*stored.dtype, stored.bytes(&[])),
        ("<u2", [0x34, 0x12, 0x00, 0xff].as_slice())
    );
    assert_eq!(decode("gray", &deep).unwrap().bytes, [0x12, 0xff]);
}

#[test]
fn an_image_that_claims_too_many_pixels_takes_no_memory() {
    let mut file = png(4, 4, png::ColorType::Grayscale, png::BitDepth::Eight, &[0; 16]);
    // Width and height of the header, and its checksum.
    file[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let crc = crc32(&file[12..29]);
    file[29..33].copy_from_slice(&crc.to_be_bytes());
    let error = decode("rgb:max_pixels=1000", &file).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("max_pixels"), "{error}");
    let error = decode("rgb", &file).unwrap_err();
    assert!(error.to_string().contains("max_pixels"), "{error}");
}

#[test]
fn a_cut_or_foreign_file_is_damaged() {
    let file = png(8, 8, png::ColorType::Rgb, png::BitDepth::Eight, &[5; 192]);
    for end in [0, 3, 20, file.len() / 2] {
        assert_eq!(
            decode("rgb", &file[..end]).unwrap_err().kind(),
            Kind::Corrupt,
            "{end}"
        );
    }
    assert!(decode("rgb", b"GIF89a").unwrap_err().to_string().contains("pil"));
}

#[test]
fn a_jpeg_ends_behind_its_pixels() {
    let head = b"\xff\xd8\xff\xff\xe1\x00\x06\xff\xd9\x00\x00\xff\xda\x00\x03\x00";
    let whole = [head.as_slice(), b"pixels\xff\x00pixels\xff\xd9"].concat();
    assert!(ends(&whole));
    assert!(ends(&[whole.as_slice(), b"something behind it"].concat()));
    for length in 2..whole.len() {
        assert!(!ends(&whole[..length]), "{length}");
    }
    assert!(!ends(b""));
}

/// The checksum of a chunk of PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}
