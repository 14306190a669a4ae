//! Round trips, golden bytes, refusals and hostile frames.

use forebay_core::{Error, ItemRange, Kind, WriteCondition, crc32c};
use proptest::prelude::*;

use super::*;
use crate::saves::{AlarmPolicy, BeginSave, Differential, SaveFile, SavePart, StagedIn};
use crate::writes::{BeginWrite, FinishWrite, StagedBytes, WritePart};

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
    let request = objects::Request::Read {
        items: vec![item("a"), item("b")],
        timeout_ms: 500,
    };
    let mut frame = Vec::new();
    encode(&request, &mut frame).unwrap();
    let (header, message) = parts(&frame);
    assert_eq!(decode::<objects::Request>(&header, message).unwrap(), request);
}

#[test]
fn golden_bytes_of_a_frame() {
    let mut frame = Vec::new();
    encode(&objects::Request::Release { leases: vec![1, 300] }, &mut frame).unwrap();
    let expected = [
        b"FBAY".as_slice(),
        &[2, 0, 1, 0],       // family, version
        &[5, 0, 0, 0],       // length
        &frame[12..16],      // checksum: see below
        &[1, 2, 1, 0xac, 2], // Release, two leases as varints
    ]
    .concat();
    assert_eq!(frame, expected);
    assert_eq!(u32::from_le_bytes(frame[12..16].try_into().unwrap()), GOLDEN_CRC);
}

const GOLDEN_CRC: u32 = 1_078_396_459;

/// The message of a frame, behind its header.
fn message_of(message: &impl Message) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(message, &mut frame).unwrap();
    frame.split_off(HEADER_BYTES)
}

#[test]
fn golden_bytes_of_a_session() {
    let hello = session::Request::Hello(session::Hello {
        client: "c".into(),
        session: Some([7; 16]),
    });
    assert_eq!(
        message_of(&hello),
        [b"\x00\x01c\x01".as_slice(), &[7; 16]].concat()
    );
    let welcome = session::Answer::Welcome(session::Welcome {
        session: [7; 16],
        generation: 300,
        node: "n".into(),
        s3: None,
    });
    assert_eq!(
        message_of(&welcome),
        [b"\x00".as_slice(), &[7; 16], b"\xac\x02\x01n\x00"].concat()
    );
    assert_eq!(
        message_of(&session::Request::MapSegment { segment: 9 }),
        b"\x01\x09"
    );
    assert_eq!(message_of(&session::Request::Ping), b"\x02");
}

#[test]
fn golden_bytes_of_objects() {
    let read = objects::Request::Read {
        items: vec![item("k")],
        timeout_ms: 5,
    };
    assert_eq!(
        message_of(&read),
        b"\x00\x01\x04lake\x01k\x01\x80\x20\x64\x00\x05"
    );
    let found = objects::Answer::Read(vec![Ok(objects::Found {
        version: "v".into(),
        object_bytes: 3,
        offset: 1,
        view: Some(objects::View {
            lease: 5,
            parts: vec![objects::ViewPart {
                segment: 2,
                offset: 300,
                bytes: 2,
            }],
        }),
        sources: TierBytes {
            ram: 2,
            ..TierBytes::default()
        },
    })]);
    assert_eq!(
        message_of(&found),
        b"\x01\x01\x00\x01v\x03\x01\x01\x05\x01\x02\xac\x02\x02\x02\x00\x00\x00\x00"
    );
    let drop = objects::Request::DropWorkingSet { reader: 4 };
    assert_eq!(message_of(&drop), b"\x0a\x04");
}

#[test]
fn golden_bytes_of_writes() {
    let begin = writes::Request::BeginWrite(BeginWrite {
        object: ObjectName {
            bucket: "b".into(),
            key: "k".into(),
        },
        bytes: Some(300),
        condition: WriteCondition::Absent,
        headers: Headers {
            content_encoding: Some("gz".into()),
            ..Headers::default()
        },
        metadata: vec![("n".into(), "v".into())],
    });
    assert_eq!(
        message_of(&begin),
        b"\x03\x01b\x01k\x01\xac\x02\x01\x00\x01\x02gz\x00\x00\x00\x01\x01n\x01v"
    );
    let part = writes::Request::WritePart(WritePart {
        write: 5,
        offset: 300,
        from: StagedBytes {
            buffer: 7,
            bytes: 2,
            crc32c: Some(1),
        },
    });
    assert_eq!(message_of(&part), b"\x04\x05\xac\x02\x07\x02\x01\x01");
    let finish = writes::Request::FinishWrite(FinishWrite {
        write: 5,
        bytes: 302,
        crc32c: None,
    });
    assert_eq!(message_of(&finish), b"\x05\x05\xae\x02\x00");
    assert_eq!(message_of(&writes::Request::AbortWrite { write: 5 }), b"\x06\x05");
    let writing = writes::Answer::Writing {
        write: 5,
        part_bytes_max: 1 << 20,
    };
    assert_eq!(message_of(&writing), b"\x03\x05\x80\x80\x40");
}

#[test]
fn golden_bytes_of_saves() {
    let begin = saves::Request::BeginSave(BeginSave {
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
        b"\x00\x01b\x01r\xac\x02\x00\x01\x02\x01\x01\x00\x01\x01\x01\x05\x02{}\x02[]"
    );
    let file = saves::Request::SaveFile(SaveFile {
        save: "s".into(),
        from: StagedBytes {
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
        b"\x01\x01s\x07\x08\x00\x01\x01w\x03F32\x01\x04\x01\x02\x01\x02"
    );
    let stage = saves::Request::StageSave { save: "s".into() };
    assert_eq!(message_of(&stage), b"\x03\x01s");
}

#[test]
fn golden_bytes_of_groups_and_failures() {
    let gather = group::Request::AllGather(group::AllGather {
        key: "k".into(),
        rank: 1,
        size: 2,
        payload: vec![9],
        timeout_ms: 5,
    });
    assert_eq!(message_of(&gather), b"\x00\x01k\x01\x02\x01\x09\x05");
    let gathered = group::Answer::AllGathered(vec![vec![9]]);
    assert_eq!(message_of(&gathered), b"\x00\x01\x01\x09");
    let failure = Failure::from(&Error::new(Kind::Busy, "m").with("k", "v"));
    assert_eq!(message_of(&failure), b"\x04busy\x01m\x01\x01k\x01v");
}

#[test]
fn families_have_numbers_and_names_of_their_own() {
    for (index, family) in FAMILIES.iter().enumerate() {
        assert_eq!(usize::from(family.number), index);
        assert!(family.version > 0, "0 is what older nodes wrote there");
        assert_eq!(
            FAMILIES.iter().filter(|other| other.name == family.name).count(),
            1
        );
    }
}

#[test]
fn every_request_has_a_kind() {
    fn last_kind<R: Request>(last: &R) -> usize {
        let message = message_of(last);
        assert_eq!(R::KINDS.len(), usize::from(message[0]) + 1);
        R::KINDS.len()
    }
    last_kind(&session::Request::Ping);
    last_kind(&objects::Request::DropWorkingSet { reader: 0 });
    last_kind(&writes::Request::AbortWrite { write: 0 });
    last_kind(&saves::Request::AbortSave { save: String::new() });
    last_kind(&loaders::Request::Report(loaders::LoaderReport::default()));
}

#[test]
fn another_version_is_refused_by_number_and_names_both() {
    let mut frame = Vec::new();
    encode(&session::Request::Ping, &mut frame).unwrap();
    frame[6] = 9;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&frame[..12]), &frame[HEADER_BYTES..]);
    frame[12..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    let (header, message) = parts(&frame);
    let refused = decode::<session::Request>(&header, message).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    let context: Vec<_> = refused.context().collect();
    assert!(context.contains(&("family", "session")), "{context:?}");
    assert!(
        context.contains(&("theirs", "9")) && context.contains(&("ours", "1")),
        "{context:?}"
    );
}

#[test]
fn a_message_of_another_family_is_refused() {
    let mut frame = Vec::new();
    encode(&session::Request::Ping, &mut frame).unwrap();
    let (header, message) = parts(&frame);
    let refused = decode::<objects::Request>(&header, message).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
}

#[test]
fn an_answer_is_a_message_of_its_family_or_a_failure() {
    let mut frame = Vec::new();
    encode(&session::Answer::Ready, &mut frame).unwrap();
    let (header, message) = parts(&frame);
    assert_eq!(
        decode_answer(&header, message).unwrap(),
        Ok(session::Answer::Ready)
    );
    let failure = Failure::from(&Error::new(Kind::Busy, "later"));
    frame.clear();
    encode(&failure, &mut frame).unwrap();
    let (header, message) = parts(&frame);
    let answer = decode_answer::<session::Answer>(&header, message).unwrap();
    assert_eq!(answer, Err(failure));
}

#[test]
fn a_flipped_bit_is_noticed() {
    let mut frame = Vec::new();
    encode(&objects::Request::Stat(item("key").object), &mut frame).unwrap();
    for bit in 0..frame.len() * 8 {
        let mut bad = frame.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (header, message) = bad.split_at(HEADER_BYTES);
        let Ok(header) = FrameHeader::parse(header.try_into().unwrap()) else {
            continue;
        };
        assert!(decode::<objects::Request>(&header, message).is_err(), "bit {bit}");
    }
}

#[test]
fn a_hostile_length_is_refused_before_memory_is_taken() {
    let mut header = *b"FBAY\x02\0\x01\0\xff\xff\xff\xff\0\0\0\0";
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
        // With right headers, so that the parsers themselves are reached.
        fuzzing::wire_frame(&bytes);
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
    let read = |count: usize| objects::Request::Read {
        items: vec![nothing.clone(); count],
        timeout_ms: 0,
    };
    let release = |count: usize| objects::Request::Release {
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
        let decoded = decode::<objects::Request>(&FrameHeader::parse(header).unwrap(), message);
        match decoded {
            Ok(decoded) => assert!(is_fine && decoded == request),
            Err(error) => assert!(!is_fine && error.kind() == Kind::Corrupt),
        }
    }
}
