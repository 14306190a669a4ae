//! Round trips, golden bytes and hostile payloads of the journal format.

use super::*;

fn object() -> ObjectVersion {
    ObjectVersion {
        bucket: BucketName::new("lake").unwrap(),
        key: ObjectKey::new("a/b").unwrap(),
        version: Version::new("v1"),
        bytes: 70_000,
        domain: crate::TrustDomain::DEFAULT,
    }
}

fn records() -> Vec<Record> {
    let object = object();
    let id = ObjectId::of(&object);
    let key = PageKey {
        object: id,
        page: PageIndex(0),
    };
    let mut checksums = [0; 16];
    checksums[1] = 0x1122_3344;
    let page = PageRecord {
        key,
        generation: 9,
        stored: BlockMask(0b11),
        live: BlockMask(0b10),
        runs: vec![
            Run { start: 1, units: 16 },
            Run {
                start: SEGMENT_UNITS + 5,
                units: 2,
            },
        ],
        checksums,
    };
    vec![
        Record::Object(id, Arc::new(object)),
        Record::Page(page),
        Record::RemoveBlocks(key, BlockMask(0b10)),
        Record::RemoveObject(id),
    ]
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out);
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn records_round_trip_and_their_sizes_are_foretold() {
    for record in records() {
        let bytes = encoded(&record);
        assert_eq!(Record::decode(&bytes[FRAME_BYTES..]), Some(record.clone()));
        match &record {
            Record::Object(_, object) => assert_eq!(bytes.len() as u64, object_record_bytes(object)),
            Record::Page(page) => {
                assert_eq!(bytes.len() as u64, page_record_bytes(page.runs.len(), page.live));
            }
            _ => {}
        }
    }
}

#[test]
fn a_payload_cut_or_grown_by_a_byte_is_no_record() {
    for record in records() {
        let bytes = encoded(&record);
        let payload = &bytes[FRAME_BYTES..];
        for end in 0..payload.len() {
            assert_eq!(Record::decode(&payload[..end]), None);
        }
        assert_eq!(Record::decode(&[payload, &[0]].concat()), None);
    }
}

#[test]
fn random_payloads_never_panic() {
    let mut rng = fastrand::Rng::with_seed(3);
    let samples: Vec<Vec<u8>> = records().iter().map(encoded).collect();
    for _ in 0..20_000 {
        let mut payload = rng.choice(&samples).unwrap()[FRAME_BYTES..].to_vec();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..payload.len());
            payload[at] = rng.u8(..);
        }
        let _ = Record::decode(&payload);
    }
}

#[test]
fn headers_name_what_is_wrong() {
    let header = encode_header(JOURNAL_MAGIC, [7; 16], 3);
    assert_eq!(
        check_header(&header, JOURNAL_MAGIC, Some([7; 16]), 3),
        Ok([7; 16])
    );
    assert!(
        check_header(&header, SEGMENT_MAGIC, None, 3)
            .unwrap_err()
            .contains("not a file")
    );
    assert!(check_header(&header[..63], JOURNAL_MAGIC, None, 3).is_err());
    assert!(
        check_header(&header, JOURNAL_MAGIC, Some([8; 16]), 3)
            .unwrap_err()
            .contains("another store")
    );
    assert!(
        check_header(&header, JOURNAL_MAGIC, None, 4)
            .unwrap_err()
            .contains("name")
    );
    for byte in 12..HEADER_BYTES {
        let mut damaged = header;
        damaged[byte] ^= 1;
        assert!(
            check_header(&damaged, JOURNAL_MAGIC, None, 3)
                .unwrap_err()
                .contains("damaged"),
            "{byte}"
        );
    }
    let mut newer = header;
    newer[8] = 2;
    assert!(
        check_header(&newer, JOURNAL_MAGIC, None, 3)
            .unwrap_err()
            .contains("version")
    );
}

/// The bytes that docs/formats/nvme-tier.md shows. A change here is a new format version.
#[test]
fn golden_bytes() {
    let tail = "0100000000100000070707070707070707070707070707070300000000000000000001000000000000000000000000000000000";
    let journal = hex(&encode_header(JOURNAL_MAGIC, [7; 16], 3));
    let segment = hex(&encode_header(SEGMENT_MAGIC, [7; 16], 3));
    assert_eq!(journal, format!("464259494e444558{tail}0f28306df"));
    assert_eq!(segment, format!("4642595041474553{tail}04a9a61ba"));
    let golden = [
        "28000000ae598922018566366b235f3a5a9288128203548b0d701101000000000004006c616b650300612f6202007631",
        "3f000000487f46ea028566366b235f3a5a9288128203548b0d0000000009000000000000000300020002000000000001000000\
         1000000001000000050000000200000044332211",
        "17000000dabafc0b038566366b235f3a5a9288128203548b0d000000000200",
        "11000000b56432b1048566366b235f3a5a9288128203548b0d",
    ];
    for (record, golden) in records().iter().zip(golden) {
        assert_eq!(hex(&encoded(record)), golden);
    }
}
