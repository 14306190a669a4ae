//! The machine: kernel features, limits, memory, disk, network. Linux only; what cannot be read is said.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use forebay_core::format_bytes;
use forebay_node::machine::{Machine, disk_free_bytes};
use forebay_node::options::NodeOptions;
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::process::{Resource, getrlimit};

use super::{Finding, Grade};

const OPEN_FILES_WANTED: u64 = 8192;
const BLOCK_BYTES: usize = 4096;

pub(super) fn check(options: &NodeOptions) -> Vec<Finding> {
    let mut findings = vec![
        kernel(),
        memfd(),
        io_uring(),
        huge_pages(),
        open_files(),
        memlock(),
        congestion(),
        mount(),
    ];
    findings.extend([
        memory(options),
        data_folder(&options.data_dir),
        disk(options),
        direct_io(&options.data_dir),
    ]);
    findings
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let grade = if version >= (5, 10) {
        Grade::Fine
    } else {
        Grade::Note
    };
    Finding::new(
        "kernel",
        grade,
        release,
        "Forebay is tested on Linux 5.10 and newer.",
    )
}

fn memfd() -> Finding {
    let made = memfd_create("forebay-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    match made {
        Ok(_) => Finding::new("memfd", Grade::Fine, "works", ""),
        Err(why) => Finding::new(
            "memfd",
            Grade::Problem,
            format!("{why}"),
            "The RAM tier lies in memfds; without them the node cannot start.",
        ),
    }
}

fn io_uring() -> Finding {
    let meaning = "The NVMe tier uses a thread pool, which is a little slower; nothing else changes.";
    match read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("0") => Finding::new("io_uring", Grade::Fine, "allowed by the kernel", ""),
        Some(level) => Finding::new(
            "io_uring",
            Grade::Note,
            format!("switched off (io_uring_disabled={level})"),
            meaning,
        ),
        None => Finding::new(
            "io_uring",
            Grade::Note,
            "the kernel does not say whether it is allowed",
            meaning,
        ),
    }
}

fn huge_pages() -> Finding {
    let chosen =
        |path| read(path).and_then(|text| Some(text.split('[').nth(1)?.split(']').next()?.to_owned()));
    let enabled = chosen("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_else(|| "not there".into());
    let shmem =
        chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_else(|| "not there".into());
    let grade = if matches!(enabled.as_str(), "always" | "madvise") {
        Grade::Fine
    } else {
        Grade::Note
    };
    let meaning = "First reads of mapped pages run at half speed; allow it with \
                   'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'.";
    Finding::new(
        "huge pages",
        grade,
        format!("{enabled}, shared memory {shmem}"),
        meaning,
    )
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    let found = limit
        .current
        .map_or("unlimited".into(), |count| count.to_string());
    let grade = if current >= OPEN_FILES_WANTED {
        Grade::Fine
    } else {
        Grade::Note
    };
    let meaning =
        format!("Connections and cache files need one each; raise it with 'ulimit -n {OPEN_FILES_WANTED}'.");
    Finding::new("open files", grade, found, meaning)
}

fn memlock() -> Finding {
    let found = getrlimit(Resource::Memlock)
        .current
        .map_or("unlimited".into(), format_bytes);
    Finding::new("locked memory", Grade::Fine, found, "")
}

fn congestion() -> Finding {
    let found = read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_else(|| "unknown".into());
    let grade = if found == "bbr" { Grade::Note } else { Grade::Fine };
    let meaning = "bbr paces loopback and fast local networks below what they can do; cubic is faster there.";
    Finding::new("tcp congestion", grade, found, meaning)
}

fn mount() -> Finding {
    match forebay_mount::probe() {
        Ok(offers) => {
            let yes = |offered: bool| if offered { "yes" } else { "no" };
            let found = format!(
                "FUSE {}.{}, no_open {}, passthrough {}, readdirplus {}",
                offers.protocol.0,
                offers.protocol.1,
                yes(offers.no_open),
                yes(offers.passthrough),
                yes(offers.readdirplus)
            );
            let grade = if offers.passthrough {
                Grade::Fine
            } else {
                Grade::Note
            };
            let meaning = "'forebay mount' works; large files are read through the kernel's cache, because \
                           passthrough needs Linux 6.9 and CAP_SYS_ADMIN.";
            Finding::new("mount", grade, found, meaning)
        }
        Err(why) => Finding::new(
            "mount",
            Grade::Note,
            why.to_string(),
            "'forebay mount' does not work here; nothing else needs it.",
        ),
    }
}

fn memory(options: &NodeOptions) -> Finding {
    let total = Machine::measure(&options.nvme_dir()).map_or(0, |machine| machine.memory_bytes);
    let found = format!(
        "{} for the RAM tier, {} in all",
        format_bytes(options.ram_bytes),
        format_bytes(total)
    );
    let grade = if options.ram_bytes > total / 4 * 3 {
        Grade::Problem
    } else {
        Grade::Fine
    };
    Finding::new(
        "memory",
        grade,
        found,
        "The RAM tier takes more than three quarters of the memory; lower it with --ram.",
    )
}

fn data_folder(dir: &Path) -> Finding {
    let shown = dir.display();
    if !dir.exists() {
        return Finding::new(
            "data folder",
            Grade::Fine,
            format!("{shown} is made at the first start"),
            "",
        );
    }
    let probe = dir.join(".forebay-doctor");
    match File::create(&probe).and_then(|_| fs::remove_file(&probe)) {
        Ok(()) => Finding::new("data folder", Grade::Fine, format!("{shown} is writable"), ""),
        Err(why) => Finding::new(
            "data folder",
            Grade::Problem,
            format!("{shown}: {why}"),
            "The node keeps its keys and the NVMe tier there; give this user the right to write.",
        ),
    }
}

fn disk(options: &NodeOptions) -> Finding {
    let Ok(machine) = Machine::measure(&options.nvme_dir()) else {
        return Finding::new(
            "disk",
            Grade::Note,
            "cannot be asked",
            "The NVMe tier takes what it gets.",
        );
    };
    let free = disk_free_bytes(&options.nvme_dir()).unwrap_or(0);
    let tier = if options.nvme_bytes == 0 {
        "off".into()
    } else {
        format_bytes(options.nvme_bytes)
    };
    let grade = if options.nvme_bytes > machine.disk_bytes {
        Grade::Note
    } else {
        Grade::Fine
    };
    let meaning = "The NVMe tier will be smaller than its budget; lower it with --nvme or make room.";
    Finding::new(
        "disk",
        grade,
        format!("{} free, NVMe tier {tier}", format_bytes(free)),
        meaning,
    )
}

fn direct_io(dir: &Path) -> Finding {
    let meaning = "The NVMe tier goes through the page cache, which then holds the same bytes twice.";
    let place = dir
        .ancestors()
        .find(|place| place.is_dir())
        .unwrap_or(Path::new("."));
    let place = if place.as_os_str().is_empty() {
        Path::new(".")
    } else {
        place
    };
    let probe = place.join(".forebay-doctor-direct");
    let result = write_direct(&probe);
    // Best effort: the probe may never have been made.
    let _ = fs::remove_file(&probe);
    match result {
        Ok(()) => Finding::new(
            "direct i/o",
            Grade::Fine,
            format!("works in {}", place.display()),
            "",
        ),
        Err(why) => Finding::new(
            "direct i/o",
            Grade::Note,
            format!("{}: {why}", place.display()),
            meaning,
        ),
    }
}

/// One aligned block past the page cache.
fn write_direct(path: &Path) -> std::io::Result<()> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(flags)
        .open(path)?;
    let buffer = vec![0u8; 2 * BLOCK_BYTES];
    let start = buffer.as_ptr().align_offset(BLOCK_BYTES);
    file.write_all(&buffer[start..start + BLOCK_BYTES])
}
