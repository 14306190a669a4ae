use super::*;
use crate::arena::Arena;

fn frame_with(arena: &Arc<Arena>, bytes: u64, blocks: BlockMask) -> Arc<Frame> {
    let frame = Arc::new(Frame::new(bytes));
    let mut claim = frame.claim(blocks).unwrap();
    for block in blocks.blocks() {
        let block_bytes = frame.block_bytes(block);
        let mut alone = claim.split_off(BlockMask(1 << block)).unwrap();
        for extent in arena
            .allocate(crate::TrustDomain::DEFAULT, block_bytes as u64)
            .unwrap()
        {
            alone.attach(block, extent);
        }
        let content = vec![block as u8 + 1; block_bytes];
        alone.write(block, 0, &content);
        alone.publish(block, crc32c::crc32c(&content));
    }
    frame
}

#[test]
fn a_block_is_claimed_once() {
    let frame = Arc::new(Frame::new(3 * BLOCK_BYTES));
    let first = frame.claim(BlockMask(0b011)).unwrap();
    let second = frame.claim(BlockMask(0b110)).unwrap();
    assert_eq!(
        (first.blocks(), second.blocks()),
        (BlockMask(0b011), BlockMask(0b100))
    );
    assert!(frame.claim(BlockMask(0b111)).is_none());
    drop(first);
    assert_eq!(frame.claim(BlockMask(0b111)).unwrap().blocks(), BlockMask(0b011));
}

#[test]
fn only_present_blocks_are_readable() {
    let arena = Arc::new(Arena::new(4 << 20));
    let frame = frame_with(&arena, 3 * BLOCK_BYTES, BlockMask(0b101));
    assert_eq!(frame.slice(0, BLOCK * 3).len(), BLOCK);
    assert!(frame.slice(BLOCK, BLOCK * 2).is_empty());
    assert_eq!(frame.slice(2 * BLOCK + 5, usize::MAX), &vec![3; BLOCK - 5][..]);
}

#[test]
fn a_page_holds_memory_for_claimed_blocks_only() {
    let arena = Arc::new(Arena::new(4 << 20));
    let frame = frame_with(&arena, 1 << 20, BlockMask(0b11));
    assert_eq!(arena.held_and_used_bytes().1, 2 * BLOCK_BYTES);
    drop(frame);
    assert_eq!(arena.held_and_used_bytes().1, 0);
}

#[test]
fn a_flipped_bit_is_found_in_its_block() {
    let arena = Arc::new(Arena::new(4 << 20));
    let frame = frame_with(&arena, 2 * BLOCK_BYTES + 10, BlockMask(0b111));
    assert_eq!(frame.corrupt(BlockMask(0b111)), BlockMask::EMPTY);
    assert!(frame.flip_bit(2 * BLOCK + 9));
    assert!(!frame.flip_bit(2 * BLOCK + 10));
    assert_eq!(frame.corrupt(BlockMask(0b111)), BlockMask(0b100));
}

#[test]
fn a_draft_of_unknown_size_gives_back_what_it_did_not_use() {
    let arena = Arc::new(Arena::new(4 << 20));
    let content: Vec<u8> = (0..BLOCK + 100).map(|number| number as u8).collect();
    let mut draft = Draft::new(arena.allocate(crate::TrustDomain::DEFAULT, 1 << 20).unwrap());
    for chunk in content.chunks(999) {
        assert_eq!(draft.push(chunk), chunk.len());
    }
    let frame = draft.into_frame();
    assert_eq!(frame.slice(0, usize::MAX), &content[..]);
    assert_eq!(frame.corrupt(BlockMask(0b11)), BlockMask::EMPTY);
    assert!(arena.held_and_used_bytes().1 <= BLOCK_BYTES + 4096);
}

#[test]
fn a_full_draft_takes_no_more() {
    let arena = Arc::new(Arena::new(4 << 20));
    let mut draft = Draft::new(arena.allocate(crate::TrustDomain::DEFAULT, 100).unwrap());
    assert_eq!(draft.push(&[1; 150]), 100);
    assert_eq!(draft.push(&[1; 150]), 0);
    assert_eq!(draft.into_frame().bytes(), 100);
}
