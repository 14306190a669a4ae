"""safetensors files through `forebay.safetensors`: what the package `safetensors` writes and reads, and what it refuses."""

import json
import struct

import numpy
import pytest
import safetensors.numpy

import forebay
from forebay.safetensors import load_file, safe_open, save_file

TENSORS = {
    "weight": numpy.arange(24.0, dtype="f4").reshape(2, 3, 4),
    "bias": numpy.arange(5, dtype="i8"),
    "flags": numpy.array([True, False, True]),
    "scalar": numpy.array(2.5),
    "nothing": numpy.zeros((0, 3), "f2"),
}


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert numpy.array_equal(found[name], tensor), name


def test_what_we_write_the_package_reads_and_the_other_way_around(node, bucket):
    save_file(TENSORS, f"forebay://{bucket}/ours.safetensors", {"epoch": "3"}, node=node)
    same(safetensors.numpy.load(bytes(node.get(f"{bucket}/ours.safetensors"))), TENSORS)
    node.put(f"{bucket}/theirs.safetensors", safetensors.numpy.save(TENSORS, {"epoch": "3"}))
    for name in ("ours", "theirs"):
        same(load_file(f"forebay://{bucket}/{name}.safetensors", node=node), TENSORS)
        with safe_open(f"{bucket}/{name}.safetensors", "np", node=node) as file:
            assert file.keys() == sorted(TENSORS) and file.metadata() == {"epoch": "3"}
            assert set(file.offset_keys()) == set(TENSORS)


def test_arrays_are_views_of_the_nodes_memory_and_cannot_be_written_to(shared_embedded):
    shared_embedded.create_bucket("views")
    save_file({"w": numpy.arange(1 << 20, dtype="i8")}, "views/w.safetensors", node=shared_embedded)
    before = shared_embedded.stats().bytes_mapped
    mapped = load_file("views/w.safetensors", node=shared_embedded)["w"]
    assert shared_embedded.stats().bytes_mapped - before >= mapped.nbytes
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    copied = load_file("views/w.safetensors", mapped=False, node=shared_embedded)["w"]
    copied[0] = 7
    assert mapped[0] == 0 and numpy.array_equal(mapped[1:], copied[1:])


@pytest.mark.parametrize(
    "index",
    [
        numpy.s_[:],
        numpy.s_[1],
        numpy.s_[-1],
        numpy.s_[0:1],
        numpy.s_[:, 1:],
        numpy.s_[1, :, ::2],
        numpy.s_[..., -2],
        numpy.s_[:, 2:2],
        numpy.s_[1, 2, 3],
    ],
)
def test_a_slice_is_what_indexing_gives(shared_embedded, index):
    shared_embedded.create_bucket("slices")
    save_file(TENSORS, "slices/t.safetensors", node=shared_embedded)
    with safe_open("slices/t.safetensors", framework="np", node=shared_embedded) as file:
        part = file.get_slice("weight")
        assert part.get_shape() == [2, 3, 4] and part.get_dtype() == "F32"
        assert numpy.array_equal(part[index], TENSORS["weight"][index])
        with pytest.raises(IndexError):
            part[2]


def test_files_that_are_none_are_refused_by_name(shared_embedded):
    shared_embedded.create_bucket("broken")
    good = safetensors.numpy.save({"w": numpy.arange(4.0)})
    length = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8 : 8 + length])
    header["w"]["data_offsets"] = [0, 64]
    text = json.dumps(header).encode()
    cases = {
        "empty": b"",
        "short": b"\1\2",
        "length": struct.pack("<Q", 1 << 40) + good[8:],
        "text": struct.pack("<Q", 8) + b"not json",
        "list": struct.pack("<Q", 2) + b"[]",
        "range": struct.pack("<Q", len(text)) + text + good[8 + length :],
        "cut": good[:-8],
    }
    for name, content in cases.items():
        shared_embedded.put(f"broken/{name}", content)
        with pytest.raises(forebay.ForebayError) as refused:
            load_file(f"broken/{name}", node=shared_embedded)
        assert f"broken/{name}" in str(refused.value) or refused.value.kind == "out_of_range", (name, refused.value)


def test_what_cannot_be_in_a_file_is_refused(shared_embedded):
    shared_embedded.create_bucket("refused")
    shared = numpy.arange(3.0)
    for tensors, word in [
        ({"a": shared, "b": shared}, "same memory"),
        ({"a": [1, 2]}, "no tensor"),
        ({"a": forebay.Shard(shared, offset=(0,), shape=(6,))}, "whole"),
    ]:
        with pytest.raises(forebay.InvalidInputError, match=word):
            save_file(tensors, "refused/a.safetensors", node=shared_embedded)
    assert not shared_embedded.exists("refused/a.safetensors")
    with pytest.raises(forebay.NotFoundError):
        load_file("refused/a.safetensors", node=shared_embedded)
    with pytest.raises(forebay.UnsupportedError, match="framework"):
        safe_open("refused/a.safetensors", "jax", node=shared_embedded)
