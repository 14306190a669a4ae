//! A read-only mount, with the real kernel.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fixture::{errno, mounted, names, pattern, wait_until};
use forebay_mount::{Counter, Passthrough};

const MIB: usize = 1 << 20;

#[test]
fn objects_are_files_and_prefixes_are_folders() {
    let Some(mounted) = mounted(|_| {}) else { return };
    let large = pattern(1, 3 * MIB + 17);
    mounted.put("a.txt", b"hello");
    mounted.put("empty", b"");
    mounted.put("deep/er/large.bin", &large);
    assert_eq!(mounted.names(""), ["a.txt", "deep", "empty"]);
    assert_eq!(mounted.names("deep"), ["er"]);
    assert_eq!(fs::read(mounted.path("a.txt")).unwrap(), b"hello");
    assert_eq!(fs::read(mounted.path("empty")).unwrap(), b"");
    assert_eq!(fs::read(mounted.path("deep/er/large.bin")).unwrap(), large);
    let found = fs::metadata(mounted.path("deep/er/large.bin")).unwrap();
    assert!(found.is_file() && found.len() == large.len() as u64);
    assert!(fs::metadata(mounted.path("deep/er")).unwrap().is_dir());
    for missing in ["b.txt", "deep/x", "a.txt/x"] {
        let expected = if missing == "a.txt/x" {
            libc::ENOTDIR
        } else {
            libc::ENOENT
        };
        assert_eq!(errno(fs::metadata(mounted.path(missing))), expected, "{missing}");
    }
    assert_eq!(
        errno(fs::metadata(mounted.path(&"x".repeat(256)))),
        libc::ENAMETOOLONG
    );
}

#[test]
fn a_prefix_is_mounted_as_the_root() {
    let Some(mounted) = mounted(|options| options.prefix = "data/train/".into()) else {
        return;
    };
    mounted.put("data/train/x/1.jpg", b"one");
    mounted.put("data/other", b"no");
    assert_eq!(mounted.names(""), ["x"]);
    assert_eq!(fs::read(mounted.path("x/1.jpg")).unwrap(), b"one");
}

#[test]
fn random_and_tail_reads_give_the_bytes_that_are_there() {
    let Some(mounted) = mounted(|_| {}) else { return };
    let bytes = pattern(2, 9 * MIB + 5);
    mounted.put("x", &bytes);
    let mut file = File::open(mounted.path("x")).unwrap();
    let mut tail = vec![0; 100];
    file.seek(SeekFrom::End(-100)).unwrap();
    file.read_exact(&mut tail).unwrap();
    assert_eq!(tail, bytes[bytes.len() - 100..]);
    for offset in [0, 1, 4095, MIB - 1, 5 * MIB + 3, 8 * MIB, 2 * MIB] {
        let mut part = vec![0; 70_000];
        file.read_exact_at(&mut part, offset as u64).unwrap();
        assert_eq!(part, bytes[offset..offset + part.len()], "{offset}");
    }
    assert_eq!(file.read_at(&mut tail, bytes.len() as u64).unwrap(), 0);
}

#[test]
fn an_open_descriptor_stays_with_its_version_and_a_new_one_sees_the_new() {
    let Some(mounted) = mounted(|_| {}) else { return };
    mounted.put("x", b"old bytes");
    let mut old = File::open(mounted.path("x")).unwrap();
    mounted.put("x", b"new and longer bytes");
    let mut new = File::open(mounted.path("x")).unwrap();
    let (mut one, mut two) = (String::new(), String::new());
    new.read_to_string(&mut two).unwrap();
    old.read_to_string(&mut one).unwrap();
    assert_eq!(
        (one.as_str(), two.as_str()),
        ("old bytes", "new and longer bytes")
    );
    assert_ne!(old.metadata().unwrap().ino(), new.metadata().unwrap().ino());
    assert_eq!(old.metadata().unwrap().len(), 9);
}

#[test]
fn a_reader_never_sees_a_mixture_or_an_error_while_an_object_is_replaced_a_thousand_times() {
    let Some(mounted) = mounted(|_| {}) else { return };
    let body = |round: usize| vec![(round % 251) as u8; 20_000 + round * 7];
    mounted.put("x", &body(0));
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                let bytes = fs::read(mounted.path("x")).unwrap();
                let round = (bytes.len() - 20_000) / 7;
                assert!(bytes == body(round), "a mixture of {} bytes", bytes.len());
                reads += 1;
            }
            reads
        });
        for round in 1..=1000 {
            mounted.put("x", &body(round));
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(reads > 0);
    assert!(fs::read(mounted.path("x")).unwrap() == body(1000));
}

#[test]
fn a_large_file_that_is_open_by_passthrough_is_a_snapshot_and_costs_no_request() {
    let passthrough = |options: &mut forebay_mount::MountOptions| options.passthrough = Passthrough::AtOpen;
    let Some(mounted) = mounted(passthrough) else {
        return;
    };
    if !forebay_mount::probe().unwrap().passthrough {
        println!("skipped: no passthrough with these rights or this kernel");
        return;
    }
    let (old, new) = (pattern(3, 17 * MIB + 3), pattern(4, 17 * MIB + 9));
    mounted.put("x", &old);
    let mut file = File::open(mounted.path("x")).unwrap();
    mounted.put("x", &new);
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == old);
    assert!(fs::read(mounted.path("x")).unwrap() == new);
    let counters = mounted.mount().counters();
    assert_eq!(
        (
            counters.get(Counter::PassthroughOpens),
            counters.get(Counter::Reads)
        ),
        (2, 0)
    );
}

#[test]
fn a_large_file_is_passed_through_after_it_was_read_once() {
    let Some(mounted) = mounted(|_| {}) else { return };
    if !forebay_mount::probe().unwrap().passthrough {
        println!("skipped: no passthrough with these rights or this kernel");
        return;
    }
    let bytes = pattern(5, 12 * MIB);
    mounted.put("x", &bytes);
    let passed = || mounted.mount().counters().get(Counter::PassthroughOpens);
    assert!(fs::read(mounted.path("x")).unwrap() == bytes);
    assert_eq!(passed(), 0);
    wait_until("the copy", || {
        assert!(fs::read(mounted.path("x")).unwrap() == bytes);
        passed() > 0
    });
}

#[test]
fn an_immutable_mount_opens_without_a_request() {
    let Some(mounted) = mounted(|options| options.immutable = true) else {
        return;
    };
    mounted.put("x", b"hello");
    for _ in 0..100 {
        assert_eq!(fs::read(mounted.path("x")).unwrap(), b"hello");
    }
    assert_eq!(mounted.mount().counters().get(Counter::Opens), 0);
    assert_eq!(mounted.mount().handles(), 0);
}

#[test]
fn ten_thousand_opens_and_closes_leave_nothing_behind() {
    let Some(mounted) = mounted(|_| {}) else { return };
    mounted.put("x", b"hello");
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    fs::read(mounted.path("x")).unwrap();
    let before = descriptors();
    for _ in 0..10_000 {
        drop(File::open(mounted.path("x")).unwrap());
    }
    wait_until("the last close", || mounted.mount().handles() == 0);
    assert!(descriptors() <= before + 4, "{before} then {}", descriptors());
}

#[test]
fn names_over_the_limit_are_taken_back_from_the_kernel() {
    let Some(mounted) = mounted(|options| {
        options.inodes_max = 50;
        options.names_ttl = Duration::from_secs(3600);
    }) else {
        return;
    };
    for file in 0..90 {
        mounted.put(&format!("folder/{file}"), b"x");
    }
    for file in 0..90 {
        // A full table is refused, and room comes soon.
        wait_until("room for a name", || {
            match fs::metadata(mounted.path(&format!("folder/{file}"))) {
                Ok(_) => true,
                Err(why) => {
                    assert_eq!(why.raw_os_error(), Some(libc::ENFILE));
                    false
                }
            }
        });
    }
    wait_until("the kernel to forget", || mounted.mount().inodes() <= 50);
    assert_eq!(fs::read(mounted.path("folder/7")).unwrap(), b"x");
}

#[test]
fn a_folder_of_a_hundred_thousand_files_is_listed_whole() {
    let Some(mounted) = mounted(|_| {}) else { return };
    mounted.put("many/first", b"x");
    // Straight into the lake: ordinary files are objects.
    let folder = mounted
        .dir
        .path()
        .join("data/lake")
        .join(fixture::BUCKET)
        .join("many");
    assert!(folder.join("first").is_file(), "where the lake keeps its objects");
    for file in 0..100_000 {
        fs::write(folder.join(format!("{file:06}.bin")), b"x").unwrap();
    }
    let listed = names(&mounted.path("many")).unwrap();
    assert_eq!(listed.len(), 100_001);
    assert_eq!(
        (listed[0].as_str(), listed[99_999].as_str()),
        ("000000.bin", "099999.bin")
    );
}

#[test]
fn a_listing_that_fails_is_an_error_and_not_an_empty_folder() {
    let Some(mut mounted) = mounted(|_| {}) else {
        return;
    };
    mounted.put("folder/x", b"x");
    assert_eq!(mounted.names("folder"), ["x"]);
    let folder = File::open(mounted.path("folder")).unwrap();
    drop(mounted.node.take());
    let number = errno(names(&mounted.path("")));
    assert!([libc::EIO, libc::ETIMEDOUT].contains(&number), "{number}");
    drop(folder);
}

#[test]
fn everything_that_would_change_something_is_refused_as_read_only() {
    let Some(mounted) = mounted(|_| {}) else { return };
    mounted.put("x", b"x");
    let x = mounted.path("x");
    assert_eq!(errno(File::create(mounted.path("new"))), libc::EROFS);
    assert_eq!(errno(OpenOptions::new().append(true).open(&x)), libc::EROFS);
    assert_eq!(errno(fs::remove_file(&x)), libc::EROFS);
    assert_eq!(errno(fs::rename(&x, mounted.path("y"))), libc::EROFS);
    assert_eq!(errno(fs::create_dir(mounted.path("d"))), libc::EROFS);
    assert_eq!(
        errno(std::os::unix::fs::symlink("x", mounted.path("l"))),
        libc::EROFS
    );
    assert_eq!(errno(fs::hard_link(&x, mounted.path("h"))), libc::EROFS);
    assert_eq!(mounted.object("x").unwrap(), b"x");
}

#[test]
fn attributes_name_the_object_its_version_and_how_it_is_read() {
    let Some(mounted) = mounted(|_| {}) else { return };
    mounted.put("a/x", b"x");
    let get = |path: &str, name: &str| {
        let mut value = [0u8; 200];
        let length = rustix::fs::getxattr(mounted.path(path), name, &mut value[..])?;
        Ok::<_, rustix::io::Errno>(String::from_utf8(value[..length].to_vec()).unwrap())
    };
    let version = mounted
        .client
        .stat(&forebay_client::Name::new("lake", "a/x").unwrap())
        .unwrap()
        .version;
    assert_eq!(get("a/x", "user.forebay.etag").unwrap(), version);
    assert_eq!(get("a/x", "user.forebay.name").unwrap(), "forebay://lake/a/x");
    assert_eq!(get("a", "user.forebay.name").unwrap(), "forebay://lake/a/");
    assert_eq!(get("a/x", "user.forebay.state").unwrap(), "lake");
    assert!(get("a/x", "user.forebay.mode").unwrap().starts_with("cached: "));
    assert_eq!(get("a/x", "user.other"), Err(rustix::io::Errno::NODATA));
}

#[test]
fn a_mount_that_is_in_use_is_detached_and_ends_with_the_last_file() {
    let Some(mut mounted) = mounted(|_| {}) else {
        return;
    };
    mounted.put("x", b"hello");
    let mut file = File::open(mounted.path("x")).unwrap();
    let mount = mounted.mount.take().unwrap();
    let ended = std::thread::scope(|scope| {
        let end = scope.spawn(|| mount.unmount(Duration::from_secs(30)));
        wait_until("the folder to be plain again", || !mounted.path("x").exists());
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "hello");
        drop(file);
        end.join().unwrap()
    });
    ended.unwrap();
}
