//! Runs the built binary: commands, and a node of its own for each test.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod relay;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest that anything here may take.
const LONG: Duration = Duration::from_secs(60);

/// The binary in a folder, with nothing of the caller's environment that it would listen to.
pub(crate) fn forebay(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    // The default socket too lies in the folder.
    command.current_dir(dir).args(args).env("XDG_RUNTIME_DIR", dir);
    for (name, _) in std::env::vars() {
        if name.starts_with("FOREBAY_") || name.starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a command to its end.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Ran {
    forebay(dir, args).output().expect("the binary runs").into()
}

/// Waits until something is there.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LONG, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Route of a command to its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeRoute {
    /// By the S3 endpoint, with the node's keys.
    S3Endpoint,
    /// By the socket, without keys.
    Socket,
}

impl NodeRoute {
    pub(crate) const ALL: [Self; 2] = [Self::S3Endpoint, Self::Socket];
}

/// A node with a folder lake, stopped when dropped.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) s3: String,
    pub(crate) admin: String,
    /// Route of the commands.
    pub(crate) way: NodeRoute,
    child: Child,
}

impl Node {
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), more)
    }

    /// The same node for commands that go this way.
    pub(crate) fn by(mut self, way: NodeRoute) -> Self {
        self.way = way;
        self
    }

    pub(crate) fn start_in(dir: tempfile::TempDir, more: &[&str]) -> Self {
        let ready = dir.path().join("ready.json");
        let mut args = vec![
            "serve",
            "--data",
            "data",
            "--ram",
            "64MiB",
            "--nvme",
            "64MiB",
            "--s3",
            "127.0.0.1:0",
        ];
        args.extend(["--admin", "127.0.0.1:0", "--ready-file", "ready.json"]);
        args.extend(more);
        let log = std::fs::File::create(dir.path().join("log")).expect("a file");
        let mut command = forebay(dir.path(), &args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary runs");
        let text = wait_for("the node to get ready", || {
            let ended = child.try_wait().expect("a child");
            let log = || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(ended.is_none(), "the node ended: {}", log());
            std::fs::read_to_string(&ready).ok()
        });
        let addresses: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let address = |name: &str| addresses[name].as_str().expect("an address").to_owned();
        Self {
            s3: address("s3"),
            admin: address("admin"),
            way: NodeRoute::S3Endpoint,
            dir,
            child,
        }
    }

    /// Runs a command against this node.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_by(self.way, args)
    }

    /// Runs a command against this node, this way.
    pub(crate) fn run_by(&self, way: NodeRoute, args: &[&str]) -> Ran {
        let mut command = forebay(self.dir.path(), args);
        command.env("FOREBAY_ADMIN", &self.admin);
        match way {
            NodeRoute::S3Endpoint => command.env("FOREBAY_S3", &self.s3).env("FOREBAY_DATA", "data"),
            NodeRoute::Socket => command
                .env("FOREBAY_DATA", "nowhere")
                .env("FOREBAY_ADMIN_TOKEN", self.admin_token()),
        };
        command.output().expect("the binary runs").into()
    }

    /// The token of the admin API, for whoever does not know the data folder.
    pub(crate) fn admin_token(&self) -> String {
        let keys = std::fs::read_to_string(self.path("data/keys.toml")).expect("the key file");
        let line = keys.lines().find(|line| line.starts_with("admin_token"));
        let token = line.and_then(|line| line.split('"').nth(1)).expect("the token");
        token.to_owned()
    }

    /// Runs a command that has to work, and gives its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.out
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Returns what the node has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Sends SIGTERM, waits for the end, and gives the exit code and the log.
    pub(crate) fn stop(mut self) -> (Option<i32>, String) {
        self.signal("TERM");
        let status = wait_for("the node to stop", || self.child.try_wait().expect("a child"));
        (status.code(), self.log())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
