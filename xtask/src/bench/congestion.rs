//! TCP congestion control: benches run on cubic.
//!
//! bbr without its packet scheduler halves loopback and slows nginx more than us, so a comparison under it
//! flatters. The setting is inherited by every socket that listens later; it is put back at the end.

use std::fs;

const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Holds the machine on cubic; dropping it restores what was there.
pub(super) struct Cubic {
    before: Option<String>,
    /// The algorithm that sockets really use now.
    pub(super) in_use: String,
}

impl Cubic {
    /// Tries to switch; without root the machine's own setting stays, and the page says so.
    pub(super) fn hold() -> Self {
        let now = || {
            fs::read_to_string(SETTING).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        let before = now();
        let changed = before != "cubic" && fs::write(SETTING, "cubic").is_ok();
        Self {
            before: changed.then_some(before),
            in_use: now(),
        }
    }
}

impl Drop for Cubic {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(SETTING, before);
        }
    }
}
