"""mosaicml-streaming, both ways: what it writes is read as it reads it itself, and it reads what `pack` writes."""

import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
streaming = pytest.importorskip("streaming", reason="an environment of its own: requirements/mosaicml.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import numpy as np  # noqa: E402
from dataset_shards import image_bytes, tar_shard  # noqa: E402
from forebay_node import binary  # noqa: E402
from PIL import Image  # noqa: E402

SAMPLES = 120
#: One column for each encoding but pickle, which we refuse.
COLUMNS = {
    "bytes": "bytes",
    "str": "str",
    "int": "int",
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("float16", "float32", "float64", "str_int", "str_float", "str_decimal", "json")},
    "any": "ndarray",
    "typed": "ndarray:int16",
    "shaped": "ndarray:float32:2,3",
    "pil": "pil",
    "jpeg": "jpeg",
    "png": "png",
    "jpeg_array": "jpeg_array",
    "jpegarray": "jpegarray",
    "pils": "list[pil]",
    "jpegs": "list[jpeg]",
    "pngs": "list[png]",
}


def image(number: int, mode: str = "RGB") -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (5, 7 + number % 3, channels) if channels > 1 else (5, 7 + number % 3)
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8), mode)


def jpeg(number: int) -> bytes:
    body = io.BytesIO()
    image(number).save(body, format="JPEG")
    return body.getvalue()


def sample(number: int) -> dict:
    """A sample with the edges of every type, and values that differ from number to number."""
    kinds = {name: np.dtype(name) for name in COLUMNS if name.startswith(("uint", "int")) and name != "int"}
    wide = {
        name: kind.type(np.iinfo(kind).max - number if number % 2 else np.iinfo(kind).min + number)
        for name, kind in kinds.items()
    }
    return {
        "bytes": image_bytes(number) if number % 5 else b"",
        "str": f"größe {number}" * (number % 4),
        "int": number - 60,
        **wide,
        **{name: np.dtype(name).type(number / 8 - 3) for name in ("float16", "float32", "float64")},
        "str_int": (-1) ** number * 10 ** (number % 30),
        "str_float": number / 7,
        "str_decimal": Decimal(number).scaleb(-(number % 3)),
        "json": {"n": number, "list": [number, None, "ä"]},
        "any": np.arange(1 + number % 9, dtype=("int8", "float64", "uint16")[number % 3]).reshape(1, -1),
        "typed": np.full((1 + number % 3, 2), number, np.int16),
        "shaped": np.arange(6, dtype=np.float32).reshape(2, 3) + number,
        "pil": image(number, ("RGB", "L")[number % 2]),
        "jpeg": image(number),
        "png": image(number, ("RGB", "L")[number % 2]),
        # The library cannot read an empty one of these back.
        "jpeg_array": [jpeg(number + at) for at in range(1 + number % 3)],
        "jpegarray": [jpeg(number)],
        "pils": [image(number + at, ("RGB", "L")[at % 2]) for at in range(number % 4)],
        "jpegs": [image(number + at) for at in range(number % 3)],
        "pngs": [image(number + at, "L") for at in range(number % 2)],
    }


def same(ours, theirs) -> bool:
    if isinstance(theirs, Image.Image):
        ours = ours if isinstance(ours, Image.Image) else Image.open(io.BytesIO(bytes(ours)))
        return ours.mode == theirs.mode and ours.size == theirs.size and ours.tobytes() == theirs.tobytes()
    if isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and np.array_equal(ours, theirs)
    if isinstance(theirs, bytes):
        return bytes(ours) == theirs
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    ours, theirs = (value.item() if isinstance(value, np.generic) else value for value in (ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


def write(folder: Path, columns: dict, samples, **options) -> Path:
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=1 << 16, **options) as writer:
        for one in samples:
            writer.write(one)
    return folder


def read(folder: Path, **options):
    """Their reader, in order. It unpacks compressed shards beside them."""
    streaming.base.util.clean_stale_shared_memory()
    return streaming.StreamingDataset(local=str(folder), batch_size=1, num_canonical_nodes=1, shuffle=False, **options)


@pytest.mark.parametrize(
    ("compression", "hashes"),
    [
        (None, []),
        (None, ["sha1", "xxh64"]),
        ("gz:3", ["md5"]),
        ("zstd:7", ["sha256", "xxh3_64"]),
        ("zstd", ["sha512", "xxh128"]),
        ("br:5", ["sha1"]),
        ("bz2", []),
        ("snappy", ["xxh64"]),
    ],
)
def test_what_its_writer_writes_is_read_as_it_reads_it(tmp_path, compression, hashes):
    samples = map(sample, range(SAMPLES))
    folder = write(tmp_path / "lake/mds/d", COLUMNS, samples, compression=compression, hashes=hashes)
    assert len(json.loads((folder / "index.json").read_text())["shards"]) > 3
    with forebay.open(f"file://{tmp_path / 'lake'}") as node:
        ds = forebay.Dataset("mds/d/", node=node)
        assert len(ds) == SAMPLES
        ours = list(ds)
        shuffled = [
            {name: values[at] for name, values in batch.items()}
            for batch in ds.loader(batch_size=10, shuffle="window", seed=4)
            for at in range(10)
        ]
    theirs = list(read(folder))
    assert len(ours) == len(theirs) == SAMPLES
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert set(one) - {"__key__"} == set(other) == set(COLUMNS)
        for name in COLUMNS:
            assert same(one[name], other[name]), (number, name, one[name], other[name])
    assert sorted(one["int"] for one in shuffled) == [number - 60 for number in range(SAMPLES)]
    for one in shuffled:
        for name in COLUMNS:
            assert same(one[name], theirs[one["int"] + 60][name]), (one["int"], name)


def test_a_shard_that_does_not_have_its_hash_is_refused(tmp_path):
    columns = {"int": "int", "bytes": "bytes"}
    samples = ({"int": number, "bytes": image_bytes(number)} for number in range(SAMPLES))
    folder = write(tmp_path / "lake/mds/d", columns, samples, hashes=["xxh64"])
    shard = folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with forebay.open(f"file://{tmp_path / 'lake'}") as node:
        with pytest.raises(forebay.ChecksumError, match=r"shard\.00001\.mds"):
            len(forebay.Dataset("mds/d/", node=node))


def pack(*args):
    command = [binary(), "dataset", "pack", *map(str, args), "--format", "mds"]
    ran = subprocess.run(command, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()


def test_it_reads_what_pack_writes_of_a_tar(tmp_path):
    extra = lambda number: {"json": b'{"n": %d}' % number, "txt": f"größe {number}".encode()}  # noqa: E731
    (tmp_path / "tars").mkdir()
    for shard in range(3):
        (tmp_path / f"tars/{shard}.tar").write_bytes(tar_shard(range(shard * 40, shard * 40 + 40), extra))
    pack(tmp_path / "tars", tmp_path / "out", "--shard-size", "64KiB")
    assert len(list((tmp_path / "out").glob("*.mds"))) > 3
    theirs = list(read(tmp_path / "out"))
    assert len(theirs) == SAMPLES
    for number, one in enumerate(theirs):
        assert one == {
            "__key__": f"{number:06}",
            "bin": image_bytes(number),
            "cls": b"%d" % number,
            "json": {"n": number},
            "txt": f"größe {number}",
        }
    by_number = streaming.LocalDataset(str(tmp_path / "out"))
    assert by_number[77]["bin"] == image_bytes(77)


@pytest.mark.parametrize("compress", ["none", "zstd", "zstd:19"])
def test_it_reads_what_pack_writes_of_its_own_shards(tmp_path, compress):
    """Every encoding goes through; its own check of hashes too."""
    source = write(tmp_path / "source", COLUMNS, map(sample, range(SAMPLES)), compression="zstd")
    pack(source, tmp_path / "out", "--shard-size", "96KiB", "--compress", compress)
    assert len(list((tmp_path / "out").glob("*.zstd"))) == (0 if compress == "none" else len(list((tmp_path / "out").glob("*.mds*"))))
    before = list(read(source))
    after = list(read(tmp_path / "copy", remote=str(tmp_path / "out"), validate_hash="sha256"))
    assert len(before) == len(after) == SAMPLES
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        assert sorted(one) == sorted(other)
        for name in COLUMNS:
            assert same(one[name], other[name]), (number, name, one[name], other[name])
