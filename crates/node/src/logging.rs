//! Log lines: for people or as JSON, always on standard error.
//!
//! Access lines have the target `forebay::access` and can be switched off on their own. The S3 library logs
//! every refused request as an error of the server; those lines are ours to write, so its own are kept for
//! `debug`. Nobody waits for standard error: `logging/queue.rs` has the lines that are on their way.

mod queue;

use std::io::{Stderr, Write};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::{Queue, Urgency};
use crate::config::LogFormat;
use crate::options::LogOptions;

/// The target of access lines.
pub const ACCESS_TARGET: &str = "forebay::access";

/// Longest wait of a panicking thread for a writer that stands still.
const PANIC_WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest wait of the ending process for it.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// Libraries whose lines say nothing to an operator unless asked for.
const QUIET: &[&str] = &[
    "s3s=off",
    "hyper=warn",
    "hyper_util=warn",
    "reqwest=warn",
    "object_store=warn",
    "h2=warn",
];

/// The lines of this process; there is one standard error.
static LINES: OnceLock<Queue<Stderr>> = OnceLock::new();

/// Logging, once it is on. Dropping it writes what is still on its way.
#[derive(Debug)]
#[must_use = "the last lines are written when it is dropped"]
pub struct Log {
    writer: Option<JoinHandle<()>>,
}

/// Starts logging for the whole process; a second call is an error.
pub fn init(options: &LogOptions) -> Result<Log> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(options)?)
        .with_span_events(FmtSpan::NONE)
        .with_writer(ToQueue)
        .with_target(true);
    let started = match options.format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
        LogFormat::Human => builder.with_ansi(colours()).finish().try_init(),
    };
    started.map_err(|why| Error::new(Kind::Internal, "logging is already on").caused_by(why))?;
    let panics = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        lines().flush_within(PANIC_WAIT_MAX);
        panics(panic);
    }));
    let writer = std::thread::Builder::new()
        .name("log".into())
        .spawn(|| lines().write_until_end(say_dropped))
        .map_err(|why| Error::new(Kind::Internal, "cannot start the thread of the log").caused_by(why))?;
    Ok(Log { writer: Some(writer) })
}

/// Lines dropped since the start because whoever reads the log was behind.
pub(crate) fn dropped_lines() -> u64 {
    LINES.get().map_or(0, Queue::dropped)
}

fn lines() -> &'static Queue<Stderr> {
    LINES.get_or_init(|| Queue::new(std::io::stderr()))
}

fn say_dropped(lines: u64) {
    tracing::warn!(lines, "log lines were dropped: whoever reads the log is behind");
}

impl Drop for Log {
    fn drop(&mut self) {
        lines().end();
        // A writer that stands still would keep the process from ending.
        if lines().flush_within(END_WAIT_MAX)
            && let Some(writer) = self.writer.take()
        {
            let _ = writer.join();
        }
    }
}

/// Hands lines to the queue.
struct ToQueue;

/// Takes one line, which comes in one piece.
struct LineWriter(Urgency);

impl<'a> MakeWriter<'a> for ToQueue {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter(Urgency::Urgent)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LineWriter {
        LineWriter(match *meta.level() {
            Level::ERROR | Level::WARN => Urgency::Urgent,
            _ => Urgency::Ordinary,
        })
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        lines().push(line, self.0);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns what is logged: the quiet list first, then what the operator said, which wins.
fn filter(options: &LogOptions) -> Result<EnvFilter> {
    let mut directives: Vec<&str> = Vec::new();
    let is_plain_level = !options.filter.contains(['=', ',']);
    let is_chatty = is_plain_level && matches!(options.filter.as_str(), "debug" | "trace");
    if !is_chatty {
        directives.extend(QUIET);
    }
    let access = format!("{ACCESS_TARGET}={}", if options.access { "info" } else { "off" });
    directives.push(&access);
    directives.push(&options.filter);
    EnvFilter::try_new(directives.join(",")).map_err(|why| {
        let message = format!(
            "'{}' is not a log filter ({why}); write for example info or forebay_lake=debug,info",
            options.filter
        );
        Error::new(Kind::InvalidInput, message).with("setting", "log.filter")
    })
}

fn colours() -> bool {
    use std::io::IsTerminal;
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(filter_text: &str, access: bool) -> Result<String> {
        let options = LogOptions {
            format: LogFormat::Human,
            filter: filter_text.into(),
            access,
        };
        filter(&options).map(|filter| filter.to_string())
    }

    #[test]
    fn access_lines_and_noisy_libraries_have_switches_of_their_own() {
        assert!(text("info", true).unwrap().contains("forebay::access=info"));
        assert!(text("info", false).unwrap().contains("forebay::access=off"));
        assert!(text("info", true).unwrap().contains("s3s=off"));
        assert!(!text("debug", true).unwrap().contains("s3s=off"));
    }

    #[test]
    fn a_wrong_filter_names_the_setting() {
        assert!(
            text("forebay=loud", true)
                .unwrap_err()
                .to_string()
                .contains("log.filter")
        );
    }
}
