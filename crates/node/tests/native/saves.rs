//! Saves of steps: what becomes of them when a trainer dies, and what a hostile one cannot do.

use std::time::Instant;

use forebay_wire::Failure;
use forebay_wire::ObjectName;
use forebay_wire::saves::{
    AlarmPolicy, BeginSave, Differential, SaveFile, SaveObject, SavePart, SavePhase, SaveState, StagedIn,
    Survives,
};
use forebay_wire::writes::StagedBytes;
use forebay_wire::{objects, saves};

use forebay_node::Node;
use forebay_node::config::Config;
use forebay_node::options::NodeOptions;

use crate::fixture::{Client, LONG, TestNode, kind, pattern};

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

fn open(client: &mut Client, begin: BeginSave) -> String {
    match client.ask(&saves::Request::BeginSave(begin)) {
        Ok(saves::Answer::Saving { save, .. }) => save,
        other => panic!("{other:?}"),
    }
}

fn filled(client: &mut Client, bytes: &[u8]) -> StagedBytes {
    let buffer = client.allocate(bytes.len() as u64).unwrap().buffer;
    let (_, memfd) = client.map(buffer).unwrap();
    assert_eq!(rustix::io::pwrite(&memfd, bytes, 0).unwrap(), bytes.len());
    StagedBytes {
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

fn file(
    client: &mut Client,
    save: &str,
    parts: Vec<SavePart>,
    bytes: &[u8],
) -> Result<saves::Answer, Failure> {
    let from = filled(client, bytes);
    client.ask(&saves::Request::SaveFile(SaveFile {
        save: save.into(),
        from,
        parts,
    }))
}

fn wait(client: &mut Client, save: &str) -> SaveState {
    let deadline = Instant::now() + LONG;
    loop {
        let asked = client.ask(&saves::Request::SaveStates {
            save: Some(save.into()),
            wait_ms: 1000,
        });
        let Ok(saves::Answer::Saves(mut states)) = asked else {
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
fn a_save_in_memory_of_its_own_process_survives_nothing() {
    let node = TestNode::start();
    let mut trainer = node.client();
    let save = open(&mut trainer, begin(1));
    file(&mut trainer, &save, vec![part("w", 1000)], &pattern(1000, 1)).unwrap();
    let staged = trainer.ask(&saves::Request::StageSave { save: save.clone() });
    let Ok(saves::Answer::Saves(states)) = staged else {
        panic!("{staged:?}");
    };
    // By the time of the answer the step may be in the lake.
    let state = &states[0];
    let expected = match state.phase {
        SavePhase::Durable => Survives::Everything,
        _ => Survives::Nothing,
    };
    assert_eq!(state.survives, expected, "{state:?}");
    assert_eq!(wait(&mut trainer, &save).survives, Survives::Everything);
}

#[test]
fn a_trainer_that_dies_before_it_has_staged_leaves_nothing() {
    let node = TestNode::start();
    let mut trainer = node.client();
    let save = open(&mut trainer, begin(1));
    let bytes = pattern(1000, 1);
    assert_eq!(
        file(&mut trainer, &save, vec![part("w", 1000)], &bytes),
        Ok(saves::Answer::Done)
    );
    drop(trainer);
    let mut other = node.client();
    let state = wait(&mut other, &save);
    assert_eq!(state.phase, SavePhase::Failed);
    assert_eq!(state.last_error.unwrap().kind, "cancelled");
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
        Ok(saves::Answer::Done)
    );
    let staged = trainer.ask(&saves::Request::StageSave { save: save.clone() });
    assert!(matches!(staged, Ok(saves::Answer::Saves(_))), "{staged:?}");
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
    let stolen = other.ask(&saves::Request::StageSave { save: save.clone() });
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
            kind(client.ask(&saves::Request::BeginSave(begin))),
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
        assert!(answer.is_err(), "{text}: {answer:?}");
    }
    assert_eq!(
        file(&mut client, &save, vec![part("w", 10)], &bytes),
        Ok(saves::Answer::Done)
    );
    let from = filled(&mut client, b"{}");
    let object = SaveObject {
        save: save.clone(),
        name: "args".into(),
        kind: "yaml".into(),
        from,
    };
    assert_eq!(
        kind(client.ask(&saves::Request::SaveObject(object))),
        "invalid_input"
    );
    let staged = client.ask(&saves::Request::StageSave { save: save.clone() });
    assert!(matches!(staged, Ok(saves::Answer::Saves(_))), "{staged:?}");
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
    // So the name is free for a save of this incarnation, which nobody takes for one from before the restart.
    runtime.block_on(node.wait_ready());
    assert_eq!(
        client.ask(&objects::Request::CreateBucket("box".into())),
        Ok(objects::Answer::Done)
    );
    let begin = BeginSave {
        staged: StagedIn::Nvme,
        attempt: Some("a-0000000000000007".into()),
        ..begin(1)
    };
    let save = open(&mut client, begin);
    let bytes = pattern(1000, 1);
    file(&mut client, &save, vec![part("w", 1000)], &bytes).unwrap();
    let staged = client.ask(&saves::Request::StageSave { save: save.clone() });
    assert!(matches!(staged, Ok(saves::Answer::Saves(_))), "{staged:?}");
    assert_eq!(wait(&mut client, &save).phase, SavePhase::Durable);
    drop(client);
    runtime.block_on(node.shutdown(LONG));
}
