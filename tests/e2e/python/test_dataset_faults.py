"""Damaged, replaced and undecodable samples: raised with their names, left out, or replaced; never other bytes."""

import io
import json
import os
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from conftest import socket_of
from dataset_shards import image_bytes, put_tars, tar_shard
from forebay_node import binary
from test_dataset_formats import mds_shard


@pytest.fixture
def lake(daemon):
    """A node without NVMe of the test's own, and the folder that its lake is."""
    process = daemon(ram="64MiB", nvme="0")
    with forebay.connect(str(socket_of(process))) as node:
        node.create_bucket("demo")
        yield process, node


def damage(process, object_name: str, wanted: bytes) -> None:
    """Turns over a byte of what is stored, behind the node's back and without changing its version."""
    path = process.lake_dir / object_name
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[data.index(wanted) + len(wanted) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def damaged(lake):
    """A dataset whose sample 7 has another byte than when it was indexed."""
    process, node = lake
    name = put_tars(node, "demo/d", shards=2, samples=10)
    ds = forebay.Dataset(name, fields={"bin": "bytes", "cls": int}, node=node)
    assert len(ds) == 20
    process.kill()
    damage(process, "demo/d/0000.tar", image_bytes(7))
    process.start()
    return forebay.Dataset(name, fields={"bin": "bytes", "cls": int}, node=node)


def test_a_damaged_sample_is_raised_with_shard_and_key(damaged):
    assert damaged.index_origin == "stored"
    with pytest.raises(forebay.CorruptError) as caught:
        damaged[7]
    context = dict(caught.value.context)
    assert (context["shard"], context["key"], context["field"]) == ("demo/d/0000.tar", "000007", "bin")
    assert bytes(damaged[8]["bin"]) == image_bytes(8)
    loader = damaged.loader(batch_size=4)
    batches = iter(loader)
    assert next(batches)["cls"].tolist() == [0, 1, 2, 3]
    with pytest.raises(forebay.CorruptError):
        next(batches)
    assert loader.state_dict()["position"] == 4


def test_a_damaged_sample_is_skipped_and_recorded(damaged):
    loader = damaged.loader(batch_size=4, on_error="skip")
    found = [batch["cls"].tolist() for batch in loader]
    assert found[1] == [4, 5, 6]
    assert sum(found, []) == [number for number in range(20) if number != 7]
    (bad,) = loader.stats().bad
    assert (bad.number, bad.shard, bad.key, bad.substitute) == (7, "demo/d/0000.tar", "000007", None)


def test_a_damaged_sample_is_replaced_and_recorded(damaged):
    loader = damaged.loader(batch_size=4, on_error="substitute", shuffle="global", seed=2)
    found = [batch["cls"].tolist() for batch in loader]
    assert [len(batch) for batch in found] == [4] * 5
    assert 7 not in sum(found, [])
    (bad,) = loader.stats().bad
    assert (bad.number, sum(found, []).count(bad.substitute)) == (7, 2)


def test_a_shard_that_is_replaced_in_mid_epoch_is_an_error_that_says_so(lake):
    _, node = lake
    name = put_tars(node, "demo/d", shards=4, samples=50)
    ds = forebay.Dataset(name, fields={"bin": "bytes", "cls": int}, node=node)
    loader = ds.loader(batch_size=10, prefetch="off", batches_ahead=1, threads=1)
    batches = iter(loader)
    for step in range(5):
        assert next(batches)["cls"].tolist() == list(range(step * 10, step * 10 + 10))
    node.put("demo/d/0002.tar", tar_shard(range(900, 950)))
    seen = []
    with pytest.raises(forebay.ChangedError, match="open the dataset again"):
        for batch in batches:
            for number, view in zip(batch["cls"].tolist(), batch["bin"], strict=True):
                assert bytes(view) == image_bytes(number)
                seen.append(number)
    assert seen == list(range(50, 100))
    again = forebay.Dataset(name, fields={"cls": int}, node=node)
    assert again[100] == {"cls": 900}
    with pytest.raises(forebay.ChangedError):
        again.loader(batch_size=10).load_state_dict(loader.state_dict())


def broken(number: int) -> dict[str, bytes]:
    return {"num": b"many" if number == 5 else b"%d" % number, "json": b"{" if number == 5 else b"{}"}


@pytest.fixture(scope="module")
def undecodable(shared_embedded):
    shared_embedded.create_bucket("undecodable")
    return put_tars(shared_embedded, "undecodable/d", shards=1, samples=12, extra=broken)


@pytest.mark.parametrize("how", [int, "json"])
def test_what_cannot_be_decoded_is_a_bad_sample(undecodable, shared_embedded, how):
    field = "num" if how is int else "json"
    ds = forebay.Dataset(undecodable, fields={field: how, "cls": int}, node=shared_embedded)
    with pytest.raises(forebay.CorruptError):
        ds[5]
    loader = ds.loader(batch_size=4)
    batches = iter(loader)
    next(batches)
    with pytest.raises(forebay.CorruptError):
        next(batches)
    assert loader.state_dict()["position"] == 4
    skipping = ds.loader(batch_size=4, on_error="skip")
    assert [batch["cls"].tolist() for batch in skipping] == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11]]
    assert [bad.key for bad in skipping.stats().bad] == ["000005"]
    replacing = ds.loader(batch_size=4, on_error="substitute")
    assert [batch["cls"].tolist() for batch in replacing] == [[0, 1, 2, 3], [4, 6, 6, 7], [8, 9, 10, 11]]
    assert replacing.stats().bad[0].substitute == 6


def test_what_python_cannot_read_of_a_column_is_a_bad_sample(shared_embedded):
    shared_embedded.create_bucket("bad-columns")
    samples = [{"doc": b"[" if number == 2 else b"[%d]" % number} for number in range(4)]
    data, about = mds_shard([("doc", "json", None)], samples)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    index = {"version": 2, "shards": [{**about, "raw_data": raw, "zip_data": None, "samples": 4}]}
    shared_embedded.put("bad-columns/mds/shard.00000.mds", data)
    shared_embedded.put("bad-columns/mds/index.json", json.dumps(index).encode())
    numbers = pa.array([0, 1, 2, 2**63], pa.uint64())
    table = pa.table({"text": ["1", "2", "x", "4"], "real": [0.5, 1.5, float("nan"), 3.5], "big": numbers})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    shared_embedded.put("bad-columns/rows/0.parquet", sink.getvalue())
    for name, fields in [("mds", {"doc": "auto"}), ("rows", {"text": int}), ("rows", {"real": int})]:
        ds = forebay.Dataset(f"bad-columns/{name}/", fields=fields, node=shared_embedded)
        with pytest.raises(forebay.CorruptError):
            ds[2]
        loader = ds.loader(batch_size=4, on_error="skip")
        (values,) = next(iter(loader)).values()
        assert len(values) == 3
        assert [bad.number for bad in loader.stats().bad] == [2]
    big = forebay.Dataset("bad-columns/rows/", fields={"big": int}, node=shared_embedded)
    assert big[3]["big"] == 2**63


def test_a_function_of_map_that_raises_makes_a_bad_sample(undecodable, shared_embedded):
    def half(sample):
        if sample["cls"] == 3:
            raise RuntimeError("no half of it")
        return sample

    ds = forebay.Dataset(undecodable, fields={"cls": int}, node=shared_embedded).map(half)
    loader = ds.loader(batch_size=4, on_error="skip")
    assert [batch["cls"].tolist() for batch in loader][0] == [0, 1, 2]
    assert loader.stats().bad[0].reason == "no half of it"
    with pytest.raises(RuntimeError):
        next(iter(ds.loader(batch_size=4)))


def test_a_field_that_one_sample_lacks_is_said(shared_embedded):
    shared_embedded.create_bucket("lacking")
    name = put_tars(
        shared_embedded, "lacking/d", shards=1, samples=3, extra=lambda number: {"txt": b"x"} if number != 1 else {}
    )
    ds = forebay.Dataset(name, fields={"txt": str}, node=shared_embedded)
    with pytest.raises(forebay.CorruptError, match="no such field"):
        ds[1]
    assert next(iter(forebay.Dataset(name, node=shared_embedded).loader(batch_size=3)))["txt"][1] is None


def test_data_that_nobody_trusted_has_signed_is_refused(shared_embedded, tmp_path):
    def command(*args):
        subprocess.run([binary(), "dataset", *map(str, args)], check=True, capture_output=True, timeout=60)

    def samples(verify):
        return len(forebay.Dataset("signed/set/", fields={"cls": int}, node=shared_embedded, verify=verify))

    data = tmp_path / "set"
    data.mkdir()
    for number in range(3):
        (data / f"{number}.tar").write_bytes(tar_shard(range(number * 10, number * 10 + 10)))
    for name in ("ours", "theirs"):
        command("keygen", tmp_path / name)
    ours, theirs = tmp_path / "ours.pub", tmp_path / "theirs.pub"
    command("manifest", data, "--sign", tmp_path / "ours")
    shared_embedded.create_bucket("signed")
    for path in data.glob("*.tar"):
        shared_embedded.put(f"signed/set/{path.name}", path.read_bytes())
    with pytest.raises(forebay.NotFoundError, match="SHA256SUMS"):
        samples(True)
    for name in ("SHA256SUMS", "SHA256SUMS.sig"):
        shared_embedded.put(f"signed/set/{name}", (data / name).read_bytes())
    assert samples(True) == samples(ours) == samples([theirs, ours.read_text()]) == 30
    with pytest.raises(forebay.DeniedError, match="no key that you trust"):
        samples(theirs)
    with pytest.raises(forebay.InvalidInputError, match="no key is trusted"):
        samples([])
    shared_embedded.put("signed/set/1.tar", tar_shard(range(1, 11)))
    assert samples(False) == 30
    for verify in (True, ours):
        with pytest.raises(forebay.ChecksumError, match=r"1\.tar"):
            samples(verify)


def test_raw_files_and_several_buckets_are_verified(shared_embedded, tmp_path):
    def vouched(bucket):
        data = tmp_path / bucket
        for kind in ("cat", "dog"):
            (data / kind).mkdir(parents=True)
            for number in range(3):
                (data / kind / f"{number}.jpg").write_bytes(image_bytes(number))
        manifest = [binary(), "dataset", "manifest", str(data)]
        subprocess.run(manifest, check=True, capture_output=True, timeout=60)
        shared_embedded.create_bucket(bucket)
        # Not what the command has left in `.forebay/`.
        for path in [*data.glob("SHA256SUMS"), *data.glob("*/*.jpg")]:
            shared_embedded.put(f"{bucket}/{path.relative_to(data)}", path.read_bytes())

    def opened():
        return forebay.Dataset(["raw-one/", "raw-two/"], node=shared_embedded, labels="folder", verify=True)

    vouched("raw-one")
    vouched("raw-two")
    ds = opened()
    assert len(ds) == 12
    assert bytes(ds[4]["data"]) == image_bytes(1)
    shared_embedded.put("raw-two/dog/1.jpg", image_bytes(7))
    with pytest.raises(forebay.ChangedError):
        ds[10]
    with pytest.raises(forebay.ChecksumError, match=r"dog/1\.jpg"):
        len(opened())
    shared_embedded.delete("raw-two/SHA256SUMS")
    with pytest.raises(forebay.NotFoundError, match="raw-two"):
        len(opened())


def test_what_is_skipped_is_warned_of_whoever_found_it(damaged, caplog):
    def picky(sample):
        if sample["cls"] == 12:
            raise ValueError("not this one")
        return sample

    loader = damaged.map(picky).loader(batch_size=4, on_error="skip")
    seen = [number for batch in loader for number in batch["cls"].tolist()]
    assert seen == [number for number in range(20) if number not in (7, 12)]
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["000007" in warned[0], "000012" in warned[1], len(warned)] == [True, True, 2]
    stats = loader.stats()
    assert (stats.samples, stats.bad_samples) == (18, 2)


def test_no_batch_is_empty(damaged):
    loader = damaged.loader(batch_size=1, on_error="skip")
    seen = [batch["cls"].tolist() for batch in loader]
    assert len(seen) == 20 and all(len(batch) == 1 and batch != [7] for batch in seen)
    (bad,) = loader.stats().bad
    assert bad.number == 7 and seen.count([bad.substitute]) == 2

    def refuse(sample):
        raise ValueError("not this one")

    with pytest.raises(forebay.CorruptError, match="every sample of a batch is bad"):
        next(iter(damaged.map(refuse).loader(batch_size=4, on_error="skip")))


def test_a_damaged_shard_is_left_out_by_name_if_asked_for(shared_embedded, home, caplog):
    name = put_tars(shared_embedded, f"{home}/d", shards=3, samples=10)
    whole = tar_shard(range(10, 20))
    shared_embedded.put(f"{home}/d/0001.tar", whole[: len(whole) // 2])
    fields = {"cls": int}
    with pytest.raises(forebay.CorruptError, match="0001.tar"):
        forebay.Dataset(name, fields, shared_embedded).index()
    ds = forebay.Dataset(name, fields, shared_embedded, on_error="skip")
    seen = [number for batch in ds.loader(batch_size=5) for number in batch["cls"].tolist()]
    assert seen == [*range(10), *range(20, 30)]
    ((shard, reason),) = ds.damaged_shards
    assert shard == f"{home}/d/0001.tar" and "offset" in reason
    assert any(shard in record.getMessage() for record in caplog.records)
    # Who did not ask for that still learns of it.
    with pytest.raises(forebay.CorruptError):
        forebay.Dataset(name, fields, shared_embedded).index()
