//! Where log lines go and how they look: for people or as JSON, always on standard error.
//!
//! Access lines have the target `forebay::access` and can be switched off on their own. The S3 library logs
//! every refused request as an error of the server; those lines are ours to write, so its own are kept for
//! `debug`.

use forebay_core::{Error, Kind, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;
use crate::options::LogOptions;

/// The target of access lines.
pub const ACCESS_TARGET: &str = "forebay::access";

/// Libraries whose lines say nothing to an operator unless asked for.
const QUIET: &[&str] = &[
    "s3s=off",
    "hyper=warn",
    "hyper_util=warn",
    "reqwest=warn",
    "object_store=warn",
    "h2=warn",
];

/// Starts logging for the whole process; a second call is an error.
pub fn init(options: &LogOptions) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(options)?)
        .with_span_events(FmtSpan::NONE)
        .with_writer(std::io::stderr)
        .with_target(true);
    let started = match options.format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
        LogFormat::Human => builder.with_ansi(colours()).finish().try_init(),
    };
    started.map_err(|why| Error::new(Kind::Internal, "logging is already on").caused_by(why))
}

/// What is logged: the quiet list first, then what the operator said, which wins.
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
