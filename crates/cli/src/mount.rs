//! `forebay mount` and `forebay umount`: a bucket as a folder, until a signal or an unmount ends it.
//!
//! `--daemon` starts the same command once more in the background and waits until it has mounted. As
//! `mount.forebay` the binary is a helper of `mount(8)` (`mount/fstab.rs`).

pub(crate) mod args;
pub(crate) mod fstab;

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use forebay_mount::{Detach, Mount, MountOptions};
use forebay_node::config::LogFormat;
use forebay_node::options::LogOptions;
use forebay_node::{EmbeddedNode, logging};
use serde_json::json;

use self::args::{MountArgs, UmountArgs};
use crate::blocking::Context;
use crate::embedded::{Access, connect, store_of};
use crate::exit::{Exit, Outcome};
use crate::objects::location::Location;
use crate::output::Output;
use crate::serve::Signals;

/// Time between two looks whether somebody else has unmounted it.
const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// Time that open files get to be closed when it is told to stop.
const END_DEADLINE: Duration = Duration::from_secs(10);

/// A mount and the node inside this process that it may need.
struct Running {
    mount: Mount,
    _node: Option<EmbeddedNode>,
}

pub(crate) async fn run(args: MountArgs, output: Output) -> Outcome {
    if args.daemon {
        return start_daemon(&args, output);
    }
    let _log = logging::init(&LogOptions {
        format: LogFormat::Human,
        // Its word about an unmount that we did ourselves is no news.
        filter: format!("{},fuser=error", args.log),
        access: false,
    })
    .map_err(Exit::usage)?;
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let context = Context {
        output,
        interrupt: Arc::new(move || seen.load(Ordering::Relaxed)),
    };
    let mut starting = tokio::task::spawn_blocking(move || start(&args, &context));
    let running = tokio::select! {
        started = &mut starting => started,
        () = signals.next() => {
            stop.store(true, Ordering::Relaxed);
            starting.await
        }
    };
    let running = running.map_err(Exit::failure)??;
    loop {
        tokio::select! {
            () = signals.next() => break,
            () = tokio::time::sleep(LOOK_PERIOD) => {
                if !running.mount.is_mounted() {
                    break;
                }
            }
        }
    }
    let end = tokio::task::spawn_blocking(move || {
        let Running { mount, _node } = running;
        mount.unmount(END_DEADLINE)
    });
    tokio::select! {
        ended = end => Ok(ended.map_err(Exit::failure)??),
        () = signals.next() => Err(Exit::failure(anyhow!("stopped at once by a second signal"))),
    }
}

/// Mounts. Blocks; not for a thread of an async runtime.
fn start(args: &MountArgs, context: &Context) -> Outcome<Running> {
    let location: Location = args.location.parse()?;
    let access = if args.writable {
        Access::Write
    } else {
        Access::Read
    };
    let (store, bucket, prefix) = match location {
        Location::Buckets => return Err(Exit::usage(anyhow!("name a bucket: forebay://bucket/…"))),
        Location::Node { bucket, key } => (None, bucket.to_string(), key),
        other => match store_of(other, true, access)? {
            Some((store, key)) => {
                let bucket = store.bucket.clone();
                (Some(store), bucket, key)
            }
            None => return Err(Exit::usage(anyhow!("{} is not a bucket", args.location))),
        },
    };
    let (client, node) = connect(store.as_ref(), args.node.node.as_deref(), access, context)?;
    let slash = if prefix.is_empty() || prefix.ends_with('/') {
        ""
    } else {
        "/"
    };
    let mut options = MountOptions::new(bucket, format!("{prefix}{slash}"), &args.dir);
    args.apply(&mut options);
    let mount = Mount::start(client, options)?;
    let mounted = json!({
        "mounted": args.location,
        "dir": args.dir,
        "rule": mount.explain(),
        "pid": std::process::id(),
    });
    context.output.data(&mounted);
    context
        .output
        .say(format!("mounted {} on {}", args.location, args.dir.display()));
    if args.explain {
        context.output.say(mount.explain());
    }
    Ok(Running { mount, _node: node })
}

/// Starts this command in the background and returns when it has mounted.
fn start_daemon(args: &MountArgs, output: Output) -> Outcome {
    let program = std::env::current_exe().context("cannot find this program")?;
    let typed = std::env::args_os().skip(1).filter(|arg| arg != "--daemon");
    let mut log = match &args.log_file {
        Some(path) => std::fs::File::options()
            .create(true)
            .append(true)
            .read(true)
            .open(path)
            .with_context(|| format!("cannot write the log {}", path.display()))?,
        None => tempfile::tempfile().context("cannot make a file for the log")?,
    };
    let begin = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut command = Command::new(program);
    if fstab::is_helper() {
        command.args(
            fstab::translated(std::env::args_os().skip(1))
                .into_iter()
                .filter(|arg| arg != "--daemon"),
        );
    } else {
        command.args(typed);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.try_clone().context("cannot use the log")?)
        .process_group(0)
        .spawn()
        .context("cannot start the mount in the background")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        // Nothing at its end: the child says why in its log.
        let _ = BufReader::new(out).read_line(&mut line);
    }
    if line.is_empty() {
        let mut said = String::new();
        let _ = log
            .seek(SeekFrom::Start(begin))
            .and_then(|_| log.read_to_string(&mut said));
        let _ = child.wait();
        let last = said
            .trim()
            .lines()
            .last()
            .unwrap_or("it ended without a word")
            .to_owned();
        let last = last.strip_prefix("error: ").unwrap_or(&last).to_owned();
        return Err(Exit::failure(anyhow!(last)));
    }
    if output.json {
        crate::output::print_line(line.trim());
    } else {
        output.say(line.trim());
    }
    Ok(())
}

pub(crate) fn unmount(args: &UmountArgs) -> Outcome {
    let detach = if args.lazy { Detach::Yes } else { Detach::No };
    let dir = std::path::absolute(&args.dir).map_err(Exit::usage)?;
    Ok(forebay_mount::unmount(&dir, detach)?)
}
