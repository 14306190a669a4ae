//! Process figures of the kernel: CPU time, memory, children.

use std::fs;

use anyhow::{Context, Result};

/// The kernel counts CPU time in these.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time of a process and all its descendants, in microseconds.
pub(super) fn cpu_micros(pid: u32) -> f64 {
    let own = fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|text| ticks(&text))
        .unwrap_or(0.0);
    own * 1e6 / TICKS_PER_SECOND + children(pid).into_iter().map(cpu_micros).sum::<f64>()
}

fn ticks(stat: &str) -> Option<f64> {
    // The name in brackets may hold anything; fields are counted after it. utime and stime are 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// The most memory that a process ever had resident, shared segments included.
pub(super) fn resident_bytes_peak(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM in /proc")?;
    let kib: u64 = line
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .context("VmHWM is no number")?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_name_does_not_move_the_fields() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 50 25 0 0 20 0 1 0 99 0 0";
        assert_eq!(ticks(stat), Some(75.0));
    }
}
