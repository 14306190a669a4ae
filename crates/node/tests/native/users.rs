//! Processes of other users. Becoming somebody else needs root; without it these tests are skipped.
//!
//! The other user is this same test program, started again under another user id: [`as_another_user`] is what
//! it runs.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay_node::config::Config;
use forebay_node::{Node, options::NodeOptions};
use forebay_wire::objects::Handle;
use forebay_wire::{Item, ItemRange, ObjectName};
use forebay_wire::{objects, session};

use crate::fixture::{Client, LONG, connect, lease_of, receive};

const GUEST: u32 = 61_001;
const PARTNER: u32 = 61_002;
const STRANGER: u32 = 61_003;
const SOCKET: &str = "FOREBAY_TEST_SOCKET";
const STORY: &str = "FOREBAY_TEST_STORY";

/// Runs in the other process only.
#[test]
fn as_another_user() {
    let (Ok(socket), Ok(story)) = (std::env::var(SOCKET), std::env::var(STORY)) else {
        return;
    };
    let words: Vec<&str> = story.split(' ').collect();
    match words[..] {
        ["stranger"] => match receive::<session::Answer>(&mut connect(socket.as_ref())) {
            Some((Err(failure), None)) => assert_eq!(failure.kind, "denied"),
            other => panic!("{other:?}"),
        },
        ["guest"] => check_buckets(&mut Client::hello(socket.as_ref()), "open", "closed"),
        ["partner", segment, generation, lease] => {
            let mut client = Client::hello(socket.as_ref());
            check_buckets(&mut client, "closed", "open");
            let failure = client.map(segment.parse().unwrap()).unwrap_err();
            assert_eq!(failure.kind, "not_found", "memory of the other bucket");
            let handle = Handle {
                generation: generation.parse().unwrap(),
                lease: lease.parse().unwrap(),
            };
            let adopted = client.ask(&objects::Request::Adopt {
                handles: vec![handle],
            });
            assert_eq!(adopted, Ok(objects::Answer::Adopted(vec![false])));
        }
        _ => panic!("{story}"),
    }
}

/// The one bucket can be read, the other not even be seen.
fn check_buckets(client: &mut Client, mine: &str, other: &str) {
    assert_eq!(
        client.ask(&objects::Request::Buckets),
        Ok(objects::Answer::Buckets(vec![mine.into()]))
    );
    let found = client.read(vec![item(mine)]).remove(0).unwrap();
    assert_eq!(client.bytes_of(&found), mine.as_bytes());
    assert_eq!(
        client.read(vec![item(other)]).remove(0).unwrap_err().kind,
        "denied"
    );
    let name = item(other).object;
    for request in [
        objects::Request::Stat(name.clone()),
        objects::Request::Delete(name),
    ] {
        assert!(matches!(client.ask(&request), Err(failure) if failure.kind == "denied"));
    }
}

fn item(bucket: &str) -> Item {
    let object = ObjectName {
        bucket: bucket.into(),
        key: "key".into(),
    };
    Item {
        object,
        range: ItemRange::Whole,
        version: None,
    }
}

/// A node with an open and a closed bucket, and a socket that everybody can reach.
struct Shared {
    node: Node,
    runtime: tokio::runtime::Runtime,
    dir: tempfile::TempDir,
}

impl Shared {
    fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become another user");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let open =
            |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        open(0o711);
        for bucket in ["open", "closed"] {
            let folder = dir.path().join("data/lake").join(bucket);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("key"), bucket).unwrap();
        }
        let text = format!(
            "data = '{0}/data'\nram = '64MiB'\nnvme = 0\ns3 = 'off'\nadmin = 'off'\nsocket = '{0}/s'\n\
             allow_uid = [{GUEST}]\n[[bucket]]\nname = 'closed'\nallow_uids = [{PARTNER}]",
            dir.path().display()
        );
        let options = NodeOptions::resolve(Config::parse(&text).unwrap()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let node = runtime.block_on(Node::start(options)).unwrap();
        runtime.block_on(node.wait_ready());
        Some(Self { node, runtime, dir })
    }

    /// Lets a process of this user play its part. A copy of this program, because its folder may be closed to
    /// that user.
    fn play(&self, uid: u32, story: &str) {
        let program = self.dir.path().join("program");
        if !program.exists() {
            std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        }
        let played = Command::new(program)
            .args(["--exact", "users::as_another_user", "--nocapture"])
            .env(SOCKET, self.node.socket().unwrap())
            .env(STORY, story)
            .current_dir("/")
            .uid(uid)
            .gid(uid)
            .output()
            .unwrap();
        let said = [played.stdout, played.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(played.status.success() && said.contains("1 passed"), "{said}");
    }

    fn stop(self) {
        self.runtime.block_on(self.node.shutdown(LONG));
    }
}

#[test]
fn a_user_who_is_not_allowed_is_refused_with_the_reason() {
    let Some(shared) = Shared::start() else { return };
    shared.play(STRANGER, "stranger");
    assert_eq!(shared.node.ipc_stats().refused_connections, 1);
    shared.stop();
}

#[test]
fn a_user_of_one_bucket_can_neither_read_nor_map_the_others() {
    let Some(shared) = Shared::start() else { return };
    shared.play(GUEST, "guest");
    let mut owner = Client::hello(shared.node.socket().unwrap());
    assert_eq!(
        owner.ask(&objects::Request::Buckets),
        Ok(objects::Answer::Buckets(vec!["closed".into(), "open".into()]))
    );
    let found = owner.read(vec![item("open")]).remove(0).unwrap();
    let segment = found.view.as_ref().unwrap().parts[0].segment;
    let generation = owner.welcome.generation;
    shared.play(
        PARTNER,
        &format!("partner {segment} {generation} {}", lease_of(&found)),
    );
    drop(owner);
    shared.stop();
}
