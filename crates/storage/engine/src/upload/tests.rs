use bytes::Bytes;
use futures::{TryStreamExt, stream};

use super::*;

fn stored(number: u16, bytes: u64) -> PartInfo {
    PartInfo {
        number,
        etag: format!("e{number}"),
        bytes,
        modified: SystemTime::UNIX_EPOCH,
        checksums: Vec::new(),
    }
}

fn named(numbers: &[u16]) -> CompleteRequest {
    let part = |number: &u16| CompletedPart {
        number: *number,
        etag: format!("e{number}"),
        checksums: Vec::new(),
    };
    CompleteRequest {
        parts: numbers.iter().map(part).collect(),
        ..CompleteRequest::default()
    }
}

fn code_of(error: &Error) -> &str {
    error
        .context()
        .find(|(name, _)| *name == "code")
        .map_or("", |(_, code)| code)
}

#[test]
fn any_ascending_choice_of_parts_is_joined() {
    let stored = [stored(1, PART_BYTES_MIN), stored(3, PART_BYTES_MIN), stored(9, 1)];
    let parts = match_parts(&named(&[3, 9]), &stored).unwrap();
    assert_eq!(parts.iter().map(|part| part.number).collect::<Vec<_>>(), [3, 9]);
}

#[test]
fn wrong_part_lists_have_the_codes_of_s3() {
    let stored = [stored(1, PART_BYTES_MIN), stored(2, 5), stored(3, 5)];
    let code = |numbers: &[u16]| code_of(&match_parts(&named(numbers), &stored).unwrap_err()).to_owned();
    assert_eq!(code(&[]), "MalformedXML");
    assert_eq!(code(&[2, 1]), "InvalidPartOrder");
    assert_eq!(code(&[1, 1]), "InvalidPartOrder");
    assert_eq!(code(&[1, 7]), "InvalidPart");
    assert_eq!(code(&[1, 2, 3]), "EntityTooSmall");
}

#[tokio::test]
async fn a_part_with_another_md5_ends_with_an_error() {
    let body = || stream::iter([Ok(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"c"))]).boxed();
    let right: [u8; 16] = Md5::digest(b"abc").into();
    let chunks: Vec<Bytes> = part_body::check_md5(body(), right).try_collect().await.unwrap();
    assert_eq!(chunks.concat(), b"abc");
    let error = part_body::check_md5(body(), [0; 16])
        .try_collect::<Vec<_>>()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum);
}
