//! Documents that another node removes or replaces between the look at them and the read.

use forebay_lake::{Fault, Lake, Operation, PutOptions};

use super::*;
use crate::testing::{World, eventually};

const PATH: &str = "steps/1/record";

/// The document in the lake itself, past the node that reads it.
fn key() -> ObjectKey {
    ObjectKey::new(&format!("lake/run/{PATH}")).unwrap()
}

/// Reads the document, which `others` touch after it was found and before its bytes are there.
async fn read_while(world: &World, others: impl AsyncFnOnce()) -> Option<Vec<u8>> {
    let lake = world.lake();
    lake.put(PATH, &[Bytes::from_static(b"old")]).await.unwrap();
    world.faulty.script(Operation::Get, Fault::Stall);
    let (read, ()) = tokio::join!(lake.read(PATH), async {
        eventually("the document was found", async || world.faulty.stalled() == 1).await;
        others().await;
        world.faulty.release();
    });
    assert_eq!(world.faulty.hits(), 1);
    read.unwrap()
}

#[tokio::test]
async fn a_record_that_is_removed_while_it_is_read_is_not_there() {
    let world = World::new().await;
    let read = read_while(&world, async || world.faulty.delete(&key()).await.unwrap()).await;
    assert_eq!(read, None);
}

#[tokio::test]
async fn a_record_that_is_replaced_while_it_is_read_is_the_new_one() {
    let world = World::new().await;
    let read = read_while(&world, async || {
        let options = PutOptions::default();
        let new = Bytes::from_static(b"the new one");
        world.faulty.put(&key(), new, options).await.unwrap();
    })
    .await;
    assert_eq!(read.as_deref(), Some(&b"the new one"[..]));
}

#[tokio::test]
async fn a_record_that_is_found_and_never_read_is_an_error() {
    let world = World::new().await;
    let lake = world.lake();
    lake.put(PATH, &[Bytes::from_static(b"old")]).await.unwrap();
    world
        .faulty
        .random(Operation::Get, 1.0, Fault::Error(Kind::NotFound));
    assert_eq!(lake.read(PATH).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(world.faulty.hits(), LOOKS_MAX as usize);
}
