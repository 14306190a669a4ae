//! Labelled places where a test lets the node die as by kill -9.
//!
//! `FOREBAY_FAIL_POINT=label` or `label:n` is read once; the node kills itself when it comes to that place
//! for the n-th time (the first, if not said). For tests of crashes alone: without the variable a place costs
//! one look at an empty option.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The variable.
const VARIABLE: &str = "FOREBAY_FAIL_POINT";

struct Wanted {
    label: String,
    left: AtomicU32,
}

/// Dies here, if that is what the test wants.
pub(super) fn fail_point(label: &str) {
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| std::env::var(VARIABLE).ok().map(|text| parse(&text)));
    let Some(wanted) = wanted.as_ref().filter(|wanted| wanted.label == label) else {
        return;
    };
    if wanted.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        tracing::error!(label, "dying on purpose");
        let own = rustix::process::getpid();
        // There is no way back: either the signal is delivered, or the process ends by itself.
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        std::process::abort();
    }
}

fn parse(text: &str) -> Wanted {
    let (label, count) = text.split_once(':').unwrap_or((text, "1"));
    Wanted {
        label: label.to_owned(),
        left: AtomicU32::new(count.parse().unwrap_or(1)),
    }
}
