//! `POST /.forebay/v1/batch`: order, results of single items, who may, and what hostile bodies get.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use fixture::{Call, Reply, Server};
use forebay_core::{ByteRange, Error, Kind, Result};
use forebay_engine::{Engine, ObjectInfo};
use forebay_lake::{Fault, FaultHook, Faulty, MemoryLake, Operation};
use forebay_s3::{Access, AccessKey, Buckets, MemberIndex};
use forebay_wire::batch::{BATCH_PATH, BatchDecoder, BatchEvent, BatchItem, BatchRequest};
use forebay_wire::session;
use forebay_wire::{self as wire, BATCH_ITEMS_MAX, Failure, Item, ItemRange, ObjectName, TierBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn item(key: &str, range: ItemRange) -> Item {
    let object = ObjectName {
        bucket: "bucket".into(),
        key: key.into(),
    };
    Item {
        object,
        range,
        version: None,
    }
}

fn whole(key: &str) -> Item {
    item(key, ItemRange::Whole)
}

fn frame(items: Vec<Item>) -> Vec<u8> {
    let mut frame = Vec::new();
    let request = BatchRequest { items, timeout_ms: 0 };
    wire::encode(&request, &mut frame).unwrap();
    frame
}

fn call(server: &Server, items: Vec<Item>) -> Call {
    server.call("POST", BATCH_PATH).body(&frame(items))
}

type Got = std::result::Result<(BatchItem, Vec<u8>, TierBytes), Failure>;

/// The body without HTTP's chunks; it must have come to its end.
fn unchunk(reply: &Reply) -> Vec<u8> {
    assert_eq!(reply.get("transfer-encoding"), Some("chunked"));
    let (mut body, mut out) = (reply.body.as_slice(), Vec::new());
    loop {
        let line = body.windows(2).position(|two| two == b"\r\n").expect("a chunk");
        let size = std::str::from_utf8(&body[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        body = &body[line + 2..];
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&body[..size]);
        body = &body[size + 2..];
    }
}

fn read(answer: &[u8], items: usize) -> Vec<Got> {
    let mut decoder = BatchDecoder::new(items);
    let mut input = answer;
    let (mut got, mut current) = (Vec::new(), None);
    while let Some(event) = decoder.next(&mut input).unwrap() {
        match event {
            BatchEvent::Found(item) => current = Some((item, Vec::new())),
            BatchEvent::Bytes(bytes) => current.as_mut().unwrap().1.extend_from_slice(bytes),
            BatchEvent::End(sources) => {
                let (item, bytes) = current.take().unwrap();
                got.push(Ok((item, bytes, sources)));
            }
            BatchEvent::Failed(failure) => got.push(Err(failure)),
            BatchEvent::Done => {}
        }
    }
    assert!(decoder.is_done());
    got
}

async fn batch(server: &Server, items: Vec<Item>) -> Vec<Got> {
    let count = items.len();
    let reply = call(server, items).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    read(&unchunk(&reply), count)
}

#[track_caller]
fn bytes_of(got: &Got) -> &[u8] {
    &got.as_ref().unwrap().1
}

#[track_caller]
fn kind_of(got: &Got) -> &str {
    &got.as_ref().unwrap_err().kind
}

fn random(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u32 | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

#[tokio::test]
async fn items_come_in_order_each_with_its_own_result() {
    let server = Server::start().await;
    let large = random(5 << 20);
    server.put("large", &large).await;
    server.put("small", b"0123456789").await;
    server.put("empty", b"").await;
    let range = |offset, length| ItemRange::Range { offset, length };
    let items = vec![
        whole("large"),
        item("small", range(2, 3)),
        whole("missing"),
        item("small", ItemRange::Last(4)),
        whole("empty"),
        item("large", range(1_000_000, 3_000_000)),
        item("small", range(8, 100)),
        item("small", range(11, 1)),
    ];
    let got = batch(&server, items).await;
    assert_eq!(bytes_of(&got[0]), large);
    assert_eq!(bytes_of(&got[1]), b"234");
    assert_eq!(kind_of(&got[2]), "not_found");
    assert_eq!(bytes_of(&got[3]), b"6789");
    assert_eq!(bytes_of(&got[4]), b"");
    assert_eq!(bytes_of(&got[5]), &large[1_000_000..4_000_000]);
    assert_eq!(bytes_of(&got[6]), b"89");
    assert_eq!(kind_of(&got[7]), "out_of_range");
    let found = &got[1].as_ref().unwrap();
    assert_eq!((found.0.offset, found.0.bytes, found.0.object_bytes), (2, 3, 10));
    assert_eq!(found.2.ram + found.2.lake, 3);
}

#[tokio::test]
async fn cold_items_are_fetched() {
    let lake = Arc::new(MemoryLake::new());
    let first = Server::start_on(lake.clone(), |_| {}).await;
    let content = random(300_000);
    first.put("cold", &content).await;
    // Another node on the same lake: nothing is cached there.
    let second = Server::start_on(lake, |_| {}).await;
    let got = batch(&second, vec![whole("cold"), whole("cold")]).await;
    assert_eq!(bytes_of(&got[0]), content);
    assert_eq!(bytes_of(&got[1]), content);
    assert!(got[0].as_ref().unwrap().2.lake > 0);
}

#[tokio::test]
async fn a_batch_may_have_8192_items_and_no_more() {
    let server = Server::start().await;
    server.put("k", &random(10_000)).await;
    let content = random(10_000);
    let items = (0..BATCH_ITEMS_MAX as u64).map(|number| {
        let offset = number % 9000;
        item("k", ItemRange::Range { offset, length: 50 })
    });
    let items: Vec<Item> = items.collect();
    let got = batch(&server, items.clone()).await;
    for (number, got) in got.iter().enumerate() {
        let offset = number % 9000;
        assert_eq!(bytes_of(got), &content[offset..offset + 50]);
    }
    let mut more = items;
    more.push(whole("k"));
    call(&server, more)
        .send()
        .await
        .expect_error(400, "InvalidRequest");
}

#[tokio::test]
async fn no_items_are_an_empty_answer() {
    let server = Server::start().await;
    assert!(batch(&server, Vec::new()).await.is_empty());
}

#[tokio::test]
async fn strangers_and_wrong_signatures_get_nothing() {
    let server = Server::start_with(|options| {
        options.public_read = [forebay_core::BucketName::new("bucket").unwrap()].into();
    })
    .await;
    server.put("k", b"secret").await;
    let anonymous = call(&server, vec![whole("k")]).anonymous().send().await;
    anonymous.expect_error(403, "AccessDenied");
    let wrong = call(&server, vec![whole("k")])
        .key(fixture::KEY, "wrong")
        .send()
        .await;
    wrong.expect_error(403, "SignatureDoesNotMatch");
    let unknown = call(&server, vec![whole("k")])
        .key("nobody", "wrong")
        .send()
        .await;
    assert_eq!(unknown.status, 403);
}

#[tokio::test]
async fn a_body_that_was_changed_on_the_way_is_refused() {
    let server = Server::start().await;
    let claimed = call(&server, vec![whole("k")])
        .signer(|signer| signer.payload = fixture::Payload::Claimed("0".repeat(64)))
        .send()
        .await;
    assert_eq!(claimed.status, 400, "{}", claimed.text());
}

#[tokio::test]
async fn a_key_reads_in_its_buckets_only() {
    let server = Server::start().await;
    assert_eq!(server.call("PUT", "/other").send().await.status, 200);
    server.put("k", b"mine").await;
    let name = |name: &str| forebay_core::BucketName::new(name).unwrap();
    server.keys.replace([
        AccessKey::full(fixture::KEY, fixture::SECRET),
        AccessKey {
            id: "reader".into(),
            secret: "s".into(),
            access: Access::ReadOnly,
            buckets: Buckets::Only([name("bucket")].into()),
        },
    ]);
    let mut foreign = whole("k");
    foreign.object.bucket = "other".into();
    let reply = call(&server, vec![foreign, whole("k")])
        .key("reader", "s")
        .send()
        .await;
    let got = read(&unchunk(&reply), 2);
    assert_eq!(kind_of(&got[0]), "denied");
    assert_eq!(bytes_of(&got[1]), b"mine");
}

#[tokio::test]
async fn bad_frames_are_the_clients_error() {
    let server = Server::start().await;
    let good = frame(vec![whole("k")]);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut longer = good.clone();
    longer.push(0);
    let mut ping = Vec::new();
    wire::encode(&session::Request::Ping, &mut ping).unwrap();
    let mut future = good.clone();
    future[4] = 99;
    let huge = b"FBAY\x01\0\0\0\xff\xff\xff\xff\0\0\0\0".to_vec();
    for bad in [
        Vec::new(),
        b"GET".to_vec(),
        good[..20].to_vec(),
        flipped,
        longer,
        ping,
        future,
        huge,
    ] {
        let reply = server.call("POST", BATCH_PATH).body(&bad).send().await;
        reply.expect_error(400, "InvalidRequest");
    }
}

#[tokio::test]
async fn a_body_past_the_limit_is_refused_before_it_is_read() {
    let server = Server::start().await;
    let long = server
        .call("POST", BATCH_PATH)
        .header("content-length", &(64_u64 << 20).to_string())
        .signer(|signer| signer.payload = fixture::Payload::Unsigned);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&long.wire()).await.unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 400");
}

#[tokio::test]
async fn other_methods_on_the_path_are_no_batch() {
    let server = Server::start().await;
    for method in ["GET", "PUT", "DELETE"] {
        let reply = server.call(method, BATCH_PATH).send().await;
        reply.expect_error(400, "InvalidBucketName");
    }
}

#[tokio::test]
async fn names_that_cannot_be_are_failures_of_their_item() {
    let server = Server::start().await;
    server.put("k", b"x").await;
    let mut no_bucket = whole("k");
    no_bucket.object.bucket = "x".repeat(1 << 20);
    let items = vec![
        no_bucket,
        whole(""),
        whole(&"k".repeat(5000)),
        item("k", ItemRange::Member("m".repeat(1 << 20))),
        whole(".forebay/uploads/x"),
        whole("k"),
    ];
    let got = batch(&server, items).await;
    for bad in &got[..4] {
        assert_eq!(kind_of(bad), "invalid_input");
    }
    assert_eq!(kind_of(&got[4]), "not_found");
    assert_eq!(bytes_of(&got[5]), b"x");
}

#[tokio::test]
async fn a_version_that_is_gone_is_said_to_be() {
    let server = Server::start().await;
    let old = server
        .put("k", b"old")
        .await
        .get("etag")
        .unwrap()
        .trim_matches('"')
        .to_owned();
    let pinned = Item {
        version: Some(old),
        ..whole("k")
    };
    assert_eq!(bytes_of(&batch(&server, vec![pinned.clone()]).await[0]), b"old");
    server.put("k", b"newer").await;
    let got = batch(&server, vec![pinned, whole("k")]).await;
    assert_eq!(kind_of(&got[0]), "changed");
    assert_eq!(bytes_of(&got[1]), b"newer");
}

/// A shard whose member `a` is its bytes 2..4 and whose member `empty` has none.
#[derive(Debug)]
struct Shards;

#[async_trait::async_trait]
impl MemberIndex for Shards {
    async fn member_range(&self, _: &Engine, object: &ObjectInfo, name: &str) -> Result<Option<ByteRange>> {
        assert_eq!(object.key.as_str(), "shard.tar");
        match name {
            "a" => ByteRange::new(2, 4).map(Some),
            "empty" => Ok(None),
            _ => Err(Error::new(Kind::NotFound, "the archive has no such member").with("member", name)),
        }
    }
}

#[tokio::test]
async fn members_of_shards_are_items() {
    let member = |name: &str| item("shard.tar", ItemRange::Member(name.into()));
    let server = Server::start_with(|options| options.members = Some(Arc::new(Shards))).await;
    server.put("shard.tar", b"0123456789").await;
    let got = batch(&server, vec![member("a"), member("empty"), member("b")]).await;
    assert_eq!(bytes_of(&got[0]), b"23");
    assert_eq!(got[0].as_ref().unwrap().0.offset, 2);
    assert_eq!(bytes_of(&got[1]), b"");
    assert_eq!(kind_of(&got[2]), "not_found");
    let without = Server::start().await;
    without.put("shard.tar", b"0123456789").await;
    assert_eq!(
        kind_of(&batch(&without, vec![member("a")]).await[0]),
        "unsupported"
    );
}

#[tokio::test]
async fn an_item_that_breaks_off_says_so_and_the_next_one_is_whole() {
    let memory = Arc::new(MemoryLake::new());
    let writer = Server::start_on(memory.clone(), |_| {}).await;
    writer.put("large", &random(12 << 20)).await;
    writer.put("small", b"fine").await;
    let lake = Faulty::new(memory, 1);
    let server = Server::start_on(Arc::new(lake.clone()), |_| {}).await;
    assert_eq!(bytes_of(&batch(&server, vec![whole("small")]).await[0]), b"fine");
    // The object is replaced in its middle, long after the answer has begun: the lake is read in steps of 1
    // MiB.
    let replace = writer.call("PUT", "/bucket/large").body(b"short");
    for step in 0..7 {
        let call = (step == 6).then(|| replace.clone());
        let hook: FaultHook = Arc::new(move || {
            let call = call.clone();
            Box::pin(async move {
                if let Some(call) = call {
                    assert_eq!(call.send().await.status, 200);
                }
            })
        });
        let after_bytes = 0;
        lake.script(Operation::Get, Fault::Hook { after_bytes, hook });
    }
    let reply = call(&server, vec![whole("large"), whole("small")]).send().await;
    let answer = unchunk(&reply);
    assert!(answer.len() > 2 << 20, "{}", answer.len());
    let got = read(&answer, 2);
    assert_eq!(kind_of(&got[0]), "changed");
    assert_eq!(bytes_of(&got[1]), b"fine");
}

#[tokio::test]
async fn an_item_that_takes_too_long_fails_alone() {
    let memory = Arc::new(MemoryLake::new());
    let writer = Server::start_on(memory.clone(), |_| {}).await;
    writer.put("slow", b"slow").await;
    writer.put("quick", b"quick").await;
    let lake = Faulty::new(memory, 1);
    let server = Server::start_on(Arc::new(lake.clone()), |_| {}).await;
    let mut request = Vec::new();
    let items = vec![whole("slow"), whole("quick")];
    wire::encode(
        &BatchRequest {
            items,
            timeout_ms: 200,
        },
        &mut request,
    )
    .unwrap();
    lake.script(Operation::Get, Fault::Stall);
    let reply = server.call("POST", BATCH_PATH).body(&request).send().await;
    let got = read(&unchunk(&reply), 2);
    let kinds: Vec<_> = got
        .iter()
        .map(|got| got.as_ref().map_err(|failure| failure.kind.as_str()))
        .collect();
    // Whichever of the two was first at the lake waits; the other does not.
    let late = kinds.iter().filter(|kind| matches!(kind, Err("timeout"))).count();
    assert_eq!((late, kinds.iter().filter(|kind| kind.is_ok()).count()), (1, 1));
    lake.release();
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_batch() {
    let server = Server::start().await;
    server.put("large", &random(8 << 20)).await;
    let items = (0..1000).map(|_| whole("large")).collect();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&call(&server, items).wire()).await.unwrap();
    let mut start = [0; 4096];
    stream.read_exact(&mut start).await.unwrap();
    assert!(server.edge.in_flight().requests >= 1);
    drop(stream);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while server.edge.in_flight().requests > 0 {
        assert!(tokio::time::Instant::now() < deadline, "the batch goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
