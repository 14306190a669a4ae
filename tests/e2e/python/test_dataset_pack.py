"""`forebay dataset pack` between all formats: the libraries of the formats read what comes out as they read what went in."""

import gzip
import json
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataset_shards import picture, tar_shard
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
            "bin": picture(number),
            "cls": b"%d" % number,
            "txt": "only here" if number == 30 else None,
        }
    assert subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tmp_path / "rows").returncode == 0
    forebay("pack", tmp_path / "rows", tmp_path / "again", "--format", "tar")
    samples = list(webdataset.WebDataset(str(tmp_path / "again/shard-000000.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == [f"{number:06}" for number in range(SAMPLES)]
    assert [sample["bin"] for sample in samples] == [picture(number) for number in range(SAMPLES)]
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
        # Its lists have nulls in them.
        pq.write_table(pq.read_table(path).drop_columns(["tags"]), path)
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
        assert bytes(ds[7]["bin"]) == picture(7)
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
