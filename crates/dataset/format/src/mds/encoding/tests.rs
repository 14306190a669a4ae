use forebay_core::Kind;
use proptest::prelude::*;

use super::*;

fn decode<'a>(encoding: &str, bytes: &'a [u8]) -> MdsValue<'a> {
    MdsEncoding::parse(encoding).unwrap().decode(bytes).unwrap()
}

fn fails(encoding: &str, bytes: &[u8]) -> Kind {
    MdsEncoding::parse(encoding)
        .unwrap()
        .decode(bytes)
        .unwrap_err()
        .kind()
}

#[test]
fn numbers_have_their_width_and_sign() {
    for (encoding, bytes, value) in [
        ("int", &[0xff; 8][..], MdsValue::Int(-1)),
        ("int8", &[0x80], MdsValue::Int(-128)),
        ("int16", &[0, 0x80], MdsValue::Int(-32768)),
        ("int32", &[1, 0, 0, 0x80], MdsValue::Int(i64::from(i32::MIN) + 1)),
        ("uint8", &[0x80], MdsValue::Uint(128)),
        ("uint64", &[0xff; 8], MdsValue::Uint(u64::MAX)),
        ("float64", &1.5_f64.to_le_bytes(), MdsValue::Float(1.5)),
        ("float32", &(-2.25_f32).to_le_bytes(), MdsValue::Float(-2.25)),
        ("float16", &[0, 0x3c], MdsValue::Float(1.0)),
        ("float16", &[0, 0xc4], MdsValue::Float(-4.0)),
        ("float16", &[1, 0], MdsValue::Float(5.960_464_477_539_063e-8)),
        ("float16", &[0, 0x7c], MdsValue::Float(f64::INFINITY)),
        ("str_int", b"-12", MdsValue::Int(-12)),
        (
            "str_int",
            b"123456789012345678901234567890",
            MdsValue::Number("123456789012345678901234567890"),
        ),
        ("str_float", b"1e-3", MdsValue::Float(0.001)),
        ("str_decimal", b"3.10", MdsValue::Decimal("3.10")),
        ("str_decimal", b"3", MdsValue::Decimal("3")),
    ] {
        assert_eq!(decode(encoding, bytes), value, "{encoding}");
    }
    for (encoding, bytes) in [
        ("int", &[0; 4][..]),
        ("uint8", b""),
        ("float16", b"abc"),
        ("str_int", b"1x"),
        ("str_float", b""),
    ] {
        assert_eq!(fails(encoding, bytes), Kind::Corrupt, "{encoding}");
    }
    assert!(matches!(decode("float16", &[1, 0x7c]), MdsValue::Float(number) if number.is_nan()));
}

#[test]
fn texts_and_bytes_are_borrowed() {
    assert_eq!(decode("bytes", b"\xff"), MdsValue::Bytes(b"\xff"));
    assert_eq!(decode("jpeg", b"\xff\xd8"), MdsValue::Bytes(b"\xff\xd8"));
    assert_eq!(decode("str", "ä".as_bytes()), MdsValue::Text("ä"));
    assert_eq!(decode("json", b"{}"), MdsValue::Json("{}"));
    assert_eq!(fails("str", b"\xff"), Kind::Corrupt);
}

#[test]
fn pickle_is_refused_with_advice_and_unknown_names_too() {
    let error = MdsEncoding::parse("pkl").unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.message().contains("any code"), "{error}");
    for name in [
        "",
        "tuple",
        "ndarray:int3",
        "ndarray:int8:x",
        "ndarray:int8:1:2",
        "list[pkl]",
    ] {
        assert_eq!(
            MdsEncoding::parse(name).unwrap_err().kind(),
            Kind::Unsupported,
            "{name}"
        );
    }
}

#[test]
fn arrays_say_what_their_name_does_not() {
    let array = |dtype, shape: &[u64], values| {
        MdsValue::Array(MdsArray {
            dtype,
            shape: shape.to_vec(),
            values,
        })
    };
    assert_eq!(
        decode("ndarray:uint16:2", &[1, 2, 3, 4]),
        array("uint16", &[2], &[1, 2, 3, 4])
    );
    // Two dimensions of one byte each.
    assert_eq!(
        decode("ndarray:int8", &[2 << 2, 1, 3, 7, 8, 9]),
        array("int8", &[1, 3], &[7, 8, 9])
    );
    // int32, one dimension of two bytes.
    assert_eq!(
        decode("ndarray", &[33, 1 << 2 | 1, 1, 0, 5, 0, 0, 0]),
        array("int32", &[1], &[5, 0, 0, 0])
    );
    for (encoding, bytes) in [
        ("ndarray:uint16:2", &[1, 2, 3][..]),
        ("ndarray", &[]),
        ("ndarray", &[99, 4, 1, 0]),
        ("ndarray:int8", &[2 << 2, 1]),
        (
            "ndarray:float64",
            &[3 << 2 | 3, 255, 255, 255, 255, 255, 255, 255, 255],
        ),
        ("ndarray:uint8:4294967296,4294967296,4294967296", &[1]),
    ] {
        assert_eq!(fails(encoding, bytes), Kind::Corrupt, "{encoding} {bytes:?}");
    }
}

#[test]
fn images_and_lists_of_them_are_taken_apart() {
    let pil = [
        &2_u32.to_le_bytes()[..],
        &1_u32.to_le_bytes(),
        &1_u32.to_le_bytes(),
        b"L",
        &[5, 6],
    ]
    .concat();
    let image = MdsValue::Image {
        width: 2,
        height: 1,
        mode: "L",
        pixels: &[5, 6],
    };
    assert_eq!(decode("pil", &pil), image);
    let jpegs = [2_u32, 1, 3].map(u32::to_le_bytes).concat();
    let jpegs = [&jpegs[..], b"a", b"bcd"].concat();
    let list = || MdsValue::List(vec![MdsValue::Bytes(b"a"), MdsValue::Bytes(b"bcd")]);
    assert_eq!(decode("jpeg_array", &jpegs), list());
    assert_eq!(decode("jpegarray", &jpegs), list());
    assert_eq!(decode("jpeg:95", b"jpeg"), MdsValue::Bytes(b"jpeg"));
    let tagged = [&[0; 4][..], &jpegs].concat();
    assert_eq!(decode("list[png]", &tagged), list());
    let pils = [
        [0_u32, 1, pil.len() as u32].map(u32::to_le_bytes).concat(),
        pil.clone(),
    ]
    .concat();
    assert_eq!(decode("list[pil]", &pils), MdsValue::List(vec![image]));
    for (encoding, bytes) in [
        ("pil", &pil[..12]),
        ("jpeg_array", &jpegs[..jpegs.len() - 1]),
        ("jpeg_array", &[255; 8]),
        ("list[jpeg]", &jpegs),
        ("list[pil]", &tagged),
    ] {
        assert_eq!(fails(encoding, bytes), Kind::Corrupt, "{encoding}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        for name in ["int16", "float16", "str_int", "pil", "jpeg_array", "list[pil]", "ndarray", "ndarray:int8", "ndarray:int8:3"] {
            let _ = MdsEncoding::parse(name).unwrap().decode(&bytes);
        }
    }
}
