"""Libraries that people use with data, over `forebay://` and over views."""

import io

import numpy as np
import pytest

from conftest import socket_of


@pytest.fixture
def at(shared_daemon, monkeypatch):
    """The URL of a folder in a fresh bucket, found by FOREBAY_NODE as a user would have it."""
    import uuid

    import fsspec

    monkeypatch.setenv("FOREBAY_NODE", str(socket_of(shared_daemon)))
    fsspec.filesystem("forebay").clear_instance_cache()
    name = f"b-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("forebay").mkdir(name)
    return f"forebay://{name}/data"


def table():
    import pandas

    return pandas.DataFrame({"number": np.arange(100_000), "word": [f"w{index % 97}" for index in range(100_000)]})


def test_pandas_parquet(at):
    import pandas

    table().to_parquet(f"{at}/t.parquet", row_group_size=10_000)
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"{at}/t.parquet"), table())
    part = pandas.read_parquet(f"{at}/t.parquet", columns=["number"], filters=[("number", "<", 10)])
    assert list(part["number"]) == list(range(10))


def test_pandas_csv(at):
    import pandas

    table().to_csv(f"{at}/t.csv.gz", index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{at}/t.csv.gz"), table())


def test_pyarrow_dataset(at):
    import fsspec
    import pyarrow
    import pyarrow.dataset

    path = at.removeprefix("forebay://")
    fs = fsspec.filesystem("forebay")
    arrow = pyarrow.Table.from_pandas(table())
    pyarrow.dataset.write_dataset(
        arrow, f"{path}/set", filesystem=fs, format="parquet", max_rows_per_file=30_000, max_rows_per_group=30_000
    )
    dataset = pyarrow.dataset.dataset(f"{path}/set", filesystem=fs, format="parquet")
    assert len(dataset.files) == 4
    assert dataset.to_table().sort_by("number").equals(arrow)


def test_polars_parquet(at):
    import fsspec
    import polars

    frame = polars.DataFrame({"number": range(1000)})
    with fsspec.open(f"{at}/p.parquet", "wb") as file:
        frame.write_parquet(file)
    with fsspec.open(f"{at}/p.parquet") as file:
        assert polars.read_parquet(file).equals(frame)


def test_pyarrow_takes_a_view_as_it_is(node, bucket):
    import pyarrow

    table_ = pyarrow.table({"a": list(range(1000))})
    sink = io.BytesIO()
    with pyarrow.ipc.new_file(sink, table_.schema) as writer:
        writer.write_table(table_)
    node.put(f"{bucket}/t.arrow", sink.getvalue())
    view = node.get(f"{bucket}/t.arrow")
    buffer = pyarrow.py_buffer(view)
    assert buffer.address == np.frombuffer(view, np.uint8).ctypes.data
    assert pyarrow.ipc.open_file(buffer).read_all().equals(table_)


def test_numpy_load_and_save(at):
    import fsspec

    array = np.random.default_rng(1).normal(size=(300, 70))
    with fsspec.open(f"{at}/a.npy", "wb") as file:
        np.save(file, array)
    with fsspec.open(f"{at}/a.npy") as file:
        assert np.array_equal(np.load(file), array)


def test_safetensors_from_a_view(node, bucket):
    import safetensors.numpy

    tensors = {"weight": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(4, np.float16)}
    node.put(f"{bucket}/m.safetensors", safetensors.numpy.save(tensors))
    loaded = safetensors.numpy.load(bytes(node.get(f"{bucket}/m.safetensors")))
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)


def test_zarr_array(at):
    import zarr

    array = zarr.open_array(f"{at}/z.zarr", mode="w", shape=(100, 100), chunks=(30, 30), dtype="f4")
    array[:] = np.arange(10_000, dtype="f4").reshape(100, 100)
    again = zarr.open_array(f"{at}/z.zarr", mode="r")
    assert np.array_equal(again[10:60, 5:95], array[10:60, 5:95])


def test_hugging_face_datasets(at, tmp_path):
    import datasets

    table().to_parquet(f"{at}/t.parquet")
    loaded = datasets.load_dataset("parquet", data_files=f"{at}/t.parquet", split="train", cache_dir=str(tmp_path))
    assert len(loaded) == 100_000
    assert loaded[123] == {"number": 123, "word": "w26"}
    stream = datasets.load_dataset("parquet", data_files=f"{at}/t.parquet", split="train", streaming=True)
    assert [row["number"] for row in stream.take(3)] == [0, 1, 2]
