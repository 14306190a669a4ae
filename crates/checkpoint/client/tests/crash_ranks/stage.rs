//! Plays a story with processes of its own, and looks at what is left.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use forebay_checkpoint_client::{PruneOptions, PruneSelection, Root};
use forebay_client::StagedIn;

use crate::fixture::process::{LONG, NodeProcess, ROOT, Start, node_here, other_process};
use crate::job::{Job, check};
use crate::story::{LATER_MS, Story};

/// Says what the trainer saves, and through which nodes.
const TRAINER: &str = "FOREBAY_CRASH_TRAINER";
/// Pause between two looks for the step.
const PERIOD: Duration = Duration::from_millis(20);

/// The trainer's process. Does nothing if nobody has asked for it.
pub(crate) fn run_trainer() {
    let Ok(text) = std::env::var(TRAINER) else {
        return;
    };
    // Who listens hears what becomes of each rank on the way.
    let _ = Job::parse(&text).save_all();
}

/// Plays a story to its end.
pub(crate) fn play(story: &Story) {
    Stage::new(story).play();
}

/// Events, as the test hears them.
#[derive(Clone, Copy)]
enum Event {
    Staged(u32),
    Durable(u32),
    TrainerEnded,
    NodeGone(usize),
}

/// Folders and processes of a story.
struct Stage<'a> {
    story: &'a Story,
    dir: tempfile::TempDir,
    nodes: Vec<Option<NodeProcess>>,
    trainer: Option<Child>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    staged: BTreeSet<u32>,
    durable: BTreeSet<u32>,
    /// Nodes that have been dead.
    died: BTreeSet<usize>,
    has_trainer_ended: bool,
}

impl<'a> Stage<'a> {
    fn new(story: &'a Story) -> Self {
        let (sender, events) = channel();
        Self {
            story,
            dir: tempfile::tempdir().unwrap(),
            nodes: Vec::new(),
            trainer: None,
            events,
            sender,
            staged: BTreeSet::new(),
            durable: BTreeSet::new(),
            died: BTreeSet::new(),
            has_trainer_ended: false,
        }
    }

    fn lake(&self) -> PathBuf {
        self.dir.path().join("lake")
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn play(mut self) {
        self.save_parent();
        self.first_life();
        let (_reader, client) = node_here(&self.folder("reader"), &self.lake());
        let root = Root::open(client, ROOT).unwrap();
        if let Some(age_ms_min) = self.story.pruned {
            root.prune(&PruneOptions {
                selection: PruneSelection::Steps([1].into()),
                age_ms_min,
                now_ms: LATER_MS,
                is_dry_run: false,
            })
            .unwrap();
        }
        if let Some(again) = self.story.again.filter(|_| self.is_kept()) {
            self.second_life(again, &root);
        }
        self.last_life(&root);
    }

    fn save_parent(&self) {
        std::fs::create_dir(self.lake()).unwrap();
        let (node, client) = node_here(&self.folder("writer"), &self.lake());
        client.create_bucket("lake").unwrap();
        let socket = node.socket().display().to_string();
        let job = Job {
            step: 1,
            attempt: 1,
            staged: StagedIn::Ram,
            sockets: vec![socket; self.story.nodes.len()],
        };
        job.save_all().unwrap();
    }

    /// The save, until its node dies, and who dies with it.
    fn first_life(&mut self) {
        let story = self.story;
        for node in 0..story.node_count() {
            let label = format!("{}:{}", story.label, story.hits);
            let label = (node == story.victim).then_some(label.as_str());
            let started = self.start(node, label);
            assert!(started.is_some(), "a node with nothing to do starts");
            self.nodes.push(started);
        }
        self.start_trainer();
        while !self.has_trainer_ended && !self.died.contains(&story.victim) {
            self.hear(LONG);
        }
        if story.trainer_dies {
            self.end_trainer();
        }
        // It may not have come to its point.
        self.kill(story.victim);
        for node in 0..story.node_count() {
            if story.others_die && node != story.victim {
                self.kill(node);
            }
        }
        if story.others_die {
            self.end_trainer();
        }
    }

    /// Nodes are started again, and the victim dies again if it comes to this point before the step is there.
    fn second_life(&mut self, again: &str, root: &Root) {
        let victim = self.story.victim;
        self.start_dead(Some(again));
        self.died.remove(&victim);
        let deadline = Instant::now() + LONG;
        while self.nodes[victim].is_some() && !self.died.contains(&victim) && !is_there(root) {
            assert!(
                Instant::now() < deadline,
                "neither dead nor done: {:?}",
                self.story
            );
            self.hear(PERIOD);
        }
        self.kill(victim);
    }

    fn last_life(mut self, root: &Root) {
        self.start_dead(None);
        let deadline = Instant::now() + LONG;
        while self.is_kept() && !is_there(root) {
            assert!(Instant::now() < deadline, "not finished: {:?}", self.story);
            self.hear(PERIOD);
        }
        self.end_trainer();
        assert!(self.durable.is_empty() || is_there(root), "{:?}", self.story);
        if !is_there(root) {
            let job = Job {
                attempt: 3,
                staged: StagedIn::Ram,
                ..self.job()
            };
            // What was never acknowledged may be finished meanwhile; then this one loses.
            let _ = job.save_all();
        }
        check(root, 2, self.story.world_size());
        if self.story.pruned.is_none() {
            check(root, 1, self.story.world_size());
        }
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }

    /// Returns whether the step has to come: all ranks have handed it over, to what outlives what has died.
    fn is_kept(&self) -> bool {
        let is_safe = self.story.staged == StagedIn::Nvme || self.died.is_empty();
        is_safe && self.staged.len() == self.story.nodes.len()
    }

    fn start(&self, node: usize, fail_point: Option<&str>) -> Option<NodeProcess> {
        let sender = self.sender.clone();
        let lake = self.lake();
        let start = Start {
            lake: Some(&lake),
            fail_point,
            on_end: Some(Box::new(move || {
                // The test may be over by then.
                let _ = sender.send(Event::NodeGone(node));
            })),
        };
        NodeProcess::try_start(&self.folder(&format!("node-{node}")), start)
    }

    /// Starts nodes that are dead, the victim with a fail point.
    fn start_dead(&mut self, fail_point: Option<&str>) {
        // What is still told is told of their earlier incarnations.
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_none() {
                let fail_point = fail_point.filter(|_| node == self.story.victim);
                self.nodes[node] = self.start(node, fail_point);
            }
        }
    }

    /// Kills a node and hears that it is gone.
    fn kill(&mut self, node: usize) {
        let Some(process) = self.nodes[node].take() else {
            return;
        };
        process.kill();
        while !self.died.contains(&node) {
            self.hear(LONG);
        }
    }

    fn job(&self) -> Job {
        let address = |node: &usize| self.nodes[*node].as_ref().unwrap().address.clone();
        Job {
            step: 2,
            attempt: 2,
            staged: self.story.staged,
            sockets: self.story.nodes.iter().map(address).collect(),
        }
    }

    fn start_trainer(&mut self) {
        let mut command = other_process("trainer_process");
        command.env(TRAINER, self.job().text());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut words = line.split(' ');
                let (word, rank) = (words.next(), words.next().and_then(|rank| rank.parse().ok()));
                let event = match (word, rank) {
                    (Some("staged"), Some(rank)) => Event::Staged(rank),
                    (Some("durable"), Some(rank)) => Event::Durable(rank),
                    _ => continue,
                };
                // The test may be over by then.
                let _ = sender.send(event);
            }
            let _ = sender.send(Event::TrainerEnded);
        });
        self.trainer = Some(child);
    }

    /// Kills the trainer and hears what it had said before.
    fn end_trainer(&mut self) {
        if let Some(mut trainer) = self.trainer.take() {
            trainer.kill().unwrap();
            trainer.wait().unwrap();
        }
        while !self.has_trainer_ended {
            self.hear(LONG);
        }
    }

    /// Waits for the next thing that happens, at most so long.
    fn hear(&mut self, at_most: Duration) {
        match self.events.recv_timeout(at_most) {
            Ok(event) => self.take(event),
            Err(why) => assert!(at_most < LONG, "nothing happens: {why}; {:?}", self.story),
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::NodeGone(node) => drop(self.died.insert(node)),
            Event::TrainerEnded => self.has_trainer_ended = true,
            Event::Staged(rank) => drop(self.staged.insert(rank)),
            Event::Durable(rank) => drop(self.durable.insert(rank)),
        }
    }
}

fn is_there(root: &Root) -> bool {
    root.steps().unwrap().contains_key(&2)
}
