use http::{Extensions, HeaderMap, Method, Uri};

use super::*;

fn request(headers: &[(&'static str, &str)]) -> S3Request<()> {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
    S3Request {
        input: (),
        method: Method::PUT,
        uri: Uri::from_static("/"),
        headers,
        extensions: Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

fn value_of(algorithm: Algorithm, bytes: &[u8]) -> String {
    BASE64.encode(digest_of(algorithm, bytes))
}

fn given(algorithm: Algorithm, value: &str) -> Values {
    Values::of(&[full(algorithm, value)])
}

#[test]
fn known_values_come_out() {
    // From the catalogue of CRC algorithms: the check value of "123456789".
    assert_eq!(
        digest_of(Algorithm::Crc32, b"123456789"),
        0xcbf4_3926_u32.to_be_bytes()
    );
    assert_eq!(
        digest_of(Algorithm::Crc32c, b"123456789"),
        0xe306_9283_u32.to_be_bytes()
    );
    assert_eq!(
        digest_of(Algorithm::Crc64Nvme, b"123456789"),
        0xae8b_1486_0a79_9888_u64.to_be_bytes()
    );
}

#[test]
fn right_checksums_pass_and_are_kept() {
    for algorithm in Algorithm::ALL {
        let value = value_of(algorithm, b"hello");
        let mut verifier = Verifier::new(&request(&[]), &given(algorithm, &value)).unwrap();
        verifier.update(b"hel");
        verifier.update(b"lo");
        assert_eq!(verifier.finish().unwrap(), [full(algorithm, &value)]);
    }
}

#[test]
fn wrong_checksums_are_refused() {
    for algorithm in Algorithm::ALL {
        let value = value_of(algorithm, b"hello");
        let mut verifier = Verifier::new(&request(&[]), &given(algorithm, &value)).unwrap();
        verifier.update(b"jello");
        assert_eq!(verifier.finish().unwrap_err().kind(), Kind::Checksum);
    }
}

#[test]
fn values_of_a_wrong_length_are_refused_before_the_body() {
    assert!(Verifier::new(&request(&[]), &given(Algorithm::Crc32, "AAAAAAAA")).is_err());
    assert!(Verifier::new(&request(&[]), &given(Algorithm::Sha256, "not base64!")).is_err());
}

#[test]
fn two_checksums_are_refused() {
    let two = Values {
        crc32: Some("AAAAAA==".into()),
        crc32c: Some("AAAAAA==".into()),
        ..Values::default()
    };
    assert!(Verifier::new(&request(&[]), &two).is_err());
}

#[test]
fn an_announced_algorithm_needs_a_value() {
    let request = request(&[("x-amz-sdk-checksum-algorithm", "CRC32")]);
    assert!(Verifier::new(&request, &Values::default()).is_err());
}

#[test]
fn a_missing_trailer_is_refused() {
    let request = request(&[("x-amz-trailer", "x-amz-checksum-crc32")]);
    let verifier = Verifier::new(&request, &Values::default()).unwrap();
    assert!(verifier.has_trailer());
    let error = verifier.finish().unwrap_err();
    assert!(
        error
            .context()
            .any(|pair| pair == ("code", "MalformedTrailerError"))
    );
}

#[test]
fn unknown_trailers_are_refused() {
    assert!(Verifier::new(&request(&[("x-amz-trailer", "x-evil")]), &Values::default()).is_err());
}

#[test]
fn combined_part_checksums_equal_the_whole() {
    let (one, two, three) = (vec![1u8; 70_000], vec![2u8; 5], vec![3u8; 123_456]);
    let whole = [one.clone(), two.clone(), three.clone()].concat();
    for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
        let values: Vec<String> = [&one, &two, &three].map(|part| value_of(algorithm, part)).into();
        let sums: Vec<PartSum<'_>> = values
            .iter()
            .zip([&one, &two, &three])
            .map(|(value, part)| PartSum {
                value,
                bytes: part.len() as u64,
            })
            .collect();
        assert_eq!(
            of_parts(algorithm, ChecksumKind::FullObject, &sums),
            Some(value_of(algorithm, &whole))
        );
    }
}

#[test]
fn composite_checksums_hash_the_digests() {
    let digest = digest_of(Algorithm::Sha256, b"part");
    let value = BASE64.encode(&digest);
    let sums = [
        PartSum {
            value: &value,
            bytes: 4,
        },
        PartSum {
            value: &value,
            bytes: 4,
        },
    ];
    let expected = format!(
        "{}-2",
        value_of(Algorithm::Sha256, &[digest.clone(), digest].concat())
    );
    assert_eq!(
        of_parts(Algorithm::Sha256, ChecksumKind::Composite, &sums),
        Some(expected)
    );
    assert_eq!(of_parts(Algorithm::Sha256, ChecksumKind::FullObject, &sums), None);
}

#[test]
fn checksum_types_follow_s3() {
    assert_eq!(
        Algorithm::Crc64Nvme.upload_kind(None).unwrap(),
        ChecksumKind::FullObject
    );
    assert_eq!(
        Algorithm::Crc32.upload_kind(None).unwrap(),
        ChecksumKind::Composite
    );
    assert_eq!(
        Algorithm::Crc32.upload_kind(Some("FULL_OBJECT")).unwrap(),
        ChecksumKind::FullObject
    );
    assert!(Algorithm::Sha256.upload_kind(Some("FULL_OBJECT")).is_err());
    assert!(Algorithm::Crc64Nvme.upload_kind(Some("COMPOSITE")).is_err());
    assert!(Algorithm::Crc32.upload_kind(Some("NONSENSE")).is_err());
}
