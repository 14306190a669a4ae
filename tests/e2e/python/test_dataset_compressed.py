"""Shards that are compressed as a whole: read in order, mixed in windows, by number; never other bytes."""

import bz2
import gzip
import json
import uuid
import zlib

import pyarrow as pa
import pytest

import forebay
from dataset_shards import image_bytes, tar_shard
from test_dataset_formats import mds_shard

SAMPLES = 60


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


def brotli(data):
    return pa.compress(data, codec="brotli", asbytes=True)


def snappy(data):
    """Without a frame, as python-snappy's `compress`, which mosaicml-streaming calls."""
    return pa.compress(data, codec="snappy", asbytes=True)


@pytest.fixture
def home(shared_embedded):
    name = f"b-{uuid.uuid4().hex[:12]}"
    shared_embedded.create_bucket(name)
    return name


def numbers(loader):
    found = []
    for batch in loader:
        for number, view in zip(batch["cls"].tolist(), batch["bin"], strict=True):
            assert bytes(view) == image_bytes(number)
            found.append(number)
    return found


@pytest.mark.parametrize(("ending", "compress"), [("tar.gz", gzip.compress), ("tgz", gzip.compress), ("tar.zst", zstd), ("tar.bz2", bz2.compress)])
def test_a_compressed_tar_is_read_as_webdataset_reads_it(shared_embedded, home, tmp_path, ending, compress):
    import webdataset

    for shard in range(4):
        data = compress(tar_shard(range(shard * SAMPLES, (shard + 1) * SAMPLES)))
        shared_embedded.put(f"{home}/d/{shard}.{ending}", data)
        (tmp_path / f"{shard}.{ending}").write_bytes(data)
    ds = forebay.Dataset(f"{home}/d/", fields={"__key__": str, "bin": "bytes", "cls": int}, node=shared_embedded)
    every = list(range(4 * SAMPLES))
    assert len(ds) == len(every)
    if ending in ("tar.gz", "tgz"):
        # The one compression that webdataset takes without another program.
        theirs = webdataset.WebDataset(str(tmp_path / f"{{0..3}}.{ending}"), shardshuffle=False)
        assert [sample["__key__"] for sample in ds] == [sample["__key__"] for sample in theirs]
    assert numbers(ds.loader(batch_size=20)) == every
    mixed = numbers(ds.loader(batch_size=20, shuffle="window", seed=3))
    assert mixed != every and sorted(mixed) == every
    assert sorted(numbers(ds.loader(batch_size=20, shuffle="global", seed=3))) == every
    assert bytes(ds[217]["bin"]) == image_bytes(217)
    assert ds[3]["cls"] == 3


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_tfrecord_is_read_as_tfrecord_reads_it(shared_embedded, home, tmp_path, compress):
    import tfrecord

    path = tmp_path / "a.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    for number in range(SAMPLES):
        writer.write({"image": (image_bytes(number), "byte"), "label": (number, "int")})
    writer.close()
    packed = tmp_path / "a.tfrecord.gz"
    packed.write_bytes(compress(path.read_bytes()))
    shared_embedded.put(f"{home}/d/a.tfrecord.gz", packed.read_bytes())
    ds = forebay.Dataset(f"{home}/d/a.tfrecord.gz", fields={"record": "example"}, node=shared_embedded)
    assert len(ds) == SAMPLES
    if compress is gzip.compress:
        theirs = tfrecord.tfrecord_loader(str(packed), None, compression_type="gzip")
        for ours, other in zip(ds, theirs, strict=True):
            assert ours["record"]["image"] == [bytes(other["image"])]
            assert ours["record"]["label"].tolist() == other["label"].tolist()
    for number in (SAMPLES - 1, 0, 17):
        assert ds[number]["record"]["label"].tolist() == [number]


@pytest.mark.parametrize(
    ("name", "compress"),
    [("gz", gzip.compress), ("zstd", zstd), ("br", brotli), ("bz2", bz2.compress), ("snappy", snappy)],
)
def test_compressed_mds_is_read_and_its_hashes_are_checked(shared_embedded, home, name, compress):
    import hashlib

    columns = [("label", "int", 8), ("text", "str", None)]
    samples = [{"label": n.to_bytes(8, "little"), "text": f"größe {n}".encode()} for n in range(SAMPLES)]
    data, about = mds_shard(columns, samples)
    packed = compress(data)

    def index(digest, bytes_promised=len(data)):
        raw = {"basename": "shard.00000.mds", "bytes": bytes_promised, "hashes": {}}
        stored = {"basename": f"shard.00000.mds.{name}", "bytes": len(packed), "hashes": {"sha1": digest}}
        return {
            "version": 2,
            "shards": [{**about, "compression": f"{name}:1", "raw_data": raw, "zip_data": stored, "samples": SAMPLES}],
        }

    right = hashlib.sha1(packed).hexdigest()
    for folder, digest in (("good", right), ("bad", "0" * 40)):
        shared_embedded.put(f"{home}/{folder}/shard.00000.mds.{name}", packed)
        shared_embedded.put(f"{home}/{folder}/index.json", json.dumps(index(digest)).encode())
    ds = forebay.Dataset(f"{home}/good/", node=shared_embedded)
    assert (ds[7]["label"], ds[7]["text"]) == (7, "größe 7")
    seen = [label for batch in ds.loader(batch_size=10, shuffle="window", seed=1) for label in batch["label"]]
    assert sorted(seen) == list(range(SAMPLES))
    with pytest.raises(forebay.ChecksumError, match="sha1"):
        len(forebay.Dataset(f"{home}/bad/", node=shared_embedded))
    for wrong in (len(data) - 1, len(data) + 1):
        shared_embedded.put(f"{home}/bad/index.json", json.dumps(index(right, wrong)).encode())
        with pytest.raises(forebay.CorruptError):
            len(forebay.Dataset(f"{home}/bad/", node=shared_embedded))


def test_a_state_of_compressed_shards_resumes_on_another_world_size(shared_embedded, home):
    for shard in range(3):
        data = gzip.compress(tar_shard(range(shard * SAMPLES, (shard + 1) * SAMPLES)))
        shared_embedded.put(f"{home}/d/{shard}.tar.gz", data)
    ds = forebay.Dataset(f"{home}/d/", fields={"bin": "bytes", "cls": int}, node=shared_embedded)
    options = {"shuffle": "window", "window": "64KiB", "seed": 5}
    whole = numbers(ds.loader(batch_size=12, **options))
    first = ds.loader(batch_size=12, **options)
    steps = iter(first)
    seen = [number for _ in range(4) for number in next(steps)["cls"].tolist()]
    ranks = []
    for rank in range(2):
        loader = ds.loader(batch_size=6, rank=rank, world_size=2, **options)
        loader.load_state_dict(first.state_dict())
        ranks.append([batch["cls"].tolist() for batch in loader])
    rest = [number for step in zip(*ranks, strict=True) for batch in step for number in batch]
    assert seen + rest == whole
