//! Entries through crashes and damage: what was sealed is there whole or said to be damaged, and nothing
//! else is.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;

use super::budget::BLOCK_BYTES;
use super::*;

const PIECES: [&[u8]; 2] = [b"the first piece", b"the second one"];
const PAYLOAD: &[u8] = b"{\"what\":\"two pieces\"}\nand more";

fn name() -> EntryName {
    EntryName::new("a-0000000000000001", "0").unwrap()
}

fn log(folder: &Path) -> Arc<StagingLog> {
    StagingLog::new(folder.join("saves"), u64::MAX)
}

/// A log whose process dies after so many changes of the disk.
fn mortal(folder: &Path, steps: u32) -> Arc<StagingLog> {
    let steps_left = Some(Arc::new(AtomicU32::new(steps)));
    StagingLog::on(folder.join("saves"), u64::MAX, Disk { steps_left })
}

/// Stages both pieces and says how far it came.
async fn staged(log: &Arc<StagingLog>) -> Result<StagedEntry> {
    let entry = log.create(name())?;
    for piece in PIECES {
        assert_eq!(entry.try_reserve(piece.len() as u64), Reservation::Reserved);
        entry.append(Bytes::from_static(piece));
    }
    entry.seal(|| Ok(PAYLOAD.to_vec())).await?;
    Ok(entry)
}

fn read(found: &SealedEntry, number: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    found.entry.read(&found.pieces[number], |first, some| {
        assert_eq!(first, bytes.len() as u64);
        bytes.extend_from_slice(some);
        Ok(())
    })?;
    Ok(bytes)
}

fn assert_whole(found: &[SealedEntry]) {
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].entry.name(), &name());
    assert_eq!(found[0].payload, PAYLOAD);
    for (number, piece) in PIECES.iter().enumerate() {
        assert_eq!(read(&found[0], number).unwrap(), *piece);
    }
}

/// The folder of the entry.
fn folder(dir: &Path) -> PathBuf {
    dir.join("saves").join(name().to_string())
}

#[tokio::test]
async fn a_sealed_entry_is_found_again_with_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    drop(staged(&log(dir.path())).await.unwrap());
    let next = log(dir.path());
    let found = next.replay().unwrap();
    assert_whole(&found);
    assert_eq!(next.stats().held_bytes, 2 * BLOCK_BYTES);
    found[0].entry.remove();
    assert_eq!(next.stats().held_bytes, 0);
    assert!(log(dir.path()).replay().unwrap().is_empty());
    assert!(!folder(dir.path()).exists());
}

#[tokio::test]
async fn a_crash_at_any_step_leaves_a_whole_entry_or_none() {
    let mut sealed_after = None;
    for steps in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let outcome = staged(&mortal(dir.path(), steps)).await;
        let found = log(dir.path()).replay().unwrap();
        if outcome.is_ok() || !found.is_empty() {
            // Once the marker is renamed the entry may be there, acknowledged or not.
            assert_whole(&found);
        } else {
            assert!(!folder(dir.path()).exists(), "step {steps} leaves a folder");
        }
        if outcome.is_ok() {
            sealed_after = Some(steps);
            break;
        }
    }
    assert!(
        sealed_after.unwrap() > 12,
        "pieces, marker and folders are written and synced"
    );
}

#[tokio::test]
async fn a_removal_that_crashes_at_any_step_leaves_a_whole_entry_or_none() {
    for steps in 0..16 {
        let dir = tempfile::tempdir().unwrap();
        drop(staged(&log(dir.path())).await.unwrap());
        mortal(dir.path(), steps).replay().unwrap()[0].entry.remove();
        let found = log(dir.path()).replay().unwrap();
        if steps == 0 {
            assert_whole(&found);
        } else {
            assert!(found.is_empty(), "the marker goes first");
            assert!(!folder(dir.path()).exists());
        }
    }
}

#[tokio::test]
async fn a_payload_that_is_replaced_by_a_process_that_dies_is_the_old_or_the_new_one() {
    let mut is_replaced = false;
    for steps in 0..16 {
        let dir = tempfile::tempdir().unwrap();
        drop(staged(&log(dir.path())).await.unwrap());
        let dying = mortal(dir.path(), steps);
        let found = dying.replay().unwrap();
        let replaced = found[0].entry.update_payload(|old| {
            assert_eq!(old, PAYLOAD);
            Ok(Some(b"new".to_vec()))
        });
        let outcome = replaced.await;
        let payload = log(dir.path()).replay().unwrap().remove(0).payload;
        assert!(payload == PAYLOAD || payload == b"new");
        is_replaced |= payload == b"new";
        assert!(outcome.is_err() || payload == b"new");
    }
    assert!(is_replaced);
}

#[tokio::test]
async fn a_torn_marker_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    drop(staged(&log(dir.path())).await.unwrap());
    let path = folder(dir.path()).join("staged.json");
    let bytes = fs::read(&path).unwrap();
    for cut in [0, 1, 63, 64, 65, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        let next = log(dir.path());
        assert!(next.replay().unwrap().is_empty(), "cut at {cut}");
        assert_eq!(next.stats().held_bytes, 0);
        let mut aside = folder(dir.path()).into_os_string();
        aside.push(ASIDE);
        assert!(Path::new(&aside).join("piece-00000").exists());
        assert!(log(dir.path()).replay().unwrap().is_empty(), "nobody touches it");
        fs::rename(&aside, folder(dir.path())).unwrap();
    }
}

#[tokio::test]
async fn any_flipped_bit_of_a_marker_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    drop(staged(&log(dir.path())).await.unwrap());
    let bytes = fs::read(folder(dir.path()).join("staged.json")).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        fs::write(folder(dir.path()).join("staged.json"), flipped).unwrap();
        let error = StagedEntry::new(log(dir.path()), name())
            .read_marker()
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "byte {at}: {error}");
    }
}

#[tokio::test]
async fn a_flipped_bit_a_missing_and_a_cut_piece_are_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    drop(staged(&log(dir.path())).await.unwrap());
    let found = log(dir.path()).replay().unwrap();
    let path = folder(dir.path()).join("piece-00000");
    let bytes = fs::read(&path).unwrap();
    let mut flipped = bytes.clone();
    flipped[3] ^= 4;
    for damaged in [&flipped[..], &bytes[..4], &[&bytes[..], b"more"].concat(), b""] {
        fs::write(&path, damaged).unwrap();
        let error = read(&found[0], 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(read(&found[0], 0).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(read(&found[0], 1).unwrap(), PIECES[1]);
}

#[tokio::test]
async fn a_marker_of_another_entry_or_version_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    drop(staged(&log(dir.path())).await.unwrap());
    let other = dir.path().join("saves").join("a-0000000000000001.1");
    fs::rename(folder(dir.path()), &other).unwrap();
    assert!(log(dir.path()).replay().unwrap().is_empty());
    assert!(!other.exists(), "it was set aside");
    let body = b"\n{\"format\":\"forebay-staged-save\",\"version\":1}";
    let digest = blake3::hash(body).to_hex();
    fs::create_dir(folder(dir.path())).unwrap();
    let marker = [digest.as_bytes(), body].concat();
    fs::write(folder(dir.path()).join("staged.json"), marker).unwrap();
    let error = StagedEntry::new(log(dir.path()), name())
        .read_marker()
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
}

#[tokio::test]
async fn a_name_that_is_taken_is_a_conflict_and_its_entry_stays() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let first = staged(&log).await.unwrap();
    assert_eq!(log.create(name()).unwrap_err().kind(), Kind::Conflict);
    drop(first);
    assert_whole(
        &StagingLog::new(dir.path().join("saves"), u64::MAX)
            .replay()
            .unwrap(),
    );
}

#[tokio::test]
async fn an_entry_that_was_removed_takes_no_pieces_and_no_marker() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let entry = log.create(name()).unwrap();
    entry.remove();
    entry.append(Bytes::from_static(b"late"));
    let error = entry.seal(|| Ok(Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled, "{error}");
    assert_eq!(entry.try_reserve(1), Reservation::Removed);
    assert!(!folder(dir.path()).exists());
}

#[tokio::test]
async fn entries_of_an_earlier_incarnation_fill_the_budget_until_they_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    drop(staged(&log(dir.path())).await.unwrap());
    // Less than what lies there.
    let next = StagingLog::new(dir.path().join("saves"), BLOCK_BYTES);
    let found = next.replay().unwrap();
    let late = next.create(EntryName::new("b", "0").unwrap()).unwrap();
    assert_eq!(late.try_reserve(1), Reservation::Full);
    found[0].entry.remove();
    assert_eq!(late.reserve(1).await, Reservation::Reserved);
    let too_large = Reservation::TooLarge {
        bytes: 2 * BLOCK_BYTES,
        bytes_max: BLOCK_BYTES,
    };
    assert_eq!(late.try_reserve(1), too_large);
}

#[test]
fn names_are_plain() {
    for (group, member) in [
        ("", "0"),
        ("a", ""),
        ("a.b", "0"),
        ("../a", "0"),
        ("a", "b/c"),
        ("a", "ä"),
    ] {
        assert!(EntryName::new(group, member).is_err(), "{group} {member}");
    }
    assert!(EntryName::parse("a-1.0.damaged").is_none());
    assert_eq!(EntryName::parse("a-1.0").unwrap().to_string(), "a-1.0");
}
