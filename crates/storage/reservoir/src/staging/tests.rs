use rustix::mm::{MapFlags, ProtFlags};

use super::*;

const MIB: u64 = 1 << 20;

/// Writes as a client does: through a mapping of its own.
#[allow(unsafe_code, reason = "a client's mapping")]
fn write_as_client(buffer: &StagingBuffer, byte: u8) {
    let bytes = usize::try_from(buffer.mapped_bytes()).unwrap();
    // SAFETY: a fresh mapping of the whole memfd, used and unmapped here.
    unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let address = rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            access,
            MapFlags::SHARED,
            buffer.fd(),
            0,
        );
        let address = address.unwrap();
        std::ptr::write_bytes(address.cast::<u8>(), byte, bytes);
        rustix::mm::munmap(address, bytes).unwrap();
    }
}

#[test]
fn what_the_client_wrote_is_put_without_a_copy_and_the_buffer_comes_back() {
    let staging = Staging::new(16 * MIB);
    let buffer = staging.allocate(7, 3 * MIB).unwrap();
    assert_eq!((buffer.bytes(), buffer.mapped_bytes()), (3 * MIB, 4 * MIB));
    write_as_client(&buffer, 9);
    let address = buffer.owned().segment.front(1).as_ptr();
    let bytes = buffer.freeze(3 * MIB - 5);
    assert_eq!(bytes.len() as u64, 3 * MIB - 5);
    assert_eq!(bytes.as_ptr(), address);
    assert!(bytes.iter().all(|byte| *byte == 9));
    let part = bytes.slice(10..20);
    drop(bytes);
    assert_eq!(staging.stats().lent_buffers, 1, "a clone still holds it");
    drop(part);
    assert_eq!(staging.stats().lent_bytes, 0);
}

#[test]
fn the_same_user_gets_the_same_memfd_again() {
    let staging = Staging::new(16 * MIB);
    let first = staging.allocate(7, 4 * MIB).unwrap();
    write_as_client(&first, 1);
    let id = first.id();
    drop(first);
    let second = staging.allocate(7, 3 * MIB).unwrap();
    assert_eq!(second.id(), id);
    // Its memory is the old one: nothing has to be faulted in.
    assert_eq!(second.owned().segment.front(1), [1]);
    assert_eq!((staging.stats().allocations, staging.stats().reuses), (2, 1));
}

#[test]
fn another_user_never_gets_it() {
    let staging = Staging::new(4 * MIB);
    let first = staging.allocate(7, 4 * MIB).unwrap();
    write_as_client(&first, 1);
    let (id, memory) = (first.id(), Arc::clone(&first.owned().segment));
    drop(first);
    let second = staging.allocate(8, 4 * MIB).unwrap();
    assert_ne!(second.id(), id);
    assert_eq!(second.owned().segment.front(1), [0]);
    // The old memory is free although somebody still maps it.
    assert_eq!(memory.front(1), [0]);
    assert_eq!(staging.stats().held_bytes, 4 * MIB);
}

#[test]
fn a_full_arena_is_busy_until_something_comes_back() {
    let staging = Staging::new(8 * MIB);
    let first = staging.allocate(7, 4 * MIB).unwrap();
    let _second = staging.allocate(8, 4 * MIB).unwrap();
    let refused = staging.allocate(7, 1).unwrap_err();
    assert_eq!((refused.kind(), refused.is_retryable()), (Kind::Busy, true));
    drop(first);
    assert!(staging.allocate(9, 4 * MIB).is_ok());
    assert_eq!(staging.stats().refusals, 1);
}

#[test]
fn a_buffer_larger_than_the_arena_is_refused_for_good() {
    let staging = Staging::new(8 * MIB);
    for bytes in [8 * MIB + 1, u64::MAX - 5, u64::MAX] {
        let refused = staging.allocate(7, bytes).unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidInput);
    }
    assert_eq!(staging.stats(), StagingStats::default());
}

#[test]
fn a_client_cannot_shrink_a_buffer_under_the_node() {
    let staging = Staging::new(8 * MIB);
    let buffer = staging.allocate(7, MIB).unwrap();
    assert!(rustix::fs::ftruncate(buffer.fd(), 0).is_err());
    assert!(rustix::fs::fcntl_add_seals(buffer.fd(), rustix::fs::SealFlags::WRITE).is_err());
}

#[test]
fn what_is_held_never_exceeds_the_budget() {
    let (staging, mut random) = (Staging::new(32 * MIB), fastrand::Rng::with_seed(3));
    let mut lent = Vec::new();
    for _ in 0..500 {
        if random.bool() || lent.is_empty() {
            match staging.allocate(random.u32(..3), random.u64(1..6 * MIB)) {
                Ok(buffer) => lent.push(buffer),
                Err(error) => assert_eq!(error.kind(), Kind::Busy),
            }
        } else {
            lent.swap_remove(random.usize(..lent.len()));
        }
        let stats = staging.stats();
        let sum: u64 = lent.iter().map(StagingBuffer::mapped_bytes).sum();
        assert!(stats.held_bytes <= 32 * MIB && stats.lent_bytes == sum);
    }
}
