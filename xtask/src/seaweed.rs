//! SeaweedFS: an S3 server that is not ours, for lake tests and as the lake behind a node.
//!
//! Started once for a run, on free ports, on loopback only, with its telemetry off; killed at the end,
//! because it takes half a minute to stop by itself. Every bucket takes seven volumes, hence the small
//! volumes.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command;

/// The access key of every server started here.
pub(crate) const KEY: &str = "forebay-test";
/// Its secret.
pub(crate) const SECRET: &str = "forebay-test-secret";
const START_DEADLINE: Duration = Duration::from_secs(60);
/// SeaweedFS listens on each port and on the one this far above.
const SECOND_PORT: u16 = 10_000;

/// A running server; dropping it kills it and removes its data.
pub(crate) struct Seaweed {
    child: Child,
    dir: PathBuf,
    /// `http://127.0.0.1:PORT`.
    pub(crate) endpoint: String,
    ports: [u16; 4],
}

impl Seaweed {
    /// Starts it and waits until it answers. Data and log go to `target/seaweedfs/<port>`.
    pub(crate) fn start(weed: &Path, target: &Path) -> Result<Self> {
        let [master, volume, filer, s3] = free_ports()?;
        let dir = target.join("seaweedfs").join(s3.to_string());
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let config = dir.join("s3.json");
        fs::write(&config, identities())?;
        let log = fs::File::create(dir.join("log"))?;
        let mut server = dies_with_us(weed);
        server.args([
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-filer",
            "-s3",
        ]);
        server.args([
            "-volume.max=200",
            "-master.volumeSizeLimitMB=128",
            "-master.volumePreallocate=false",
        ]);
        server.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        server
            .arg(format!("-dir={}", dir.display()))
            .arg(format!("-s3.config={}", config.display()));
        for (name, port) in [
            ("master", master),
            ("volume", volume),
            ("filer", filer),
            ("s3", s3),
        ] {
            server.arg(format!("-{name}.port={port}"));
        }
        server.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = server
            .spawn()
            .with_context(|| format!("cannot start {}", weed.display()))?;
        let ports = [master, volume, filer, s3];
        let mut running = Self {
            child,
            dir,
            endpoint: format!("http://127.0.0.1:{s3}"),
            ports,
        };
        running.wait(s3)?;
        Ok(running)
    }

    /// Tells a child where it is.
    pub(crate) fn export(&self, command: &mut Command) {
        command.env("FOREBAY_TEST_S3_ENDPOINT", &self.endpoint);
        command
            .env("FOREBAY_TEST_S3_KEY", KEY)
            .env("FOREBAY_TEST_S3_SECRET", SECRET);
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait(&mut self, port: u16) -> Result<()> {
        let start = Instant::now();
        while !answers(port) {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "SeaweedFS ended with {status}; its log is {}",
                    self.dir.join("log").display()
                );
            }
            if start.elapsed() > START_DEADLINE {
                bail!(
                    "SeaweedFS did not answer within {} s; its log is {}",
                    START_DEADLINE.as_secs(),
                    self.dir.join("log").display()
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Seaweed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
        for (name, port) in ["master", "volume", "filer", "s3"].into_iter().zip(self.ports) {
            let _ = fs::remove_file(format!("/tmp/seaweedfs-{name}-grpc-{}.sock", port + SECOND_PORT));
        }
    }
}

fn identities() -> String {
    format!(
        r#"{{"identities":[{{"name":"test","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],"#
    ) + r#""actions":["Admin","Read","Write","List","Tagging"]}]}"#
}

/// A command that the kernel ends when xtask itself is killed, where util-linux is there.
pub(crate) fn dies_with_us(program: &Path) -> Command {
    if !command::exists("setpriv") {
        return command::clean(program);
    }
    let mut command = command::clean("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Four ports that are free together with their second ports.
fn free_ports() -> Result<[u16; 4]> {
    let mut held = Vec::new();
    let mut ports = Vec::new();
    let first = 20_000 + (std::process::id() % 20_000) as u16;
    for port in (first..45_000).chain(20_000..first) {
        if let (Ok(one), Ok(two)) = (
            TcpListener::bind(("127.0.0.1", port)),
            TcpListener::bind(("127.0.0.1", port + SECOND_PORT)),
        ) {
            held.push((one, two));
            ports.push(port);
        }
        if let Ok(four) = <[u16; 4]>::try_from(ports.as_slice()) {
            return Ok(four);
        }
    }
    bail!("no free ports for SeaweedFS between 20000 and 45000")
}

/// Returns whether the S3 port gives any HTTP answer that is not about a part still starting.
fn answers(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(&head == b"HTTP/1.1 403")
    };
    ask().unwrap_or(false)
}
