"""Objects larger than the node's staging memory: whole or absent, whoever is killed."""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import forebay
from conftest import socket_of
from forebay.fsspec import ForebayFileSystem
from forebay_node import wait_for

MIB = 1 << 20
STAGING = "staging = '8MiB'"
#: Eight times the staging memory.
SIZE = 64 * MIB

#: Begins a write, sends part of it, says so and waits to be killed.
KILLED_CLIENT = """
    import sys
    import forebay

    writer = forebay.connect(sys.argv[1]).writer("box/key")
    for _ in range(20):
        writer.write(bytes(1 << 20))
    print("sent", flush=True)
    sys.stdin.read()
"""

#: Writes a large file in small pieces and prints by how much its memory grew.
STREAMING_CLIENT = """
    import re, sys
    from pathlib import Path
    from forebay.fsspec import ForebayFileSystem

    def memory():
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

    fs = ForebayFileSystem(sys.argv[1])
    piece = bytes(range(256)) * 4096
    with fs.open("box/warm", "wb") as file:
        file.write(piece)
    before = memory()
    with fs.open("box/key", "wb") as file:
        for _ in range(96):
            file.write(piece)
    print(memory() - before)
"""


def content(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


def leftovers(process) -> list[Path]:
    """What unfinished writes left in the lake."""
    area = process.lake_dir / ".forebay/folder/tmp"
    return list(area.iterdir()) if area.exists() else []


@pytest.fixture
def process(daemon):
    process = daemon(config=STAGING)
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("box")
    return process


@pytest.fixture(params=["daemon", "remote"])
def node(request, process):
    """The same node, on this host and over HTTP."""
    with forebay.connect(process.s3_url if request.param == "remote" else str(socket_of(process))) as node:
        yield node


def test_what_is_larger_than_staging_memory_is_put_from_memory_buffers_and_files(node, tmp_path):
    data = content(1)
    receipt = node.put("box/memory", data, metadata={"owner": "lab"}, content_type="text/plain")
    assert receipt.bytes == SIZE
    assert node.read("box/memory") == data
    stat = node.stat("box/memory")
    assert (stat.version, dict(stat.metadata), stat.content_type) == (receipt.version, {"owner": "lab"}, "text/plain")

    buffer = node.alloc(SIZE)
    with memoryview(buffer) as memory:
        memory[:] = data
    node.put("box/buffer", buffer)
    assert node.read("box/buffer") == data

    path = tmp_path / "data"
    path.write_bytes(data)
    with path.open("rb") as file:
        assert node.put("box/file", file).bytes == SIZE
    assert node.read("box/file") == data


def test_conditions_hold_for_large_objects(node):
    data = content(2, 24 * MIB)
    version = node.put("box/key", data, if_absent=True).version
    with pytest.raises(forebay.AlreadyExistsError):
        node.put("box/key", data, if_absent=True)
    with pytest.raises(forebay.AlreadyExistsError), node.writer("box/key", if_absent=True) as writer:
        writer.write(data)
    with pytest.raises(forebay.PreconditionFailedError):
        node.put("box/key", data, if_version="other")
    with node.writer("box/key", if_version=version) as writer:
        writer.write(data)
    assert writer.receipt == forebay.PutReceipt(node.stat("box/key").version, len(data))


def test_a_writer_that_fails_or_is_given_up_leaves_nothing(node, process):
    with pytest.raises(RuntimeError), node.writer("box/key") as writer:
        writer.write(content(3, 20 * MIB))
        raise RuntimeError
    assert not node.exists("box/key")
    writer = node.writer("box/key", size=30 * MIB)
    writer.write(content(3, 20 * MIB))
    with pytest.raises(forebay.InvalidInputError):
        writer.close()
    assert not node.exists("box/key")
    wait_for("nothing to be left", lambda: not leftovers(process))


def test_files_of_fsspec_are_sent_while_they_are_written(process):
    command = [sys.executable, "-c", textwrap.dedent(STREAMING_CLIENT), str(socket_of(process))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 0
    assert int(done.stdout) < 48 * MIB, "it kept the file"
    with forebay.connect(str(socket_of(process))) as node:
        assert node.read("box/key") == bytes(range(256)) * 4096 * 96


def test_many_open_files_and_transactions_wait_in_temporary_files(process, tmp_path):
    fs = ForebayFileSystem(str(socket_of(process)), skip_instance_cache=True)
    files = [fs.open(f"box/many/{number}", "wb") for number in range(20)]
    data = content(4, 6 * MIB)
    for file in files:
        file.write(data)
    for file in files:
        file.close()
    assert [fs.cat(f"box/many/{number}") == data for number in range(20)] == [True] * 20
    with fs.transaction:
        with fs.open("box/later", "wb") as file:
            file.write(data)
        assert not fs.exists("box/later")
    assert fs.cat("box/later") == data
    (tmp_path / "data").write_bytes(data)
    fs.put_file(str(tmp_path / "data"), "box/file")
    assert fs.cat("box/file") == data


def test_a_client_killed_in_the_middle_leaves_the_old_object_and_no_leftovers(process):
    with forebay.connect(str(socket_of(process))) as node:
        node.put("box/key", b"old")
        command = [sys.executable, "-c", textwrap.dedent(KILLED_CLIENT), str(socket_of(process))]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert client.stdout.readline() == b"sent\n"
        assert leftovers(process)
        client.kill()
        client.communicate(timeout=60)
        wait_for("the write to be given up", lambda: process.metric("forebay_native_open_writes") == 0)
        assert not leftovers(process)
        assert node.read("box/key") == b"old"
        assert node.put("box/key", content(5)).bytes == SIZE, "the staging memory is free again"


def test_a_node_killed_in_the_middle_is_a_clear_error_and_leaves_nothing_visible(process):
    with forebay.connect(str(socket_of(process))) as node:
        node.put("box/key", b"old")
        writer = node.writer("box/key")
        writer.write(content(6, 20 * MIB))
        process.restart()
        with pytest.raises(forebay.UnavailableError):
            writer.write(content(6, 20 * MIB))
        with pytest.raises(forebay.ForebayError):
            writer.close()
        assert node.read("box/key") == b"old"
        assert node.put("box/key", content(6)).bytes == SIZE
