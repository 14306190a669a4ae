//! Peers that lie or fall silent in the middle: their damage is a miss with a name.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A peer that answers every request with these bytes, after a head that promises blocks.
fn hostile_peer(network: &Network, id: NodeId, answer: Vec<u8>, then_silent: bool) {
    let (mut listener, connector) = Listener::in_memory();
    network.doors.lock().insert(id, connector);
    tokio::spawn(async move {
        while let Ok(mut stream) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                let _ = stream.write_all(head).await;
                let _ = stream
                    .write_all(format!("{:x}\r\n", answer.len()).as_bytes())
                    .await;
                let _ = stream.write_all(&answer).await;
                let _ = stream.write_all(b"\r\n").await;
                if then_silent {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
}

fn block_frame(bytes: &[u8], crc32c: u32) -> Vec<u8> {
    let mut frame = vec![b'B'];
    frame.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
    frame.extend_from_slice(&crc32c.to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_a_peer_is_a_miss_with_a_name() {
    let good: Vec<u8> = (0..64 << 10).map(byte_at).collect();
    let crc = forebay_core::crc32c::crc32c(&good);
    let mut flipped = good.clone();
    flipped[1234] ^= 4;
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("flipped bit", block_frame(&flipped, crc)),
        (
            "second block flipped",
            [block_frame(&good, crc), block_frame(&flipped, crc)].concat(),
        ),
        ("oversized frame", b"B\xff\xff\xff\xff\0\0\0\0".to_vec()),
        (
            "short block",
            block_frame(&good[..100], forebay_core::crc32c::crc32c(&good[..100])),
        ),
        ("no frame", b"hello".to_vec()),
        ("ends at once", b"E".to_vec()),
    ];
    for (what, answer) in hostile {
        let cluster = TestCluster::start(2).await;
        let object = owned_by(&cluster, 0, MIB);
        hostile_peer(&cluster.network, cluster.members[0].id, answer, false);
        read(&cluster.nodes[1], &object, 0, object.bytes).await;
        assert!(cluster.fallbacks(1, FallbackReason::Damaged) > 0, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_silent_in_the_middle_costs_a_moment() {
    let good: Vec<u8> = (0..64 << 10).map(byte_at).collect();
    let crc = forebay_core::crc32c::crc32c(&good);
    let cluster = TestCluster::with(2, IMPATIENT, |_| meaning("lake")).await;
    let object = owned_by(&cluster, 0, MIB);
    hostile_peer(
        &cluster.network,
        cluster.members[0].id,
        block_frame(&good, crc),
        true,
    );
    tokio::time::timeout(
        Duration::from_secs(40),
        read(&cluster.nodes[1], &object, 0, object.bytes),
    )
    .await
    .expect("the lake is asked");
    assert_eq!(cluster.fallbacks(1, FallbackReason::Silent), 1);
    assert_eq!(
        cluster.lake_bytes(),
        object.bytes - (64 << 10),
        "what came before the silence counts"
    );
}
