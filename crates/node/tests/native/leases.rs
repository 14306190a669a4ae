//! Who holds memory, for how long, and what happens to it then.

use forebay_wire::ItemRange;
use forebay_wire::objects::Handle;
use forebay_wire::{objects, writes};

use crate::fixture::{Client, TestNode, item, lease_of, pattern, peek, range};

const MIB: usize = 1 << 20;

#[test]
fn a_lease_ends_by_release_and_only_once() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(MIB, 1));
    let found = client.get("key");
    assert_eq!((node.stats().leases, node.stats().leased_bytes), (1, MIB as u64));
    let leases = vec![lease_of(&found), lease_of(&found), 999];
    assert_eq!(
        client.ask(&objects::Request::Release { leases }),
        Ok(objects::Answer::Done)
    );
    assert_eq!((node.stats().leases, node.stats().leased_bytes), (0, 0));
}

#[test]
fn leases_return_when_their_process_is_dead() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(MIB, 1));
    for _ in 0..10 {
        client.get("key");
    }
    let mut second = Client::hello_to(node.node.socket(), Some(client.welcome.session)).unwrap();
    second.get("key");
    assert_eq!(node.stats().leases, 11);
    drop(client);
    node.wait_until("no lease", |stats| stats.leases == 0 && stats.leased_bytes == 0);
}

#[test]
fn a_further_connection_may_close_without_ending_the_leases() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(MIB, 1));
    let mut second = Client::hello_to(node.node.socket(), Some(client.welcome.session)).unwrap();
    second.get("key");
    drop(second);
    node.wait_until("one connection", |stats| stats.connections == 1);
    assert_eq!(node.stats().leases, 1);
}

#[test]
fn only_a_holder_can_release() {
    let node = TestNode::start();
    let mut client = node.client();
    client.put("key", &pattern(MIB, 1));
    let lease = lease_of(&client.get("key"));
    node.client()
        .ask(&objects::Request::Release { leases: vec![lease] })
        .unwrap();
    assert_eq!(node.stats().leases, 1);
}

#[test]
fn an_adopted_lease_lives_as_long_as_its_last_holder() {
    let node = TestNode::start();
    let mut parent = node.client();
    let content = pattern(MIB, 1);
    parent.put("key", &content);
    let found = parent.get("key");
    let handle = Handle {
        generation: parent.welcome.generation,
        lease: lease_of(&found),
    };
    let mut child = node.client();
    let stale = Handle {
        generation: handle.generation ^ 1,
        ..handle
    };
    let unknown = Handle { lease: 999, ..handle };
    let handles = vec![handle, handle, stale, unknown];
    assert_eq!(
        child.ask(&objects::Request::Adopt { handles }),
        Ok(objects::Answer::Adopted(vec![true, true, false, false]))
    );
    drop(parent);
    node.wait_until("one session", |stats| stats.sessions == 1);
    assert_eq!(node.stats().leases, 1);
    assert!(child.bytes_of(&found) == content);
    child
        .ask(&objects::Request::Release {
            leases: vec![handle.lease],
        })
        .unwrap();
    assert_eq!(node.stats().leases, 0);
    let again = child.ask(&objects::Request::Adopt {
        handles: vec![handle],
    });
    assert_eq!(again, Ok(objects::Answer::Adopted(vec![false])));
}

#[test]
fn beyond_its_share_a_client_gets_copies() {
    let node = TestNode::with("[limits]\nclient_lease_bytes = '2MiB'");
    let mut client = node.client();
    let content = pattern(MIB, 1);
    client.put("key", &content);
    let (one, two, three) = (client.get("key"), client.get("key"), client.get("key"));
    assert_eq!(
        [&one, &two, &three].map(|found| found.sources.copied),
        [0, 0, MIB as u64]
    );
    assert!(client.bytes_of(&three) == content);
    let own = three.view.as_ref().unwrap().parts[0].segment;
    assert_ne!(own, one.view.as_ref().unwrap().parts[0].segment);
    client
        .ask(&objects::Request::Release {
            leases: vec![lease_of(&one), lease_of(&three)],
        })
        .unwrap();
    assert_eq!(client.get("key").sources.copied, 0, "there is room again");
    assert_eq!(
        client.map(own).unwrap_err().kind,
        "not_found",
        "the copy went with its lease"
    );
    assert_eq!(
        node.client().get("key").sources.copied,
        0,
        "another client has a share of its own"
    );
}

#[test]
fn tiny_leases_count_too() {
    let node = TestNode::with("[limits]\nclient_lease_bytes = '64KiB'");
    let mut client = node.client();
    client.put("key", &pattern(MIB, 1));
    let found = client.read((0..32).map(|index| item("key", range(index, 1))).collect());
    let copied = found
        .iter()
        .filter(|found| found.as_ref().unwrap().sources.copied > 0)
        .count();
    assert_eq!(copied, 16);
}

#[test]
fn an_old_lease_gives_its_memory_up_and_the_memory_is_never_written_again() {
    let node = TestNode::with("[limits]\nlease_timeout = '50ms'");
    let mut client = node.client();
    let content = pattern(MIB, 1);
    client.put("old", &content);
    let found = client.get("old");
    let part = found.view.as_ref().unwrap().parts[0];
    let (_, memfd) = client.map(part.segment).unwrap();
    node.wait_until("expired", |stats| stats.expired_leases == 1);
    assert_eq!((node.stats().leases, node.stats().leased_bytes), (0, 0));
    // Twice the RAM tier goes through the cache; whatever could be written to is.
    for round in 0..128 {
        let key = format!("new-{round}");
        client.put(&key, &pattern(MIB, 2 + round));
        let found = client.get(&key);
        client
            .ask(&objects::Request::Release {
                leases: vec![lease_of(&found)],
            })
            .unwrap();
    }
    assert!(peek(&memfd, part.offset, part.bytes) == content);
    assert_eq!(client.map(part.segment).unwrap_err().kind, "not_found");
    let handle = Handle {
        generation: client.welcome.generation,
        lease: lease_of(&found),
    };
    assert_eq!(
        client.ask(&objects::Request::Adopt {
            handles: vec![handle]
        }),
        Ok(objects::Answer::Adopted(vec![false]))
    );
    assert!(client.get("old").sources.lake > 0, "it left the cache");
}

#[test]
fn a_held_view_keeps_its_bytes_while_everything_else_is_evicted() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(4 * MIB, 1);
    client.put("held", &content);
    let found = client.get("held");
    for round in 0..40 {
        let key = format!("new-{round}");
        client.put(&key, &pattern(4 * MIB, 2 + round));
    }
    assert!(client.bytes_of(&found) == content);
}

#[test]
fn handles_of_another_life_of_the_node_are_stale() {
    let (first, second) = (TestNode::start(), TestNode::start());
    let mut client = first.client();
    client.put("key", b"1");
    let lease = lease_of(
        &client
            .read(vec![item("key", ItemRange::Whole)])
            .remove(0)
            .unwrap(),
    );
    let mut other = second.client();
    other.put("key", b"1");
    other.get("key");
    let handle = Handle {
        generation: client.welcome.generation,
        lease,
    };
    assert_eq!(
        other.ask(&objects::Request::Adopt {
            handles: vec![handle]
        }),
        Ok(objects::Answer::Adopted(vec![false]))
    );
}

#[test]
fn what_an_answer_gave_comes_back_when_it_cannot_be_sent() {
    let test = TestNode::start();
    let mut client = test.client();
    client.put("a", &pattern(100_000, 1));
    client.get("a");
    let read = objects::Request::Read {
        items: vec![item("a", ItemRange::Whole)],
        timeout_ms: 0,
    };
    let ask_and_go = |send: &dyn Fn(&mut Client)| {
        let mut deaf = Client::hello_to(test.node.socket(), Some(client.welcome.session)).unwrap();
        deaf.stop_listening();
        send(&mut deaf);
        test.wait_until("the node gives the connection up", |stats| stats.connections == 1);
        let held = (test.stats().leases, test.stats().staging_lent_bytes);
        assert_eq!(held, (1, 0), "only what the client knows of");
    };
    ask_and_go(&|deaf| deaf.send(&read));
    ask_and_go(&|deaf| deaf.send(&writes::Request::Allocate { bytes: 1000 }));
}
