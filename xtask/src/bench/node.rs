//! A Forebay node (release build) for a bench.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::load::connect;
use super::sign::{Body, Signer};
use super::stat;
use crate::seaweed;

pub(super) const KEY: &str = "bench-access-key";
pub(super) const SECRET: &str = "bench-secret-access-key-0123456789";
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Folders and budgets of a node.
pub(super) struct NodeArgs<'a> {
    pub(super) binary: &'a Path,
    pub(super) root: &'a Path,
    pub(super) lake: &'a str,
    pub(super) ram: &'a str,
    pub(super) nvme: &'a str,
}

/// A running node; dropping it kills it.
pub(super) struct BenchNode {
    child: Child,
    /// From spawn to ready.
    pub(super) start_seconds: f64,
    pub(super) s3: SocketAddr,
    /// Its socket for clients on the host.
    pub(super) socket: PathBuf,
    /// Its metrics.
    pub(super) admin: SocketAddr,
}

#[derive(Deserialize)]
struct Ready {
    s3: String,
    admin: String,
}

impl BenchNode {
    /// Starts it and waits until it is ready.
    pub(super) fn start(args: &NodeArgs<'_>) -> Result<Self> {
        fs::create_dir_all(args.root)?;
        let ready_file = args.root.join("ready.json");
        let _ = fs::remove_file(&ready_file);
        let log = fs::File::create(args.root.join("node.log"))?;
        let mut serve = seaweed::dies_with_us(args.binary);
        serve
            .arg("serve")
            .args(["--lake", args.lake, "--ram", args.ram, "--nvme", args.nvme]);
        serve
            .arg("--data")
            .arg(args.root.join("data"))
            .arg("--ready-file")
            .arg(&ready_file);
        serve.args(["--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let socket = args.root.join("node.sock");
        serve.arg("--socket").arg(&socket);
        serve
            .env("FOREBAY_ACCESS_KEY_ID", KEY)
            .env("FOREBAY_SECRET_ACCESS_KEY", SECRET);
        serve
            .env("AWS_ACCESS_KEY_ID", seaweed::KEY)
            .env("AWS_SECRET_ACCESS_KEY", seaweed::SECRET);
        // Access logs are off, as nginx's are: the disk is not what is measured.
        serve.env("FOREBAY_LOG_ACCESS", "false");
        serve.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let start = Instant::now();
        let child = serve
            .spawn()
            .with_context(|| format!("cannot start {}", args.binary.display()))?;
        let mut node = Self {
            child,
            start_seconds: 0.0,
            s3: unset(),
            socket,
            admin: unset(),
        };
        let ready = node.wait(&ready_file, args.root)?;
        node.start_seconds = start.elapsed().as_secs_f64();
        node.s3 = address(&ready.s3)?;
        node.admin = address(&ready.admin)?;
        Ok(node)
    }

    fn wait(&mut self, ready_file: &PathBuf, root: &Path) -> Result<Ready> {
        let start = Instant::now();
        loop {
            if let Some(ready) = fs::read(ready_file)
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok())
            {
                return Ok(ready);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the node ended with {status}; its log is {}",
                    root.join("node.log").display()
                );
            }
            if start.elapsed() > READY_DEADLINE {
                bail!("the node was not ready within {} s", READY_DEADLINE.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Signs for it.
    pub(super) fn signer(&self) -> Result<Signer> {
        Signer::new(KEY, SECRET, &self.s3.to_string())
    }

    /// Sends one signed request and reads the answer to its end.
    pub(super) fn call(&self, method: &str, path: &str, extra: &[(&str, &str)]) -> Result<u64> {
        let body = if method == "PUT" {
            Body::Unsigned(0)
        } else {
            Body::None
        };
        exchange(self.s3, &self.signer()?.request(method, path, extra, body)?)
    }

    /// The sum of all series of a metric whose labels contain `label`.
    pub(super) fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let text = self.admin_page("/metrics")?;
        let series = text.lines().filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
        });
        Ok(series
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum())
    }

    fn admin_page(&self, path: &str) -> Result<String> {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(self.admin)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// SIGTERM, and waits for the end.
    pub(super) fn stop(mut self) -> Result<()> {
        let pid = self.child.id().to_string();
        crate::command::output(crate::command::clean("kill").args(["-TERM", &pid]))?;
        self.child.wait()?;
        Ok(())
    }

    /// Peak of its resident memory.
    pub(super) fn resident_bytes_peak(&self) -> Result<u64> {
        stat::resident_bytes_peak(self.pid())
    }
}

impl Drop for BenchNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends bytes on a new connection and reads one answer.
pub(super) fn exchange(to: SocketAddr, request: &[u8]) -> Result<u64> {
    use std::io::Write;
    let mut stream = connect(to)?;
    stream.write_all(request)?;
    super::load::answer(&mut stream, &mut vec![0; 256 * 1024])
}

fn unset() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn address(url: &str) -> Result<SocketAddr> {
    let text = url.trim_start_matches("http://").trim_end_matches('/');
    text.parse().with_context(|| format!("{url} is no address"))
}
