//! A remote node: batches with checksums, large reads over several connections, S3 for the rest; answers
//! that lie or break off.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is the failure of a test"
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_client::{
    Client, ClientOptions, Credentials, Entry, Item, ItemRange, ListOptions, Name, PutOptions, PutSource,
    WriteCondition,
};
use forebay_core::{Error, Kind, crc32c};
use forebay_wire::batch::{BatchFrame, BatchItem, BatchRequest};
use forebay_wire::{self as wire, Failure, FrameHeader, HEADER_BYTES, Headers, TierBytes};

/// Traffic of a connection.
struct Heard {
    method: String,
    target: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

type Answer = dyn Fn(&Heard) -> Option<Vec<u8>> + Send + Sync;

/// A server that answers with what it is told; `None` closes the connection.
struct Server {
    host: String,
    connections: Arc<AtomicUsize>,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Server {
    fn start(answer: impl Fn(&Heard) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let server = Self {
            host,
            connections: Arc::default(),
            heard: Arc::default(),
        };
        let (connections, heard) = (Arc::clone(&server.connections), Arc::clone(&server.heard));
        let answer: Arc<Answer> = Arc::new(answer);
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (answer, heard) = (Arc::clone(&answer), Arc::clone(&heard));
                std::thread::spawn(move || serve(&stream.unwrap(), &*answer, &heard));
            }
        });
        server
    }

    fn client(&self) -> Client {
        Client::connect(self.options()).unwrap()
    }

    fn options(&self) -> ClientOptions {
        ClientOptions {
            address: Some(format!("http://{}", self.host)),
            timeout: std::time::Duration::from_secs(20),
            credentials: Some(Credentials {
                access_key_id: "id".into(),
                secret_access_key: "secret".into(),
            }),
            ..ClientOptions::default()
        }
    }
}

fn serve(stream: &TcpStream, answer: &Answer, heard: &Mutex<Vec<Heard>>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = hear(&mut reader) {
        let bytes = answer(&request);
        heard.lock().unwrap().push(request);
        match bytes {
            Some(bytes) if (&*stream).write_all(&bytes).is_ok() => {}
            _ => break,
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

fn hear(reader: &mut impl BufRead) -> Option<Heard> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        headers.insert(name.to_owned(), value.to_owned());
    }
    let mut body = vec![0; headers["content-length"].parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Heard {
        method,
        target,
        headers,
        body,
    })
}

fn plain(status: &str, headers: &str, body: &str) -> Option<Vec<u8>> {
    Some(
        format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

/// In chunks of odd sizes, so that nothing in it lies together.
fn chunked(body: &[u8]) -> Vec<u8> {
    let mut all = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(70_001) {
        all.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        all.extend_from_slice(chunk);
        all.extend_from_slice(b"\r\n");
    }
    all.extend_from_slice(b"0\r\n\r\n");
    all
}

fn buckets(heard: &Heard) -> Option<Vec<u8>> {
    let list = "<ListAllMyBucketsResult><Buckets><Bucket><Name>bucket</Name></Bucket></Buckets></ListAllMyBucketsResult>";
    (heard.target == "/").then(|| plain("200 OK", "", list)).flatten()
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8 + 1)
        .flat_map(|word| (word * 0x9e37_79b9).to_le_bytes())
        .take(bytes)
        .collect()
}

fn items_of(heard: &Heard) -> Vec<Item> {
    let (header, message) = heard.body.split_first_chunk::<HEADER_BYTES>().unwrap();
    let request: BatchRequest = wire::decode(&FrameHeader::parse(header).unwrap(), message).unwrap();
    request.items
}

/// The answer of a node that has one object, `a`.
fn batch(heard: &Heard, object: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let items = items_of(heard);
    for item in &items {
        if item.object.key != "a" {
            let missing = Failure::from(&Error::new(Kind::NotFound, "there is no such object"));
            wire::encode(&BatchFrame::Failed(missing), &mut body).unwrap();
            continue;
        }
        let range = item.range.resolve(object.len() as u64).unwrap();
        let range = range.map_or(0..0, |range| range.start() as usize..range.end() as usize);
        let found = BatchItem {
            version: "v1".into(),
            object_bytes: object.len() as u64,
            offset: range.start as u64,
            bytes: range.len() as u64,
        };
        wire::encode(&BatchFrame::Found(found), &mut body).unwrap();
        for chunk in object[range].chunks(1 << 20) {
            let crc32c = crc32c::crc32c(chunk);
            let bytes = u32::try_from(chunk.len()).unwrap();
            wire::encode(&BatchFrame::Chunk { bytes, crc32c }, &mut body).unwrap();
            body.extend_from_slice(chunk);
        }
        let sources = TierBytes {
            ram: 1,
            ..TierBytes::default()
        };
        wire::encode(&BatchFrame::End(sources), &mut body).unwrap();
    }
    let items = u32::try_from(items.len()).unwrap();
    wire::encode(&BatchFrame::Done { items }, &mut body).unwrap();
    body
}

fn item(key: &str, range: ItemRange) -> Item {
    Item {
        object: name(key).to_wire(),
        range,
        version: None,
    }
}

fn name(key: &str) -> Name {
    Name::new("bucket", key).unwrap()
}

#[test]
fn a_batch_comes_in_order_with_a_result_for_each() {
    let object = content(200_000);
    let served = object.clone();
    let server = Server::start(move |heard| buckets(heard).or_else(|| Some(chunked(&batch(heard, &served)))));
    let client = server.client();
    let range = ItemRange::Range {
        offset: 100,
        length: 50,
    };
    let views = client
        .get_batch(vec![
            item("a", range),
            item("missing", ItemRange::Whole),
            item("a", ItemRange::Whole),
        ])
        .unwrap();
    assert_eq!(&views[0].as_ref().unwrap()[..], &object[100..150]);
    assert_eq!(views[1].as_ref().unwrap_err().kind(), Kind::NotFound);
    assert!(views[2].as_ref().unwrap()[..] == object[..]);
    assert_eq!(
        server.connections.load(Ordering::SeqCst),
        1,
        "the connection is kept"
    );
    let heard = server.heard.lock().unwrap();
    let batch = heard.last().unwrap();
    assert_eq!(
        (batch.method.as_str(), batch.target.as_str()),
        ("POST", "/.forebay/v1/batch")
    );
    let authorization = &batch.headers["authorization"];
    assert!(
        authorization.contains("SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date"),
        "{authorization}"
    );
}

#[test]
fn a_large_object_comes_in_ranges_and_is_whole() {
    let object = content((40 << 20) + 17);
    let served = object.clone();
    let server = Server::start(move |heard| buckets(heard).or_else(|| Some(chunked(&batch(heard, &served)))));
    let client = server.client();
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    assert!(view[..] == object[..]);
    assert_eq!((view.version(), view.object_bytes()), ("v1", object.len() as u64));
    let asked = server
        .heard
        .lock()
        .unwrap()
        .iter()
        .filter(|heard| heard.method == "POST")
        .count();
    assert_eq!(asked, 3);
    let mut target = vec![0; 50 << 20];
    let read = client.read_into(&name("a"), 5, &mut target).unwrap();
    assert!(target[..read] == object[5..]);
    let mut part = vec![0; 1000];
    assert_eq!(client.read_into(&name("a"), 7, &mut part).unwrap(), 1000);
    assert_eq!(part, object[7..1007]);
    assert_eq!(
        client
            .read_into(&name("a"), object.len() as u64, &mut part)
            .unwrap(),
        0
    );
    let handle = client.get(&name("a"), ItemRange::Last(9), None).unwrap().handle();
    assert_eq!(
        &client.open_handle(&handle).unwrap()[..],
        &object[object.len() - 9..]
    );
}

#[test]
fn an_interrupted_large_read_ends_soon_although_only_its_own_thread_hears_of_it() {
    let object = content(80 << 20);
    let served = object.clone();
    let stalled = Arc::new(AtomicUsize::new(0));
    let stalling = Arc::clone(&stalled);
    let server = Server::start(move |heard| {
        let first = || matches!(items_of(heard)[0].range, ItemRange::Range { offset: 0, .. });
        if heard.target != "/" && !first() {
            stalling.fetch_add(1, Ordering::SeqCst);
            std::thread::park_timeout(std::time::Duration::from_secs(60));
        }
        buckets(heard).or_else(|| Some(chunked(&batch(heard, &served))))
    });
    let caller = std::thread::current().id();
    let all_stalled = Arc::clone(&stalled);
    // As in Python, where a signal is noticed by the main thread alone.
    let interrupt = move || std::thread::current().id() == caller && all_stalled.load(Ordering::SeqCst) == 4;
    let client = Client::connect(ClientOptions {
        interrupt: Some(Arc::new(interrupt)),
        ..server.options()
    })
    .unwrap();
    let start = std::time::Instant::now();
    let error = client.get(&name("a"), ItemRange::Whole, None).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
    assert!(
        start.elapsed() < server.options().timeout,
        "nobody waited for the silent node"
    );
}

#[test]
fn wrong_bytes_and_answers_that_break_off_are_never_views() {
    let object = content(50_000);
    let whole = {
        let mut frame = Vec::new();
        let read = BatchRequest {
            items: vec![item("a", ItemRange::Whole)],
            timeout_ms: 1,
        };
        wire::encode(&read, &mut frame).unwrap();
        let heard = Heard {
            method: "POST".into(),
            target: String::new(),
            headers: HashMap::new(),
            body: frame,
        };
        batch(&heard, &object)
    };
    for (what, spoil) in [("flipped", 0), ("cut", 1), ("short chunked", 2)] {
        let whole = whole.clone();
        let server = Server::start(move |heard| {
            buckets(heard).or_else(|| {
                let mut body = whole.clone();
                let middle = body.len() / 2;
                match spoil {
                    0 => body[middle] ^= 1,
                    1 => body.truncate(middle),
                    _ => return Some(chunked(&body)[..middle].to_vec()).filter(|_| heard.method == "none"),
                }
                Some(chunked(&body))
            })
        });
        let error = server
            .client()
            .get(&name("a"), ItemRange::Whole, None)
            .unwrap_err();
        let kinds = [Kind::Corrupt, Kind::Checksum, Kind::Unavailable];
        assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
    }
}

#[test]
fn a_put_carries_a_checksum_and_its_condition() {
    let server = Server::start(|heard| match heard.method.as_str() {
        "PUT" if heard.headers.contains_key("if-none-match") => plain(
            "412 Precondition Failed",
            "",
            "<Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>",
        ),
        "PUT" => plain("200 OK", "etag: \"v2\"\r\n", ""),
        _ => buckets(heard),
    });
    let client = server.client();
    let mut buffer = client.alloc(12).unwrap();
    buffer.copy_from_slice(b"hello, world");
    buffer.truncate(5);
    let options = PutOptions {
        metadata: vec![("Who".into(), "me".into())],
        headers: Headers {
            content_type: Some("text/plain".into()),
            content_encoding: Some("identity".into()),
            ..Headers::default()
        },
        ..PutOptions::default()
    };
    let receipt = client
        .put(&name("a b"), PutSource::Buffer(buffer), options)
        .unwrap();
    assert_eq!((receipt.version.as_str(), receipt.bytes), ("v2", 5));
    {
        let heard = server.heard.lock().unwrap();
        let put = heard.last().unwrap();
        assert_eq!(
            (put.target.as_str(), put.body.as_slice()),
            ("/bucket/a%20b", b"hello".as_slice())
        );
        assert_eq!(put.headers["x-amz-checksum-crc32c"], "mnG7TA==");
        assert_eq!(put.headers["x-amz-meta-who"], "me");
    }
    let options = PutOptions {
        condition: WriteCondition::Absent,
        ..PutOptions::default()
    };
    let error = client
        .put(&name("a"), PutSource::Slice(b"x"), options)
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (Kind::PreconditionFailed, "it is there")
    );
}

#[test]
fn metadata_listings_and_refusals_are_understood() {
    let server = Server::start(|heard| {
        match (heard.method.as_str(), heard.target.as_str()) {
        ("HEAD", "/bucket/a") => Some(
            b"HTTP/1.1 200 OK\r\ncontent-length: 77\r\netag: \"v7\"\r\nlast-modified: Thu, 01 Jan 1970 00:00:09 GMT\r\nx-amz-meta-who: me\r\n\r\n"
                .to_vec(),
        ),
        ("HEAD", _) => Some(b"HTTP/1.1 404 Not Found\r\ncontent-length: 99\r\n\r\n".to_vec()),
        ("DELETE", _) => Some(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        ("PUT", "/bucket") => plain("409 Conflict", "", "<Error><Code>BucketAlreadyOwnedByYou</Code></Error>"),
        ("GET", "/bucket?encoding-type=url&list-type=2&prefix=p%2F") => plain(
            "200 OK",
            "",
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
             <Contents><Key>p%2F1</Key><Size>3</Size><ETag>\"e\"</ETag></Contents></ListBucketResult>",
        ),
        ("GET", "/bucket?continuation-token=t&encoding-type=url&list-type=2&prefix=p%2F") => plain(
            "200 OK",
            "",
            "<ListBucketResult><IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>p%2F2%2F</Prefix></CommonPrefixes></ListBucketResult>",
        ),
        _ => buckets(heard),
    }
    });
    let client = server.client();
    assert_eq!(client.buckets().unwrap(), ["bucket"]);
    let stat = client.stat(&name("a")).unwrap();
    assert_eq!((stat.bytes, stat.version.as_str(), stat.modified), (77, "v7", 9));
    assert_eq!(stat.metadata, [("who".to_owned(), "me".to_owned())]);
    assert_eq!(client.stat(&name("b")).unwrap_err().kind(), Kind::NotFound);
    client.delete(&name("a")).unwrap();
    client.create_bucket("bucket").unwrap();
    let options = ListOptions {
        prefix: "p/".into(),
        ..ListOptions::default()
    };
    let entries: Vec<Entry> = client
        .list("bucket", options)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(matches!(&entries[0], Entry::Object(object) if object.key == "p/1" && object.bytes == 3));
    assert_eq!(entries[1], Entry::Prefix("p/2/".into()));
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn no_node_or_another_kind_of_server_is_said_clearly() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = ClientOptions {
        address: Some(format!("http://{closed}")),
        ..ClientOptions::default()
    };
    assert_eq!(Client::connect(options).unwrap_err().kind(), Kind::Unavailable);
    let server = Server::start(|_| Some(b"SSH-2.0-OpenSSH_9\r\n".to_vec()));
    assert_eq!(
        Client::connect(server.options()).unwrap_err().kind(),
        Kind::Corrupt
    );
    let denied = Server::start(|_| {
        plain(
            "403 Forbidden",
            "",
            "<Error><Code>InvalidAccessKeyId</Code></Error>",
        )
    });
    let error = Client::connect(denied.options()).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("FOREBAY_ACCESS_KEY_ID"), "{error}");
}

#[test]
fn a_kept_connection_that_the_node_closed_is_replaced() {
    let server = Server::start(|heard| match heard.method.as_str() {
        // Closes after its answer without having said so.
        "DELETE" => plain("500 Oops", "connection: close\r\n", ""),
        _ => buckets(heard),
    });
    let client = server.client();
    assert_eq!(client.delete(&name("a")).unwrap_err().kind(), Kind::Unavailable);
    client.ping().unwrap();
    client.ping().unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}
