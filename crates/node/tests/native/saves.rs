//! Saves of steps: what becomes of them when a trainer dies, and what a hostile one cannot do.

use std::time::Instant;

use forebay_core::wire::{
    AlarmPolicy, Answer, BeginSave, Differential, ObjectName, Request, SaveFile, SaveObject, SavePart,
    SavePhase, SaveState, StagedIn, WrittenFrom,
};

use forebay_node::Node;
use forebay_node::config::Config;
use forebay_node::options::NodeOptions;

use crate::fixture::{Client, LONG, TestNode, pattern};

fn begin(step: u64) -> BeginSave {
    BeginSave {
        root: ObjectName {
            bucket: "box".into(),
            key: "run".into(),
        },
        step,
        attempt: None,
        rank: 0,
        world_size: 1,
        supersede: false,
        staged: StagedIn::Ram,
        sha256: false,
        alarms: AlarmPolicy::Warn,
        reuse: true,
        differential: Differential::Off,
        deadline_ms: 60_000,
        metadata: "{}".into(),
        tree: "null".into(),
    }
}

fn kind(answer: Answer) -> String {
    match answer {
        Answer::Failed(failure) => failure.kind,
        other => panic!("{other:?}"),
    }
}

fn open(client: &mut Client, begin: BeginSave) -> String {
    match client.ask(&Request::BeginSave(begin)) {
        Answer::Saving { save, .. } => save,
        other => panic!("{other:?}"),
    }
}

fn filled(client: &mut Client, bytes: &[u8]) -> WrittenFrom {
    let buffer = client.allocate(bytes.len() as u64).unwrap().buffer;
    let (_, memfd) = client.map(buffer).unwrap();
    assert_eq!(rustix::io::pwrite(&memfd, bytes, 0).unwrap(), bytes.len());
    WrittenFrom {
        buffer,
        bytes: bytes.len() as u64,
        crc32c: None,
    }
}

fn part(name: &str, elements: u64) -> SavePart {
    SavePart {
        name: name.into(),
        dtype: "U8".into(),
        tensor_shape: vec![elements],
        offset: vec![0],
        shape: vec![elements],
    }
}

fn file(client: &mut Client, save: &str, parts: Vec<SavePart>, bytes: &[u8]) -> Answer {
    let from = filled(client, bytes);
    client.ask(&Request::SaveFile(SaveFile {
        save: save.into(),
        from,
        parts,
    }))
}

fn wait(client: &mut Client, save: &str) -> SaveState {
    let deadline = Instant::now() + LONG;
    loop {
        let asked = client.ask(&Request::SaveStates {
            save: Some(save.into()),
            wait_ms: 1000,
        });
        let Answer::Saves(mut states) = asked else {
            panic!("{asked:?}");
        };
        let state = states.pop().unwrap();
        if state.phase.is_over() {
            return state;
        }
        assert!(Instant::now() < deadline, "{state:?}");
    }
}

#[test]
fn a_trainer_that_dies_before_it_has_staged_leaves_nothing() {
    let node = TestNode::start();
    let mut trainer = node.client();
    let save = open(&mut trainer, begin(1));
    let bytes = pattern(1000, 1);
    assert_eq!(
        file(&mut trainer, &save, vec![part("w", 1000)], &bytes),
        Answer::Done
    );
    drop(trainer);
    let mut other = node.client();
    let state = wait(&mut other, &save);
    assert_eq!(state.phase, SavePhase::Failed);
    assert_eq!(state.trouble.unwrap().kind, "cancelled");
    node.wait_until("its memory is back", |stats| stats.staging_lent_bytes == 0);
    let again = open(&mut other, begin(1));
    assert_ne!(again, save);
}

#[test]
fn a_trainer_that_dies_after_it_has_staged_loses_nothing() {
    let node = TestNode::start();
    let mut trainer = node.client();
    let save = open(&mut trainer, begin(1));
    let bytes = pattern(1000, 1);
    assert_eq!(
        file(&mut trainer, &save, vec![part("w", 1000)], &bytes),
        Answer::Done
    );
    let staged = trainer.ask(&Request::StageSave { save: save.clone() });
    assert!(matches!(staged, Answer::Saves(_)), "{staged:?}");
    drop(trainer);
    let mut other = node.client();
    let state = wait(&mut other, &save);
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    assert_eq!(state.bytes, 1000);
}

#[test]
fn a_save_belongs_to_the_process_that_began_it() {
    let node = TestNode::start();
    let (mut trainer, mut other) = (node.client(), node.client());
    let save = open(&mut trainer, begin(1));
    let stolen = other.ask(&Request::StageSave { save: save.clone() });
    assert_eq!(kind(stolen), "not_found");
    assert_eq!(
        kind(file(&mut other, &save, vec![part("w", 10)], &pattern(10, 1))),
        "not_found"
    );
}

#[test]
fn a_save_that_makes_no_sense_is_refused() {
    let node = TestNode::start();
    let mut client = node.client();
    let refused = [
        BeginSave {
            world_size: 0,
            ..begin(1)
        },
        BeginSave { rank: 1, ..begin(1) },
        BeginSave {
            world_size: 2,
            ..begin(1)
        },
        BeginSave {
            attempt: Some("../x".into()),
            ..begin(1)
        },
        BeginSave {
            metadata: "[]".into(),
            ..begin(1)
        },
        BeginSave {
            tree: "{".into(),
            ..begin(1)
        },
        BeginSave {
            deadline_ms: 0,
            ..begin(1)
        },
        BeginSave {
            step: u64::MAX,
            ..begin(1)
        },
    ];
    for begin in refused {
        let text = format!("{begin:?}");
        assert_eq!(
            kind(client.ask(&Request::BeginSave(begin))),
            "invalid_input",
            "{text}"
        );
    }
}

#[test]
fn what_was_refused_is_not_part_of_a_save_and_the_rest_of_it_is() {
    let node = TestNode::start();
    let mut client = node.client();
    let save = open(&mut client, begin(1));
    let bytes = pattern(10, 1);
    let wrong = [
        vec![],
        vec![part("w", 9)],
        vec![part("w", 11)],
        vec![part("w", 5), part("w", 5)],
        vec![part("__metadata__", 10)],
        vec![SavePart {
            dtype: "X1".into(),
            ..part("w", 10)
        }],
        vec![SavePart {
            offset: vec![1],
            ..part("w", 10)
        }],
        vec![SavePart {
            shape: vec![u64::MAX, u64::MAX],
            ..part("w", 10)
        }],
    ];
    for parts in wrong {
        let text = format!("{parts:?}");
        let answer = file(&mut client, &save, parts, &bytes);
        assert!(matches!(answer, Answer::Failed(_)), "{text}: {answer:?}");
    }
    assert_eq!(
        file(&mut client, &save, vec![part("w", 10)], &bytes),
        Answer::Done
    );
    let from = filled(&mut client, b"{}");
    let object = SaveObject {
        save: save.clone(),
        name: "args".into(),
        kind: "yaml".into(),
        from,
    };
    assert_eq!(kind(client.ask(&Request::SaveObject(object))), "invalid_input");
    let staged = client.ask(&Request::StageSave { save: save.clone() });
    assert!(matches!(staged, Answer::Saves(_)), "{staged:?}");
    let state = wait(&mut client, &save);
    assert_eq!((state.phase, state.bytes), (SavePhase::Durable, 10), "{state:?}");
}

#[test]
fn folders_that_nobody_promised_are_gone_before_a_client_is_let_in() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data/saves/a-0000000000000007.0");
    std::fs::create_dir_all(&folder).unwrap();
    // So many that a client could be faster.
    for piece in 0..5000 {
        std::fs::write(folder.join(format!("piece-{piece:05}")), b"").unwrap();
    }
    let socket = dir.path().join("socket");
    let text = format!(
        "data = '{}'\nram = '64MiB'\nnvme = 0\ns3 = 'off'\nadmin = 'off'\nsocket = '{}'",
        dir.path().join("data").display(),
        socket.display(),
    );
    let options = NodeOptions::resolve(Config::parse(&text).unwrap()).unwrap();
    let early = std::thread::spawn(move || {
        let deadline = Instant::now() + LONG;
        while !socket.exists() {
            assert!(Instant::now() < deadline, "there is no socket");
            std::thread::yield_now();
        }
        let client = Client::hello(&socket);
        (client, folder.exists())
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = runtime.block_on(Node::start(options)).unwrap();
    let (mut client, is_there) = early.join().unwrap();
    assert!(!is_there, "a client was let in before");
    // So the name is free for a save of this life, which nobody takes for one of a former life.
    runtime.block_on(node.wait_ready());
    assert_eq!(client.ask(&Request::CreateBucket("box".into())), Answer::Done);
    let begin = BeginSave {
        staged: StagedIn::Nvme,
        attempt: Some("a-0000000000000007".into()),
        ..begin(1)
    };
    let save = open(&mut client, begin);
    let bytes = pattern(1000, 1);
    file(&mut client, &save, vec![part("w", 1000)], &bytes);
    let staged = client.ask(&Request::StageSave { save: save.clone() });
    assert!(matches!(staged, Answer::Saves(_)), "{staged:?}");
    assert_eq!(wait(&mut client, &save).phase, SavePhase::Durable);
    drop(client);
    runtime.block_on(node.shutdown(LONG));
}
