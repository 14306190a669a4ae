"""`forebay dataset pack` between all formats: the libraries of the formats read what comes out as they read what went in."""

import gzip
import hashlib
import json
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataset_shards import image_bytes, tar_shard
from forebay_node import binary
from test_dataset_parquet import table

SAMPLES = 40


def forebay(*args, code=0):
    ran = subprocess.run([binary(), "--json", "dataset", *map(str, args)], capture_output=True, timeout=120)
    assert ran.returncode == code, ran.stderr.decode()
    return json.loads(ran.stderr if code else ran.stdout)


@pytest.fixture
def tars(tmp_path):
    """Two shards, of which one is compressed; a sample of the second has a field more."""
    source = tmp_path / "tars"
    source.mkdir()
    extra = lambda number: {"txt": b"only here"} if number == 30 else {}  # noqa: E731
    (source / "0.tar").write_bytes(tar_shard(range(20), extra))
    (source / "1.tar.gz").write_bytes(gzip.compress(tar_shard(range(20, SAMPLES), extra)))
    return source


def rows(folder):
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def test_a_tar_becomes_parquet_that_pyarrow_reads_and_a_tar_again(tars, tmp_path):
    import webdataset

    done = forebay("pack", tars, tmp_path / "rows", "--format", "parquet", "--shard-size", "64KiB")
    assert done["samples"] == SAMPLES and done["shards"] > 1
    found = rows(tmp_path / "rows")
    assert found.column_names == ["__key__", "bin", "cls", "txt"]
    assert found.schema.field("__key__").type == pa.string() and found.schema.field("txt").type == pa.string()
    for number, row in enumerate(found.to_pylist()):
        assert row == {
            "__key__": f"{number:06}",
            "bin": image_bytes(number),
            "cls": b"%d" % number,
            "txt": "only here" if number == 30 else None,
        }
    assert subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tmp_path / "rows").returncode == 0
    forebay("pack", tmp_path / "rows", tmp_path / "again", "--format", "tar")
    samples = list(webdataset.WebDataset(str(tmp_path / "again/shard-000000.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == [f"{number:06}" for number in range(SAMPLES)]
    assert [sample["bin"] for sample in samples] == [image_bytes(number) for number in range(SAMPLES)]
    assert [sample.get("txt") for sample in samples].count(b"only here") == 1


@pytest.fixture
def parquet(tmp_path):
    source = tmp_path / "parquet"
    source.mkdir()
    for shard in range(2):
        pq.write_table(table(shard * 300, 300), source / f"{shard}.parquet", row_group_size=100)
    return source


def test_parquet_is_packed_anew_with_its_types_and_nulls(parquet, tmp_path):
    forebay("pack", parquet, tmp_path / "out", "--format", "parquet", "--shard-size", "20KiB")
    before, after = rows(parquet), rows(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 2
    # Structs come apart into their parts, fixed bytes and decimals lose their width.
    flat = before.flatten()
    assert sorted(after.column_names) == sorted(flat.column_names)
    for name in flat.column_names:
        theirs, ours = flat[name].to_pylist(), after[name].to_pylist()
        if name == "price":
            theirs = [str(value) for value in theirs]
        assert ours == theirs, name
    for name in ("id", "small", "big", "half", "day", "us", "tokens", "grid"):
        assert after.schema.field(name).type == flat.schema.field(name).type, name


def test_a_shuffled_pack_of_parquet_has_every_row_once(parquet, tmp_path):
    for name in ("one", "two"):
        forebay("pack", parquet, tmp_path / name, "--format", "parquet", "--shuffle", 7)
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert one.equals(two)
    ids = one["id"].to_pylist()
    assert sorted(ids) == list(range(600)) and ids != sorted(ids)


def test_parquet_becomes_examples_that_tfrecord_reads(parquet, tmp_path):
    import tfrecord

    for path in parquet.glob("*.parquet"):
        # Lists with nulls in them, and numbers above those that TensorFlow has.
        pq.write_table(pq.read_table(path).drop_columns(["tags", "big"]), path)
    forebay("pack", parquet, tmp_path / "out", "--format", "tfrecord")
    theirs = rows(parquet).to_pylist()
    found = list(tfrecord.tfrecord_loader(str(tmp_path / "out/shard-000000.tfrecord"), None))
    assert len(found) == 600
    for ours, row in zip(found, theirs, strict=True):
        assert ours["id"].tolist() == [row["id"]]
        assert ours["small"].tolist() == [row["small"]]
        assert ours["vector"].tolist() == row["vector"]
        assert bytes(ours["text"]) == row["text"].encode()
        assert ("maybe" in ours) == (row["maybe"] is not None)


def test_parquet_becomes_mds_unless_it_has_nulls(parquet, tmp_path):
    import forebay as package

    refused = forebay("pack", parquet, tmp_path / "null", "--format", "mds", code=2)
    assert "lacks a field" in refused["error"]["message"]
    plain = tmp_path / "plain"
    plain.mkdir()
    columns = ["id", "score", "half", "flag", "text", "raw", "price", "tokens", "day"]
    pq.write_table(table(0, 50).select(columns), plain / "0.parquet", row_group_size=20)
    forebay("pack", plain, tmp_path / "out", "--format", "mds")
    about = json.loads((tmp_path / "out/index.json").read_text())["shards"][0]
    encodings = dict(zip(about["column_names"], about["column_encodings"], strict=True))
    assert encodings["id"] == "int64" and encodings["tokens"] == "json" and encodings["price"] == "str_decimal"
    with package.open(f"file://{tmp_path}") as node:
        ds = package.Dataset("out/", node=node)
        rows = table(0, 50).to_pylist()
        for number in (0, 7, 49):
            sample, row = ds[number], rows[number]
            assert (sample["id"], sample["score"], sample["text"]) == (row["id"], row["score"], row["text"])
            assert (sample["price"], sample["tokens"], sample["day"]) == (row["price"], row["tokens"], str(row["day"]))


def one_file(folder, **columns):
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "0.parquet")
    return folder


@pytest.mark.parametrize("values", [[[1, None]], [["a", None]], [[0.5, None]]])
def test_a_null_inside_of_a_list_becomes_no_feature(tmp_path, values):
    source = one_file(tmp_path / "rows", values=values)
    refused = forebay("pack", source, tmp_path / "out", "--format", "tfrecord", code=2)
    assert "null" in refused["error"]["message"]


@pytest.mark.parametrize(("column", "why"), [([2**63], "9223372036854775807"), ([[1, 2**64 - 1]], "9223372036854775807"), ([1e300], "32 bits")])
def test_numbers_that_tensorflow_does_not_have_are_refused(tmp_path, column, why):
    """They wrapped around to negative numbers, and became infinite."""
    kind = pa.list_(pa.uint64()) if isinstance(column[0], list) else None
    source = one_file(tmp_path / "rows", number=pa.array(column, kind or (pa.float64() if why == "32 bits" else pa.uint64())))
    refused = forebay("pack", source, tmp_path / "out", "--format", "tfrecord", code=2)
    assert why in refused["error"]["message"] and "column: number" in refused["error"]["message"]
    fits = one_file(tmp_path / "fits", number=pa.array([2**63 - 1], pa.uint64()), odd=[float("-inf")])
    forebay("pack", fits, tmp_path / "whole", "--format", "tfrecord")
    import tfrecord

    (found,) = tfrecord.tfrecord_loader(str(tmp_path / "whole/shard-000000.tfrecord"), None)
    assert found["number"].tolist() == [2**63 - 1] and found["odd"].tolist() == [float("-inf")]


def test_lists_with_numbers_that_json_lacks_are_read_back_by_python(tmp_path):
    import math

    import forebay as package
    import webdataset

    rows = [[0.5, math.nan, math.inf], [], [-math.inf]]
    source = one_file(tmp_path / "rows", json=rows)
    for format in ("tar", "mds"):
        forebay("pack", source, tmp_path / format, "--format", format)
    tar = webdataset.WebDataset(str(tmp_path / "tar/shard-000000.tar"), shardshuffle=False).decode()
    theirs = [sample["json"] for sample in tar]
    with package.open(f"file://{tmp_path}") as node:
        ours = {format: [sample["json"] for sample in package.Dataset(f"{format}/", fields={"json": "json"}, node=node)] for format in ("tar", "mds")}
    for found in (theirs, ours["tar"], ours["mds"]):
        assert repr(found) == repr(rows)


def test_numbers_and_keys_of_mds_survive_in_a_tar_and_in_examples(tmp_path):
    """They were packed as the bytes that MDS has of them, which no other library reads."""
    import tfrecord
    import webdataset

    columns = {"__key__": ["a", "b/c", "d"], "cls": [-5, 0, 2**62], "small": pa.array([1, 2, 255], pa.uint8()), "score": pa.array([0.5, -1.0, float("inf")], pa.float32()), "txt": ["x", "", "größe"]}
    source = one_file(tmp_path / "rows", **columns)
    forebay("pack", source, tmp_path / "mds", "--format", "mds")
    forebay("pack", tmp_path / "mds", tmp_path / "tar", "--format", "tar")
    theirs = list(webdataset.WebDataset(str(tmp_path / "tar/shard-000000.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in theirs] == columns["__key__"]
    assert [int(sample["cls"]) for sample in theirs] == columns["cls"]
    assert [int(sample["small"]) for sample in theirs] == columns["small"].to_pylist()
    assert [float(sample["score"]) for sample in theirs] == columns["score"].to_pylist()
    assert [sample["txt"].decode() for sample in theirs] == columns["txt"]
    forebay("pack", tmp_path / "mds", tmp_path / "records", "--format", "tfrecord")
    found = list(tfrecord.tfrecord_loader(str(tmp_path / "records/shard-000000.tfrecord"), None))
    assert [one["cls"].tolist() for one in found] == [[number] for number in columns["cls"]]
    assert [one["score"].tolist() for one in found] == [[number] for number in columns["score"].to_pylist()]
    assert [bytes(one["__key__"]).decode() for one in found] == columns["__key__"]
    forebay("pack", tmp_path / "mds", tmp_path / "again", "--format", "mds")
    first, second = (json.loads((tmp_path / name / "index.json").read_text()) for name in ("mds", "again"))
    assert first == second


@pytest.fixture
def examples(tmp_path):
    """Records with the names that TensorFlow's own datasets have."""
    import tfrecord

    (tmp_path / "records").mkdir()
    writer = tfrecord.TFRecordWriter(str(tmp_path / "records/0.tfrecord"))
    for number in range(30):
        one = {"image/encoded": (image_bytes(number), "byte"), "image/class/Label": (number - 9, "int"), "vector": ([number / 4, -1.5], "float")}
        writer.write({**one, "boxes": (list(range(number % 3)), "int")})
    writer.close()
    return tmp_path / "records"


def test_examples_become_fields_in_every_format(examples, tmp_path):
    """They were one field of bytes, which only TensorFlow can read."""
    import forebay as package
    import webdataset

    numbers = range(30)
    forebay("pack", examples, tmp_path / "tar", "--format", "tar")
    theirs = list(webdataset.WebDataset(str(tmp_path / "tar/shard-000000.tar"), shardshuffle=False).decode())
    assert [bytes(sample["image.encoded"]) for sample in theirs] == [image_bytes(number) for number in numbers]
    assert [int(sample["image.class.label"]) for sample in theirs] == [number - 9 for number in numbers]
    assert [json.loads(sample["vector"]) for sample in theirs] == [[number / 4, -1.5] for number in numbers]
    assert [json.loads(sample["boxes"]) for sample in theirs] == [list(range(number % 3)) for number in numbers]
    forebay("pack", examples, tmp_path / "rows", "--format", "parquet")
    table = rows(tmp_path / "rows")
    assert table.schema.field("image/class/Label").type == pa.int64()
    assert table["vector"].to_pylist() == [[number / 4, -1.5] for number in numbers]
    assert table["image/encoded"].to_pylist() == [image_bytes(number) for number in numbers]
    assert table["boxes"].to_pylist() == [list(range(number % 3)) for number in numbers]
    forebay("pack", examples, tmp_path / "mds", "--format", "mds")
    with package.open(f"file://{tmp_path}") as node:
        found = list(package.Dataset("mds/", node=node))
    assert [sample["image/class/Label"] for sample in found] == [number - 9 for number in numbers]
    assert [sample["boxes"] for sample in found] == [list(range(number % 3)) for number in numbers]
    # As records they stay what they are, to the byte.
    forebay("pack", examples, tmp_path / "again", "--format", "tfrecord")
    assert (tmp_path / "again/shard-000000.tfrecord").read_bytes() == (examples / "0.tfrecord").read_bytes()


def test_keys_and_fields_of_a_tar_survive_examples(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/0.tar").write_bytes(tar_shard(range(SAMPLES)))
    forebay("pack", tmp_path / "source", tmp_path / "tar", "--format", "tar")
    forebay("pack", tmp_path / "tar", tmp_path / "records", "--format", "tfrecord")
    forebay("pack", tmp_path / "records", tmp_path / "back", "--format", "tar")
    before, after = ((tmp_path / name / "shard-000000.tar").read_bytes() for name in ("tar", "back"))
    assert before == after


def test_records_that_are_no_examples_stay_records(tmp_path):
    import tfrecord

    (tmp_path / "sequences").mkdir()
    writer = tfrecord.TFRecordWriter(str(tmp_path / "sequences/0.tfrecord"))
    for number in range(3):
        writer.write({"length": (number, "int")}, {"tokens": ([[number], [7]], "int")})
    writer.close()
    forebay("pack", tmp_path / "sequences", tmp_path / "rows", "--format", "parquet")
    assert rows(tmp_path / "rows").column_names == ["record"]


def test_records_that_are_unlike_those_before_are_refused_where_columns_are_fixed(tmp_path):
    import tfrecord

    (tmp_path / "records").mkdir()
    writer = tfrecord.TFRecordWriter(str(tmp_path / "records/0.tfrecord"))
    for number in range(3000):
        # Every third record is looked at before.
        writer.write({"n": ([number, 2] if number == 1 else number, "int")})
    writer.close()
    for format in ("mds", "parquet"):
        refused = forebay("pack", tmp_path / "records", tmp_path / format, "--format", format, code=2)
        assert "unlike" in refused["error"]["message"] and "feature: n" in refused["error"]["message"]
    forebay("pack", tmp_path / "records", tmp_path / "tar", "--format", "tar")
    cat = subprocess.run([binary(), "dataset", "cat", tmp_path / "tar", "1", "--field", "n"], capture_output=True)
    assert cat.stdout == b"[1,2]"


def test_samples_without_keys_are_not_sorted_by_them(tmp_path):
    source = one_file(tmp_path / "rows", cls=[3, 1, 2])
    forebay("pack", source, tmp_path / "mds", "--format", "mds")
    refused = forebay("pack", tmp_path / "mds", tmp_path / "out", "--format", "tar", "--sort-by", "key", code=1)
    assert "no keys" in refused["error"]["message"]
    forebay("pack", tmp_path / "mds", tmp_path / "sized", "--format", "tar", "--sort-by", "bytes")


def test_compressed_mds_is_what_plain_mds_is(tars, tmp_path):
    import forebay as package

    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/0.tar").write_bytes((tars / "0.tar").read_bytes())
    done = forebay("pack", tmp_path / "plain", tmp_path / "mds", "--format", "mds", "--compression", "zstd:5", "--shard-size", "16KiB")
    about = json.loads((tmp_path / "mds/index.json").read_text())["shards"]
    assert len(about) == done["shards"] >= 2
    assert {shard["compression"] for shard in about} == {"zstd:5"}
    assert done["bytes"] == sum(shard["zip_data"]["bytes"] for shard in about)
    for shard in about:
        stored = (tmp_path / "mds" / shard["zip_data"]["basename"]).read_bytes()
        assert len(stored) == shard["zip_data"]["bytes"]
        data = pa.decompress(stored, decompressed_size=shard["raw_data"]["bytes"], codec="zstd", asbytes=True)
        assert hashlib.sha256(data).hexdigest() == shard["raw_data"]["hashes"]["sha256"]
    assert subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tmp_path / "mds").returncode == 0
    again = forebay("pack", tmp_path / "plain", tmp_path / "mds", "--format", "mds", "--compress", "zstd:5", "--shard-size", "16KiB")
    assert again["shards_written"] == 0
    other = forebay("pack", tmp_path / "plain", tmp_path / "mds", "--format", "mds", "--compress", "zstd:6", "--shard-size", "16KiB", code=1)
    assert "not empty" in other["error"]["message"]
    with package.open(f"file://{tmp_path}") as node:
        ds = package.Dataset("mds/", node=node)
        assert [bytes(sample["bin"]) for sample in ds] == [image_bytes(number) for number in range(20)]


@pytest.mark.parametrize("how", ["gzip", "zstd:0", "zstd:20", "zstd:x", "br", "none:1"])
def test_compressions_that_mds_does_not_have_are_refused(tars, tmp_path, how):
    ran = subprocess.run([binary(), "dataset", "pack", tars, tmp_path / "out", "--format", "mds", "--compress", how], capture_output=True)
    assert ran.returncode == 2 and b"zstd" in ran.stderr, ran.stderr
    assert not (tmp_path / "out").exists()


def test_rows_whose_keys_a_tar_cannot_have_are_refused(tmp_path):
    dotted = one_file(tmp_path / "dotted", __key__=["a", "b.c"], txt=["x", "y"])
    refused = forebay("pack", dotted, tmp_path / "out", "--format", "tar", code=2)
    assert "dot" in refused["error"]["message"]
    twice = one_file(tmp_path / "twice", __key__=["a", "a"], txt=["x", "y"])
    refused = forebay("pack", twice, tmp_path / "other", "--format", "tar", code=2)
    assert "one key" in refused["error"]["message"]


@pytest.mark.parametrize("format", ["tar", "mds", "parquet"])
def test_keys_are_read_by_name_in_every_format_that_keeps_them(tmp_path, format):
    import forebay as package

    source = tmp_path / "source"
    source.mkdir()
    (source / "0.tar").write_bytes(tar_shard(range(SAMPLES)))
    forebay("pack", source, tmp_path / "lake" / format, "--format", format)
    with package.open(f"file://{tmp_path}") as node:
        ds = package.Dataset(f"lake/{format}/", fields={"__key__": str, "bin": "bytes"}, node=node)
        assert [sample["__key__"] for sample in ds] == [f"{number:06}" for number in range(SAMPLES)]
        assert bytes(ds[7]["bin"]) == image_bytes(7)
        (batch,) = ds.loader(batch_size=SAMPLES)
        assert list(batch["__key__"]) == [f"{number:06}" for number in range(SAMPLES)]


def test_every_format_can_be_looked_into(tars, parquet, tmp_path):
    import numpy as np

    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    (tmp_path / "l").mkdir()
    (tmp_path / "l/a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "raw/cat").mkdir(parents=True)
    (tmp_path / "raw/cat/1.txt").write_text("miau")
    for name in ("tfrecord", "mds", "parquet"):
        forebay("pack", tars, tmp_path / f"as-{name}", "--format", name, code=2 if name == "mds" else 0)
    cases = {
        tars: ("bin", []),
        parquet: ("id", []),
        tmp_path / "as-tfrecord": ("record", []),
        tmp_path / "t.bin": ("tokens", ["--tokens", "100:100:uint16"]),
        tmp_path / "l": ("json", []),
        tmp_path / "raw": ("data", ["--labels", "folder"]),
    }
    for source, (field, more) in cases.items():
        assert forebay("stat", source, *more)["samples"] > 0, source
        head = forebay("head", source, "-n", 2, *more)
        assert field in [one["name"] for one in head[0]["fields"]], source
        cat = subprocess.run([binary(), "dataset", "cat", source, "0", "--field", field, *more], capture_output=True)
        assert cat.returncode == 0 and cat.stdout, cat.stderr
    row = {one["name"]: one["preview"] for one in forebay("head", parquet, "-n", 4)[3]["fields"]}
    assert (row["id"], row["maybe"], row["day"], row["grid"]) == ("3", "null", "2020-01-04", "[[3],[],null,[1,2]]")
    record = forebay("head", tmp_path / "as-tfrecord")[0]["fields"][0]["preview"]
    assert "cls bytes[1]" in record
    tokens = forebay("head", tmp_path / "t.bin", "--tokens", "100:100:uint16")[1]["fields"][0]["preview"]
    assert tokens.startswith("100 101 102")
    assert forebay("head", tmp_path / "raw", "--labels", "folder")[0]["label"] == "cat"
