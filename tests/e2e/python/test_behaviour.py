"""What a node does, whatever kind it is: embedded and daemon give identical results."""

import io
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

import forebay
from payload import same


def content(seed: int, size: int) -> bytes:
    import random

    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [1, 4095, 65_536, 1 << 20, (3 << 20) + 17, 20 << 20])
def test_what_was_put_is_what_is_got(node, bucket, size):
    data = content(size, size)
    receipt = node.put(f"{bucket}/object", data)
    assert receipt.bytes == size
    with node.get(f"{bucket}/object") as view:
        assert len(view) == size
        same(bytes(view), data)
        assert view.version == receipt.version
        assert view.object_bytes == size
        assert view.offset == 0


def test_an_empty_object_is_an_empty_view(node, bucket):
    node.put(f"{bucket}/empty", b"")
    with node.get(f"{bucket}/empty") as view:
        assert len(view) == 0
        assert bytes(view) == b""
        assert memoryview(view).nbytes == 0
    assert node.read(f"{bucket}/empty") == b""
    assert node.read_into(f"{bucket}/empty", bytearray(10)) == 0


def test_ranges_are_cut_at_the_end(node, bucket):
    node.put(f"{bucket}/digits", b"0123456789")
    name = f"{bucket}/digits"
    assert bytes(node.get(name, 3, 4)) == b"3456"
    assert bytes(node.get(name, 8, 100)) == b"89"
    assert bytes(node.get(name, 4)) == b"456789"
    assert bytes(node.get(name, -3)) == b"789"
    assert bytes(node.get(name, -100)) == b"0123456789"


def test_a_range_behind_the_end_is_out_of_range(node, bucket):
    node.put(f"{bucket}/digits", b"0123456789")
    with pytest.raises(forebay.OutOfRangeError):
        node.get(f"{bucket}/digits", 11, 1)
    assert node.read(f"{bucket}/digits", 11, 1) == b""
    assert node.read(f"{bucket}/digits", 10, 1) == b""


def test_a_negative_offset_takes_no_length(node, bucket):
    node.put(f"{bucket}/digits", b"0123456789")
    with pytest.raises(forebay.InvalidInputError):
        node.get(f"{bucket}/digits", -3, 1)


def test_read_into_fills_what_it_is_given(node, bucket):
    data = content(7, 5 << 20)
    node.put(f"{bucket}/big", data)
    target = bytearray(1 << 20)
    assert node.read_into(f"{bucket}/big", target, offset=12345) == len(target)
    same(bytes(target), data[12345 : 12345 + len(target)])
    assert node.read_into(f"{bucket}/big", target, offset=len(data) - 10) == 10
    assert bytes(target[:10]) == data[-10:]


def test_read_into_refuses_memory_that_cannot_be_written(node, bucket):
    node.put(f"{bucket}/a", b"abc")
    with pytest.raises(forebay.InvalidInputError, match="read-only"):
        node.read_into(f"{bucket}/a", b"xyz")


def test_read_of_more_than_a_window_is_whole(node, bucket):
    data = content(8, 70 << 20)
    node.put(f"{bucket}/big", data)
    same(node.read(f"{bucket}/big"), data)
    same(node.read(f"{bucket}/big", 1, 65 << 20), data[1 : 1 + (65 << 20)])


def test_a_batch_keeps_order_and_gives_each_its_own_result(node, bucket):
    node.put(f"{bucket}/a", b"aaaa")
    node.put(f"{bucket}/b", b"bbbb")
    items = [f"{bucket}/b", (f"{bucket}/a", 1, 2), f"{bucket}/none", f"{bucket}/a"]
    found = node.get_batch(items, errors="return")
    assert [bytes(found[0]), bytes(found[1]), bytes(found[3])] == [b"bbbb", b"aa", b"aaaa"]
    assert isinstance(found[2], forebay.NotFoundError)
    with pytest.raises(forebay.NotFoundError):
        node.get_batch(items)


def test_a_batch_takes_members_of_tar_shards(node, bucket):
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as tar:
        for index in range(3):
            entry = tarfile.TarInfo(f"{index:04}.jpg")
            entry.size = 1000 + index
            tar.addfile(entry, io.BytesIO(bytes([index]) * entry.size))
    node.put(f"{bucket}/shard.tar", shard.getvalue())
    names = [(f"{bucket}/shard.tar", "0002.jpg"), (f"{bucket}/shard.tar", "0000.jpg")]
    assert [bytes(view) for view in node.get_batch(names)] == [b"\x02" * 1002, b"\x00" * 1000]
    assert bytes(node.get(f"{bucket}/shard.tar", member="0001.jpg")) == b"\x01" * 1001
    with pytest.raises(forebay.NotFoundError):
        node.get(f"{bucket}/shard.tar", member="none.jpg")


def test_conditions_decide_writes(node, bucket):
    name = f"{bucket}/once"
    first = node.put(name, b"one", if_absent=True)
    with pytest.raises(FileExistsError):
        node.put(name, b"two", if_absent=True)
    second = node.put(name, b"two", if_version=first.version)
    with pytest.raises(forebay.PreconditionFailedError):
        node.put(name, b"three", if_version=first.version)
    assert bytes(node.get(name)) == b"two"
    assert node.stat(name).version == second.version


def test_content_type_and_metadata_come_back(node, bucket):
    node.put(f"{bucket}/a", b"{}", content_type="application/json", metadata={"who": "me"})
    info = node.stat(f"{bucket}/a")
    assert (info.content_type, info.metadata, info.bytes) == ("application/json", {"who": "me"}, 2)


def test_a_new_version_is_seen_and_an_old_view_keeps_its_bytes(node, bucket):
    node.put(f"{bucket}/a", b"old")
    old = node.get(f"{bucket}/a")
    node.put(f"{bucket}/a", b"newer")
    assert bytes(node.get(f"{bucket}/a")) == b"newer"
    assert bytes(old) == b"old"
    with pytest.raises(forebay.ForebayError) as refused:
        node.get(f"{bucket}/a", version=old.version)
    assert refused.value.kind in {"precondition_failed", "changed"}


def test_deleting_twice_is_fine(node, bucket):
    node.put(f"{bucket}/a", b"a")
    assert node.exists(f"{bucket}/a")
    node.delete(f"{bucket}/a")
    node.delete(f"{bucket}/a")
    assert not node.exists(f"{bucket}/a")


def test_listing_is_complete_and_in_order(node, bucket):
    names = [f"{bucket}/{folder}/{index:03}" for folder in "ab" for index in range(60)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: node.put(name, b"x"), names))
    assert [info.name for info in node.list(bucket)] == names
    assert [info.name for info in node.list(f"{bucket}/b/")] == names[60:]
    level = node.list_level(bucket)
    assert (level.prefixes, level.objects) == ([f"{bucket}/a/", f"{bucket}/b/"], [])
    assert len(node.list_level(f"forebay://{bucket}/a/").objects) == 60


def test_buckets_are_made_and_listed(node, bucket):
    assert bucket in node.buckets()
    node.create_bucket(bucket)
    with pytest.raises(forebay.NotFoundError):
        list(node.list("there-is-no-such-bucket"))


def test_names_may_be_urls(node, bucket):
    node.put(f"forebay://{bucket}/a/b", b"1")
    assert bytes(node.get(f"{bucket}/a/b")) == b"1"


def test_many_threads_share_one_client(node, bucket):
    objects = {f"{bucket}/{index}": content(index, 10_000 + 7919 * index) for index in range(40)}
    for name, data in objects.items():
        node.put(name, data)

    def work(seed: int) -> int:
        good = 0
        for name, data in objects.items():
            offset = seed * 131 % len(data)
            good += bytes(node.get(name, offset)) == data[offset:]
            target = bytearray(len(data))
            good += node.read_into(name, target) == len(data) and target == data
        return good

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [2 * len(objects)] * 16
