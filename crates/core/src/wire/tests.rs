//! Round trips, golden bytes and hostile frames.

use proptest::prelude::*;

use super::*;
use crate::{Error, Kind, crc32c};

fn parts(frame: &[u8]) -> (FrameHeader, &[u8]) {
    let (header, message) = frame.split_at(HEADER_BYTES);
    (FrameHeader::parse(header.try_into().unwrap()).unwrap(), message)
}

fn item(key: &str) -> Item {
    let object = ObjectName {
        bucket: "lake".into(),
        key: key.into(),
    };
    Item {
        object,
        range: ItemRange::Range {
            offset: 4096,
            length: 100,
        },
        version: None,
    }
}

#[test]
fn a_request_comes_back_as_it_was() {
    let request = Request::Read {
        items: vec![item("a"), item("b")],
        timeout_ms: 500,
    };
    let mut frame = Vec::new();
    encode(&request, &mut frame).unwrap();
    let (header, message) = parts(&frame);
    assert_eq!(decode::<Request>(&header, message).unwrap(), request);
}

#[test]
fn golden_bytes_of_the_protocol() {
    let mut frame = Vec::new();
    encode(&Request::Release { leases: vec![1, 300] }, &mut frame).unwrap();
    let expected = [
        b"FBAY".as_slice(),
        &[3, 0, 0, 0],       // protocol, reserved
        &[5, 0, 0, 0],       // length
        &frame[12..16],      // checksum: see below
        &[7, 2, 1, 0xac, 2], // Release, two leases as varints
    ]
    .concat();
    assert_eq!(frame, expected);
    assert_eq!(u32::from_le_bytes(frame[12..16].try_into().unwrap()), GOLDEN_CRC);
}

const GOLDEN_CRC: u32 = 2_005_117_031;

/// The message of a frame, behind its header.
fn message_of(message: &impl serde::Serialize) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(message, &mut frame).unwrap();
    frame.split_off(HEADER_BYTES)
}

#[test]
fn golden_bytes_of_a_write_in_parts() {
    let begin = Request::BeginWrite(BeginWrite {
        object: ObjectName {
            bucket: "b".into(),
            key: "k".into(),
        },
        bytes: Some(300),
        condition: Condition::Absent,
        durability: Durability::Lake,
        headers: Headers {
            content_encoding: Some("gz".into()),
            ..Headers::default()
        },
        metadata: vec![("n".into(), "v".into())],
    });
    assert_eq!(
        message_of(&begin),
        b"\x11\x01b\x01k\x01\xac\x02\x01\x00\x00\x01\x02gz\x00\x00\x00\x01\x01n\x01v"
    );
    let part = Request::WritePart(WritePart {
        write: 5,
        offset: 300,
        from: WrittenFrom {
            buffer: 7,
            bytes: 2,
            crc32c: Some(1),
        },
    });
    assert_eq!(message_of(&part), b"\x12\x05\xac\x02\x07\x02\x01\x01");
    let finish = Request::FinishWrite(FinishWrite {
        write: 5,
        bytes: 302,
        crc32c: None,
    });
    assert_eq!(message_of(&finish), b"\x13\x05\xae\x02\x00");
    assert_eq!(message_of(&Request::AbortWrite { write: 5 }), b"\x14\x05");
    let writing = Answer::Writing {
        write: 5,
        part_bytes_max: 1 << 20,
    };
    assert_eq!(message_of(&writing), b"\x0d\x05\x80\x80\x40");
}

#[test]
fn golden_bytes_of_a_save() {
    let begin = Request::BeginSave(BeginSave {
        root: ObjectName {
            bucket: "b".into(),
            key: "r".into(),
        },
        step: 300,
        attempt: None,
        rank: 1,
        world_size: 2,
        supersede: true,
        staged: StagedIn::Nvme,
        sha256: false,
        alarms: AlarmPolicy::Refuse,
        reuse: true,
        differential: Differential::Auto,
        deadline_ms: 5,
        metadata: "{}".into(),
        tree: "[]".into(),
    });
    assert_eq!(
        message_of(&begin),
        b"\x15\x01b\x01r\xac\x02\x00\x01\x02\x01\x01\x00\x01\x01\x01\x05\x02{}\x02[]"
    );
    let file = Request::SaveFile(SaveFile {
        save: "s".into(),
        from: WrittenFrom {
            buffer: 7,
            bytes: 8,
            crc32c: None,
        },
        parts: vec![SavePart {
            name: "w".into(),
            dtype: "F32".into(),
            tensor_shape: vec![4],
            offset: vec![2],
            shape: vec![2],
        }],
    });
    assert_eq!(
        message_of(&file),
        b"\x16\x01s\x07\x08\x00\x01\x01w\x03F32\x01\x04\x01\x02\x01\x02"
    );
    assert_eq!(message_of(&Request::StageSave { save: "s".into() }), b"\x18\x01s");
    assert_eq!(message_of(&Answer::Gathered(vec![vec![9]])), b"\x10\x01\x01\x09");
}

#[test]
fn a_flipped_bit_is_noticed() {
    let mut frame = Vec::new();
    encode(&Request::Stat(item("key").object), &mut frame).unwrap();
    for bit in 0..frame.len() * 8 {
        let mut bad = frame.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (header, message) = bad.split_at(HEADER_BYTES);
        let Ok(header) = FrameHeader::parse(header.try_into().unwrap()) else {
            continue;
        };
        assert!(decode::<Request>(&header, message).is_err(), "bit {bit}");
    }
}

#[test]
fn a_hostile_length_is_refused_before_memory_is_taken() {
    let mut header = *b"FBAY\x02\0\0\0\xff\xff\xff\xff\0\0\0\0";
    assert_eq!(FrameHeader::parse(&header).unwrap_err().kind(), Kind::Corrupt);
    header[0] = b'G';
    assert_eq!(FrameHeader::parse(&header).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn an_error_keeps_kind_message_and_context() {
    let error = Error::new(Kind::NotFound, "there is no such object").with("key", "a");
    let back = Error::from(Failure::from(&error));
    assert_eq!(format!("{back:?}"), format!("{error:?}"));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        // With a right header, so that the parser itself is reached.
        let mut frame = Vec::new();
        frame.extend_from_slice(b"FBAY\x02\0\0\0");
        frame.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&frame), &bytes);
        frame.extend_from_slice(&checksum.to_le_bytes());
        let header = FrameHeader::parse(frame.as_slice().try_into().unwrap()).unwrap();
        let _ = decode::<Request>(&header, &bytes);
        let _ = decode::<Answer>(&header, &bytes);
    }
}

#[test]
fn a_frame_of_tiny_items_costs_no_more_memory_than_its_limit() {
    let nothing = Item {
        object: ObjectName {
            bucket: String::new(),
            key: String::new(),
        },
        range: ItemRange::Whole,
        version: None,
    };
    let read = |count: usize| Request::Read {
        items: vec![nothing.clone(); count],
        timeout_ms: 0,
    };
    let release = |count: usize| Request::Release {
        leases: vec![0; count],
    };
    for (request, is_fine) in [
        (read(bounded::ITEMS_MAX), true),
        (read(bounded::ITEMS_MAX + 1), false),
        (release(bounded::NUMBERS_MAX), true),
        (release(bounded::NUMBERS_MAX + 1), false),
    ] {
        let mut frame = Vec::new();
        encode(&request, &mut frame).unwrap();
        let (header, message) = frame.split_first_chunk::<HEADER_BYTES>().unwrap();
        let decoded = decode::<Request>(&FrameHeader::parse(header).unwrap(), message);
        match decoded {
            Ok(decoded) => assert!(is_fine && decoded == request),
            Err(error) => assert!(!is_fine && error.kind() == Kind::Corrupt),
        }
    }
}
