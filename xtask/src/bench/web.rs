//! nginx, the limit for HTTP, and wrk, the client that others use.
//!
//! nginx runs from a configuration of our own in a folder of its own, without root, on three ports: with
//! sendfile, without it, and with its cache of open files.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{command, seaweed};

/// A running nginx; dropping it ends it.
pub(super) struct Nginx {
    child: Child,
    pub(super) sendfile: SocketAddr,
    pub(super) copying: SocketAddr,
    pub(super) cached: SocketAddr,
}

impl Nginx {
    /// Serves `root`; its own files go to `dir`.
    pub(super) fn start(root: &Path, dir: &Path) -> Result<Self> {
        let Some(program) = ["nginx", "/usr/sbin/nginx"]
            .into_iter()
            .find(|name| command::exists(name) || Path::new(name).is_file())
        else {
            bail!("nginx is the yardstick of this bench: `apt-get install nginx-light wrk`");
        };
        fs::create_dir_all(dir)?;
        let ports = [free_port()?, free_port()?, free_port()?];
        let config = dir.join("nginx.conf");
        fs::write(&config, configuration(root, dir, ports))?;
        let mut nginx = seaweed::dies_with_us(Path::new(program));
        nginx
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(dir)
            .arg("-e")
            .arg(dir.join("error.log"));
        let child = nginx.stdin(Stdio::null()).spawn().context("cannot start nginx")?;
        let [sendfile, copying, cached] = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let running = Self {
            child,
            sendfile,
            copying,
            cached,
        };
        let start = Instant::now();
        while TcpStream::connect(cached).is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("nginx does not answer; see {}", dir.join("error.log").display());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// Its master process; the workers are its children.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // TERM, not KILL: the master has to end its workers.
        let pid = self.child.id().to_string();
        let _ = command::output(command::clean("kill").args(["-TERM", &pid]));
        let _ = self.child.wait();
    }
}

/// Returns what nginx runs with; the page shows it.
pub(super) fn configuration(root: &Path, dir: &Path, [sendfile, copying, cached]: [u16; 3]) -> String {
    let (root, dir) = (root.display(), dir.display());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("  {name}_temp_path {dir}/{name};\n"))
        .concat();
    format!(
        "user root;\ndaemon off;\nworker_processes auto;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n{temporary}  access_log off;\n  keepalive_requests 100000000;\n  tcp_nopush on;\n  root {root};\n\
         \x20 server {{ listen 127.0.0.1:{sendfile}; sendfile on; }}\n\
         \x20 server {{ listen 127.0.0.1:{copying}; sendfile off; }}\n\
         \x20 server {{ listen 127.0.0.1:{cached}; sendfile on; open_file_cache max=100000; open_file_cache_valid 600s; }}\n}}\n"
    )
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Runs wrk over some paths and returns how many bytes came in how many seconds.
pub(super) fn wrk(
    address: SocketAddr,
    paths: &[String],
    connections: usize,
    seconds: f64,
    dir: &Path,
) -> Result<(f64, f64)> {
    if !command::exists("wrk") {
        bail!("wrk is needed: `apt-get install wrk`");
    }
    let script = dir.join("wrk.lua");
    let listed: String = paths.iter().map(|path| format!("  \"{path}\",\n")).collect();
    // The summary is printed as plain numbers; a status other than 200 is an error.
    fs::write(
        &script,
        format!(
            "local paths = {{\n{listed}}}\nlocal next = 0\n\
             function request() next = next % #paths + 1; return wrk.format(\"GET\", paths[next]) end\n\
             function done(summary)\n\
             \x20 local e = summary.errors\n\
             \x20 print(string.format(\"bytes=%d micros=%d errors=%d\", summary.bytes, summary.duration, e.connect + e.read + e.write + e.status + e.timeout))\n\
             end\n"
        ),
    )?;
    let mut wrk = command::clean("wrk");
    wrk.args(["--threads", "2", "--connections", &connections.to_string()]);
    wrk.args(["--duration", &format!("{}s", seconds.ceil())])
        .arg("--script")
        .arg(&script);
    let text = command::output(wrk.arg(format!("http://{address}")))?;
    let figure = |name: &str| -> Result<f64> {
        let found = text.split_whitespace().find_map(|word| word.strip_prefix(name));
        found
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("wrk printed no {name}:\n{text}"))
    };
    if figure("errors=")? > 0.0 {
        bail!("wrk met errors:\n{text}");
    }
    Ok((figure("bytes=")?, figure("micros=")? / 1e6))
}
