use forebay_wire::objects::Request;
use forebay_wire::{self as wire, FRAME_BYTES_MAX};
use tokio::io::AsyncWriteExt;

use super::*;

const LONG: Duration = Duration::from_secs(30);

fn frame(leases: Vec<u64>) -> Vec<u8> {
    let mut frame = Vec::new();
    wire::encode(&Request::Release { leases }, &mut frame).unwrap();
    frame
}

async fn next(stream: &mut FrameStream) -> Request {
    let frame = stream.next(FRAME_BYTES_MAX).await.unwrap().expect("a frame");
    wire::decode(&frame.header, frame.message).unwrap()
}

fn release(leases: Vec<u64>) -> Request {
    Request::Release { leases }
}

#[tokio::test]
async fn frames_come_out_however_they_are_cut() {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    let mut stream = FrameStream::new(stream);
    let many: Vec<u64> = (0..50_000).collect();
    let bytes = [frame(vec![1]), frame(many.clone()), frame(vec![2])].concat();
    let sent = tokio::spawn(async move {
        for part in bytes.chunks(4999) {
            peer.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
        peer
    });
    for leases in [vec![1], many, vec![2]] {
        assert_eq!(next(&mut stream).await, release(leases));
    }
    drop(sent.await.unwrap());
    assert!(stream.next(FRAME_BYTES_MAX).await.unwrap().is_none());
}

#[tokio::test]
async fn a_header_alone_takes_no_memory() {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    let mut stream = FrameStream::new(stream);
    let mut claim = frame(vec![1]);
    let length = u32::try_from(FRAME_BYTES_MAX).unwrap();
    claim[8..12].copy_from_slice(&length.to_le_bytes());
    peer.write_all(&claim).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), stream.next(FRAME_BYTES_MAX)).await;
    assert!(waited.is_err(), "the rest is missing");
    assert!(stream.input.len() <= INPUT_GROWTH_BYTES);
}

const SHORT: Duration = Duration::from_millis(50);

fn impatient(stream: UnixStream) -> FrameStream {
    let mut stream = FrameStream::new(stream);
    stream.frame_deadline = SHORT;
    stream
}

#[tokio::test]
async fn a_frame_that_drips_in_ends_by_its_deadline() {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    let mut stream = impatient(stream);
    let dripping = async {
        for byte in frame((0..100_000).collect()) {
            peer.write_all(&[byte]).await.unwrap();
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    tokio::select! {
        next = stream.next(FRAME_BYTES_MAX) => assert_eq!(next.err().unwrap().kind(), Kind::Timeout),
        () = dripping => panic!("all of it was waited for"),
    }
}

#[tokio::test]
async fn silence_between_frames_is_fine() {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    let mut stream = impatient(stream);
    peer.write_all(&frame(vec![1])).await.unwrap();
    next(&mut stream).await;
    let waited = tokio::time::timeout(SHORT * 4, stream.next(FRAME_BYTES_MAX)).await;
    assert!(waited.is_err(), "it waits");
    peer.write_all(&frame(vec![2])).await.unwrap();
    assert_eq!(next(&mut stream).await, release(vec![2]));
}

#[tokio::test]
async fn a_peer_that_goes_away_is_noticed_also_behind_further_requests() {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    let mut stream = FrameStream::new(stream);
    peer.write_all(&frame(vec![1])).await.unwrap();
    next(&mut stream).await;
    peer.write_all(&frame(vec![2])).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), stream.closed()).await;
    assert!(early.is_err(), "a request is no goodbye");
    drop(peer);
    tokio::time::timeout(LONG, stream.closed()).await.unwrap();
}

#[tokio::test]
async fn requests_that_came_while_one_was_answered_are_not_lost() {
    let (mut peer, stream) = UnixStream::pair().unwrap();
    let mut stream = FrameStream::new(stream);
    for round in 0..100 {
        peer.write_all(&frame(vec![round])).await.unwrap();
        let _ = tokio::time::timeout(Duration::from_millis(1), stream.closed()).await;
        let next = tokio::time::timeout(LONG, next(&mut stream)).await;
        assert_eq!(next.expect("it was there all the time"), release(vec![round]));
    }
}

#[tokio::test]
async fn an_answer_that_nobody_takes_fails_in_the_end() {
    let (peer, stream) = UnixStream::pair().unwrap();
    let mut stream = impatient(stream);
    let sent = stream.send(&vec![0; 64 << 20], None).await;
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(peer);
    assert!(stream.send(b"x", None).await.is_err());
}
