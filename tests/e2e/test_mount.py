"""A mounted folder as programs use it: maps, locks, sqlite, and a daemon that dies while a file is written."""

import fcntl
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_node import binary, wait_for


class Mount:
    """`forebay mount` of a folder, in a process of its own."""

    def __init__(self, root: Path, *options: str):
        self.lake, self.path = root / "lake", root / "mnt"
        self.lake.mkdir(exist_ok=True)
        self.path.mkdir(exist_ok=True)
        self.options = options
        self.start()

    def start(self) -> None:
        command = [binary(), "mount", str(self.lake), str(self.path), *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("mounted"), "the mount ended; it says why above"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        subprocess.run([binary(), "umount", "--lazy", str(self.path)], check=False)


@pytest.fixture
def mount(tmp_path):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        pytest.skip("no /dev/fuse, or no rights to mount")
    mounts = []

    def make(*options: str) -> Mount:
        mounts.append(Mount(tmp_path, *options))
        return mounts[-1]

    yield make
    for made in mounts:
        made.end()


def test_a_map_stays_with_its_version_when_the_object_is_replaced(mount):
    mounted = mount("--passthrough", "at-open", "--names-ttl", "0s")
    old, new = b"o" * (20 << 20), b"n" * (20 << 20)
    (mounted.lake / "x").write_bytes(old)
    with open(mounted.path / "x", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:4] == b"oooo"
        (mounted.lake / "new").write_bytes(new)
        os.rename(mounted.lake / "new", mounted.lake / "x")
        wait_for("the new version", lambda: (mounted.path / "x").read_bytes() == new)
        assert view[:] == old
        file.seek(0)
        assert file.read() == old


def test_locks_hold_between_processes_of_one_mount(mount):
    mounted = mount("--writable")
    lock = mounted.path / "x.lock"
    script = "import fcntl, sys\nf = open(sys.argv[1], 'a')\nfcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other = subprocess.run([sys.executable, "-c", script, lock], capture_output=True, text=True)
        assert "BlockingIOError" in other.stderr
        fcntl.flock(file, fcntl.LOCK_UN)
        subprocess.run([sys.executable, "-c", script, lock], check=True)


def test_a_mount_that_is_killed_while_a_file_is_written_leaves_the_old_object_or_the_new_one(mount):
    mounted = mount("--writable")
    old, new = b"o" * 5_000_000, b"n" * 9_000_000
    script = (
        "import os, sys\n"
        "path, size = sys.argv[1], int(sys.argv[2])\n"
        "with open(path + '.tmp', 'wb') as f:\n"
        "    for i in range(0, size, 100_000):\n"
        "        f.write(b'n' * 100_000)\n"
        "        print('piece', flush=True)\n"
        "os.rename(path + '.tmp', path)\n"
        "print('renamed', flush=True)\n"
    )
    (mounted.lake / "x.pt").write_bytes(old)
    for pieces in (1, 45, 90, 91):
        command = [sys.executable, "-c", script, str(mounted.path / "x.pt"), str(len(new))]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        said = [writer.stdout.readline() for _ in range(pieces)]
        mounted.kill()
        writer.communicate(timeout=60)
        found = (mounted.lake / "x.pt").read_bytes()
        assert found in (old, new), f"{len(found)} bytes after {pieces} pieces"
        assert said[-1] != "renamed\n" or found == new
        mounted.start()
        assert (mounted.path / "x.pt").read_bytes() == found


def test_a_signal_uploads_nothing_that_is_still_being_written(mount):
    mounted = mount("--writable")
    (mounted.lake / "x").write_bytes(b"old")
    file = os.open(mounted.path / "x", os.O_WRONLY | os.O_TRUNC)
    os.write(file, b"half")
    mounted.process.send_signal(signal.SIGTERM)
    assert mounted.process.wait(timeout=60) != 0
    with pytest.raises(OSError, match="not connected"):
        os.close(file)
    assert (mounted.lake / "x").read_bytes() == b"old"
