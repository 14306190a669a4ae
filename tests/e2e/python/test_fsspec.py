"""`forebay://` in fsspec: its own abstract test suite, and what is ours."""

import gc
import io
import os
import pickle
import random
import uuid

import fsspec
import pytest
from fsspec.tests import abstract

import forebay
from conftest import socket_of, stalled
from forebay.fsspec import ForebayFileSystem

MIB = 1 << 20


@pytest.fixture
def fs(node):
    return ForebayFileSystem(node=node, skip_instance_cache=True)


@pytest.fixture(scope="module")
def memory_node():
    with forebay.open("memory://", ram="64MiB") as node:
        yield node


class Fixtures(abstract.AbstractFixtures):
    """On a lake in memory: what is tested here is the file system, not the node below it."""

    @pytest.fixture
    def fs(self, memory_node):
        return ForebayFileSystem(node=memory_node, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, memory_node):
        name = f"b-{uuid.uuid4().hex[:12]}"
        memory_node.create_bucket(name)
        return f"{name}/folder"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    """fsspec's own tests of copy."""


class TestGet(abstract.AbstractGetTests, Fixtures):
    """fsspec's own tests of get."""


class TestPut(abstract.AbstractPutTests, Fixtures):
    """fsspec's own tests of put."""


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    """fsspec's own tests of open."""


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    """fsspec's own tests of pipe."""


def test_the_entry_point_finds_it(shared_daemon, monkeypatch):
    monkeypatch.setenv("FOREBAY_NODE", str(socket_of(shared_daemon)))
    name = f"b-{uuid.uuid4().hex[:12]}"
    fs = fsspec.filesystem("forebay", skip_instance_cache=True)
    assert type(fs).__name__ == "ForebayFileSystem"
    fs.mkdir(name)
    with fsspec.open(f"forebay://{name}/a.txt", "w") as file:
        file.write("hello")
    with fsspec.open(f"forebay://{name}/a.txt") as file:
        assert file.read() == b"hello"
    assert fsspec.open_files(f"forebay://{name}/*.txt")[0].path == f"{name}/a.txt"


def test_reading_like_a_file_is_like_reading_a_file(fs, bucket):
    data = random.Random(1).randbytes(5 * MIB + 123)
    fs.pipe_file(f"{bucket}/a", data)
    model = io.BytesIO(data)
    dice = random.Random(2)
    with fs.open(f"{bucket}/a") as file:
        assert file.size == len(data)
        for _ in range(300):
            size = dice.choice([0, 1, 7, 100, 4096, 65_536, 300_000, 3 * MIB])
            match dice.choice(["read", "read", "seek", "readinto", "relative"]):
                case "read":
                    assert file.read(size) == model.read(size)
                case "seek":
                    place = dice.randrange(len(data) + 100)
                    assert file.seek(place) == model.seek(place)
                case "relative":
                    place = -dice.randrange(len(data))
                    assert file.seek(place, os.SEEK_END) == model.seek(place, os.SEEK_END)
                case "readinto":
                    ours, theirs = bytearray(size), bytearray(size)
                    assert file.readinto(ours) == model.readinto(theirs)
                    assert ours == theirs
            assert file.tell() == model.tell()
        file.seek(0)
        assert file.read() == data
        assert file.read() == b""


def test_lines_are_read_whole(fs, bucket):
    lines = [bytes([65 + index % 26]) * (index * 37 % 5000) + b"\n" for index in range(2000)]
    fs.pipe_file(f"{bucket}/lines", b"".join(lines) + b"last")
    with fs.open(f"{bucket}/lines") as file:
        assert list(file) == [*lines, b"last"]
    with fs.open(f"{bucket}/lines", "r") as file:
        assert sum(1 for _ in file) == 2001


def test_small_reads_in_order_cost_few_requests(fs, node, bucket):
    fs.pipe_file(f"{bucket}/a", bytes(8 * MIB))
    with fs.open(f"{bucket}/a") as file:
        before = node.stats().requests
        for _ in range(8 * MIB // 4096):
            file.read(4096)
        assert node.stats().requests - before < 30


def test_reads_here_and_there_fetch_what_was_asked_for(daemon):
    process = daemon(ram="64MiB", nvme="0")
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("demo")
        node.put("demo/a", bytes(48 * MIB))
    process.restart()
    with forebay.connect(str(socket_of(process))) as node:
        fs = ForebayFileSystem(node=node, skip_instance_cache=True)
        with fs.open("demo/a") as file:
            for place in (40, 3, 30, 11, 20):
                file.seek(place * MIB)
                assert file.read(1000) == bytes(1000)
        assert node.stats().bytes_lake <= 5 * 64 * 1024


def test_an_open_file_keeps_to_its_version(fs, bucket):
    fs.pipe_file(f"{bucket}/a", b"old " * 1000)
    with fs.open(f"{bucket}/a") as file:
        fs.pipe_file(f"{bucket}/a", b"new!" * 1000)
        with pytest.raises(forebay.ForebayError):
            file.read()


def test_nobody_sees_a_file_before_it_is_closed(fs, bucket):
    with fs.open(f"{bucket}/a", "wb") as file:
        file.write(b"half")
        assert not fs.exists(f"{bucket}/a")
    assert fs.cat_file(f"{bucket}/a") == b"half"


def test_a_failed_write_leaves_nothing(fs, bucket):
    with pytest.raises(RuntimeError), fs.open(f"{bucket}/a", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert not fs.exists(f"{bucket}/a")


def test_a_file_that_nobody_closed_is_never_written(fs, bucket):
    file = fs.open(f"{bucket}/a", "wb")
    file.write(b"half")
    del file
    gc.collect()
    assert not fs.exists(f"{bucket}/a")


def test_a_transaction_is_all_at_its_end(fs, bucket):
    with fs.transaction:
        with fs.open(f"{bucket}/a", "wb") as file:
            file.write(b"a")
        assert not fs.exists(f"{bucket}/a")
    assert fs.cat_file(f"{bucket}/a") == b"a"


def test_a_large_file_is_written_whole(fs, bucket, tmp_path):
    data = random.Random(3).randbytes(70 * MIB)
    with fs.open(f"{bucket}/big", "wb") as file:
        for start in range(0, len(data), 5 * MIB):
            file.write(data[start : start + 5 * MIB])
    fs.get_file(f"{bucket}/big", str(tmp_path / "big"))
    assert (tmp_path / "big").read_bytes() == data
    fs.put_file(str(tmp_path / "big"), f"{bucket}/again")
    assert fs.checksum(f"{bucket}/again") != fs.checksum(f"{bucket}/big")
    assert fs.ukey(f"{bucket}/again") == fs.ukey(f"{bucket}/big")


def test_append_goes_on(fs, bucket):
    for word in (b"one", b"two"):
        with fs.open(f"{bucket}/a", "ab") as file:
            file.write(word)
    assert fs.cat_file(f"{bucket}/a") == b"onetwo"


def test_ranges_of_many_files_are_one_request(fs, node, bucket):
    for index in range(20):
        fs.pipe_file(f"{bucket}/{index}", b"0123456789")
    names = [f"{bucket}/{index}" for index in range(20)]
    before = node.stats().requests
    assert fs.cat_ranges(names, 2, 5) == [b"234"] * 20
    assert node.stats().requests - before <= 2
    found = fs.cat_ranges([*names[:2], f"{bucket}/none"], [0, 8, 0], [1, 100, 1])
    assert found[:2] == [b"0", b"89"]
    assert isinstance(found[2], FileNotFoundError)
    assert fs.cat_ranges(names[:1], [-3], [None]) == [b"789"]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{bucket}/none"], 0, 1, on_error="raise")


def test_cat_of_many_files_is_a_dict(fs, bucket):
    fs.pipe({f"{bucket}/x/a": b"A", f"{bucket}/x/b": b"B"})
    assert fs.cat(f"{bucket}/x", recursive=True) == {f"{bucket}/x/a": b"A", f"{bucket}/x/b": b"B"}
    assert fs.cat(f"{bucket}/x/a") == b"A"
    assert fs.cat_file(f"{bucket}/x/a", -1) == b"A"
    assert fs.cat([f"{bucket}/x/a"]) == {f"{bucket}/x/a": b"A"}


def test_looking_around(fs, bucket):
    fs.pipe({f"{bucket}/x/a": b"A", f"{bucket}/x/y/b": b"BB", f"{bucket}/c": b"C"})
    assert fs.ls(bucket, detail=False) == [f"{bucket}/c", f"{bucket}/x"]
    assert fs.find(bucket) == [f"{bucket}/c", f"{bucket}/x/a", f"{bucket}/x/y/b"]
    assert fs.find(f"{bucket}/x", withdirs=True) == [f"{bucket}/x", f"{bucket}/x/a", f"{bucket}/x/y", f"{bucket}/x/y/b"]
    assert fs.find(bucket, maxdepth=1) == [f"{bucket}/c"]
    assert fs.find(f"{bucket}/c") == [f"{bucket}/c"]
    assert fs.glob(f"{bucket}/**/b") == [f"{bucket}/x/y/b"]
    assert fs.isdir(f"{bucket}/x")
    assert fs.isdir(bucket)
    assert fs.isfile(f"{bucket}/c")
    assert fs.du(bucket) == 4
    assert fs.info(f"{bucket}/x/y/b")["size"] == 2
    assert bucket in fs.ls("", detail=False)
    assert fs.modified(f"{bucket}/c").tzinfo is not None
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{bucket}/none")
    with pytest.raises(FileNotFoundError):
        fs.info("there-is-no-such-bucket")


def test_moving_and_removing(fs, bucket):
    fs.pipe({f"{bucket}/x/a": b"A", f"{bucket}/x/y/b": b"BB"})
    fs.mv(f"{bucket}/x/a", f"{bucket}/z")
    assert fs.cat_file(f"{bucket}/z") == b"A"
    assert not fs.exists(f"{bucket}/x/a")
    fs.rm(f"{bucket}/x", recursive=True)
    assert fs.find(bucket) == [f"{bucket}/z"]
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{bucket}/none")


def test_file_systems_and_files_pickle(fs, bucket):
    fs.pipe_file(f"{bucket}/a", b"0123456789")
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file(f"{bucket}/a") == b"0123456789"
    with fs.open(f"{bucket}/a") as file:
        file.seek(4)
        with pickle.loads(pickle.dumps(file)) as other:
            assert other.read() == b"456789"


def test_a_node_that_does_not_answer_is_not_a_missing_file(daemon):
    process = daemon()
    with forebay.connect(str(socket_of(process)), timeout=0.5) as node:
        fs = ForebayFileSystem(node=node, skip_instance_cache=True)
        with stalled(process), pytest.raises(TimeoutError):
            fs.exists("demo/a")
