"""Views and writable buffers: the buffer protocol, and who keeps memory alive."""

import gc
import pickle

import numpy as np
import pytest

import forebay
from payload import same


@pytest.fixture
def numbers(node, bucket):
    """An object of a million numbers, its name and the numbers."""
    array = np.arange(1 << 20, dtype=np.uint64)
    node.put(f"{bucket}/numbers", array)
    return f"{bucket}/numbers", array


def test_numpy_reads_a_view_in_place(node, numbers):
    name, expected = numbers
    view = node.get(name)
    array = np.frombuffer(view, dtype=np.uint64)
    assert not array.flags.writeable
    assert np.array_equal(array, expected)
    if view.is_mapped:
        assert view.sources.copied == 0


def test_a_view_is_read_only(node, numbers):
    memory = memoryview(node.get(numbers[0]))
    assert memory.readonly
    with pytest.raises(TypeError):
        memory[0] = 1


def test_an_array_keeps_the_memory_when_the_view_is_gone(node, numbers):
    name, expected = numbers
    array = np.frombuffer(node.get(name), dtype=np.uint64)
    gc.collect()
    with node.get(name) as view:
        kept = np.frombuffer(view, dtype=np.uint64)
    assert np.array_equal(array, expected)
    assert np.array_equal(kept, expected)


def test_release_is_refused_while_somebody_looks(node, numbers):
    view = node.get(numbers[0])
    memory = memoryview(view)
    with pytest.raises(BufferError):
        view.release()
    memory.release()
    view.release()
    view.release()
    assert view.released
    for use in (len, bytes, memoryview, lambda one: one.version):
        with pytest.raises((ValueError, BufferError)):
            use(view)


def test_memory_that_was_lent_without_a_trace_stays_until_the_object_is_gone(node, numbers):
    """As `torch.frombuffer` takes it: a plain buffer, given back at once, and a pointer kept with the object."""
    import ctypes
    import hashlib

    name, expected = numbers
    view = node.get(name)
    address = np.frombuffer(view, dtype=np.uint8).ctypes.data
    digest = hashlib.sha256(view).digest()
    view.release()
    assert view.released
    with pytest.raises(BufferError):
        memoryview(view)
    again = hashlib.sha256(ctypes.string_at(address, expected.nbytes)).digest()
    assert again == digest == hashlib.sha256(expected).digest()


def test_a_buffer_that_was_lent_without_a_trace_is_put_by_copy(node, bucket):
    import io

    buffer = node.alloc(5)
    assert io.BytesIO(b"hello").readinto(buffer) == 5
    node.put(f"{bucket}/a", buffer)
    assert bytes(node.get(f"{bucket}/a")) == b"hello"
    with pytest.raises(ValueError):
        len(buffer)


def test_views_stay_valid_after_the_node_object_is_closed(shared_daemon):
    node = forebay.connect(str(shared_daemon.root / "n.sock"))
    node.create_bucket("kept")
    node.put("kept/a", b"abc" * 1000)
    view = node.get("kept/a")
    node.close()
    assert bytes(view) == b"abc" * 1000


def test_a_view_of_one_process_pickles(node, numbers):
    name, expected = numbers
    view = node.get(name, 8, 800)
    back = pickle.loads(pickle.dumps(view))
    assert bytes(back) == expected[1:101].tobytes()
    assert (back.version, back.name, back.offset) == (view.version, name, 8)


def test_a_pickled_view_outlives_its_lease(node, numbers):
    view = node.get(numbers[0], 0, 1000)
    pickled = pickle.dumps(view)
    view.release()
    node.ping()
    assert bytes(pickle.loads(pickled)) == numbers[1].tobytes()[:1000]


def test_a_pickled_view_of_a_replaced_object_says_so(node, bucket):
    node.put(f"{bucket}/a", b"old")
    view = node.get(f"{bucket}/a")
    pickled = pickle.dumps(view)
    view.release()
    node.ping()
    node.put(f"{bucket}/a", b"new")
    with pytest.raises(forebay.ForebayError):
        pickle.loads(pickled)


def test_a_built_object_is_put_without_a_copy(node, bucket):
    before = node.stats()
    buffer = node.alloc(8 << 20)
    array = np.frombuffer(buffer, dtype=np.uint32)
    array[:] = np.arange(len(array), dtype=np.uint32)
    with pytest.raises(BufferError):
        node.put(f"{bucket}/built", buffer)
    expected = array.tobytes()
    del array
    assert node.put(f"{bucket}/built", buffer).bytes == 8 << 20
    assert node.stats().bytes_copied == before.bytes_copied
    same(bytes(node.get(f"{bucket}/built")), expected)


def test_a_buffer_is_used_up_by_put(node, bucket):
    buffer = node.alloc(10)
    node.put(f"{bucket}/a", buffer)
    for use in (len, memoryview, lambda one: node.put(f"{bucket}/b", one)):
        with pytest.raises((ValueError, BufferError)):
            use(buffer)
    buffer.release()


def test_a_wrong_name_does_not_use_a_buffer_up(node, bucket):
    buffer = node.alloc(3)
    with memoryview(buffer) as memory:
        memory[:] = b"abc"
    with pytest.raises(ValueError):
        node.put("nonsense", buffer)
    buffer.truncate(2)
    node.put(f"{bucket}/a", buffer)
    assert bytes(node.get(f"{bucket}/a")) == b"ab"


def test_a_full_arena_is_busy_and_has_room_again_after_release(daemon):
    process = daemon(args=["--staging", "32MiB"])
    node = forebay.connect(str(process.root / "n.sock"), timeout=3.0)
    held = [node.alloc(16 << 20), node.alloc(16 << 20)]
    with pytest.raises(forebay.ForebayError) as full:
        node.alloc(16 << 20)
    assert full.value.kind in {"busy", "timeout"}
    held.pop().release()
    assert len(node.alloc(16 << 20)) == 16 << 20


def test_memory_of_any_shape_is_taken_if_it_is_contiguous(node, bucket):
    array = np.arange(60, dtype=np.float32).reshape(5, 12)
    node.put(f"{bucket}/a", array)
    target = np.empty_like(array)
    assert node.read_into(f"{bucket}/a", target) == array.nbytes
    assert np.array_equal(target, array)
    with pytest.raises(ValueError, match="contiguous"):
        node.read_into(f"{bucket}/a", target[:, ::2])


def test_stats_say_where_bytes_came_from(node, numbers):
    name, expected = numbers
    before = node.stats()
    node.get(name)
    node.read_into(name, bytearray(4096))
    after = node.stats()
    assert after.requests > before.requests
    assert after.bytes_ram + after.bytes_lake - before.bytes_ram - before.bytes_lake >= expected.nbytes
    assert 0.0 <= after.hit_ratio <= 1.0
