"""Rows of Parquet as samples: what pyarrow writes is read as pyarrow reads it, in any order, column by column."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay

ROWS = 1000


def table(first=0, rows=ROWS):
    """Every type that is read, with and without nulls."""
    numbers = list(range(first, first + rows))
    day = datetime.date(2020, 1, 1)
    moment = datetime.datetime(2020, 1, 1)
    some = [None if number % 7 == 3 else number for number in numbers]

    def where(value):
        return [None if number is None else value(number) for number in some]

    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "label": pa.array([number % 10 for number in numbers], pa.int32()),
            "small": pa.array([number % 100 - 50 for number in numbers], pa.int8()),
            "big": pa.array([2**63 + number for number in numbers], pa.uint64()),
            "score": pa.array([number / 8 for number in numbers], pa.float64()),
            "half": pa.array([np.float16(number % 64) for number in numbers], pa.float16()),
            "flag": pa.array([number % 3 == 0 for number in numbers], pa.bool_()),
            "text": pa.array([f"größe {number % 50}" for number in numbers]),
            "raw": pa.array([b"\x00\xff" * (number % 40) for number in numbers], pa.binary()),
            "fixed": pa.array([b"%04d" % (number % 10_000) for number in numbers], pa.binary(4)),
            "day": pa.array([day + datetime.timedelta(number) for number in numbers], pa.date32()),
            "ms": pa.array([moment + datetime.timedelta(seconds=number) for number in numbers], pa.timestamp("ms")),
            "us": pa.array([moment + datetime.timedelta(seconds=number) for number in numbers], pa.timestamp("us")),
            "ns": pa.array([moment + datetime.timedelta(seconds=number) for number in numbers], pa.timestamp("ns")),
            "price": pa.array([decimal.Decimal(number - 500) / 100 for number in numbers], pa.decimal128(20, 2)),
            "maybe": pa.array(some, pa.int32()),
            "maybe_text": pa.array(where(str)),
            "tokens": pa.array([list(range(number % 5)) for number in numbers], pa.list_(pa.uint16())),
            "vector": pa.array([[number / 2] * 8 for number in numbers], pa.list_(pa.float32(), 8)),
            "tags": pa.array(where(lambda number: ["a" * (number % 4), None]), pa.list_(pa.string())),
            "grid": pa.array([[[number], [], None, [1, 2]] for number in numbers], pa.list_(pa.list_(pa.int32()))),
            "box": pa.array(where(lambda number: {"x": number, "y": None if number % 2 else 0.5})),
        }
    )


def plain(value):
    """A value of ours as pyarrow has it."""
    if isinstance(value, (forebay.View, memoryview)):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.datetime64):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def expected(rows):
    for row in rows.to_pylist():
        box = row.pop("box")
        row["box.x"] = None if box is None else box["x"]
        row["box.y"] = None if box is None else box["y"]
        for name, unit in (("day", "D"), ("ms", "ms"), ("us", "us")):
            row[name] = np.datetime64(row[name], unit)
        row["ns"] = np.datetime64(row["ns"].to_datetime64() if hasattr(row["ns"], "to_datetime64") else row["ns"], "ns")
        yield row


def same(ours, theirs):
    ours = {name: plain(value) for name, value in ours.items() if name != "__key__"}
    assert ours == theirs


WAYS = {
    "snappy with dictionaries": {"compression": "snappy"},
    "zstd with a page index": {"compression": "zstd", "write_page_index": True, "data_page_size": 1024},
    "plain, second version": {"compression": "none", "use_dictionary": False, "data_page_version": "2.0"},
    "plain with a page index": {
        "compression": "none",
        "use_dictionary": False,
        "write_page_index": True,
        "data_page_size": 512,
        "write_batch_size": 20,
    },
    "gzip, small pages": {"compression": "gzip", "data_page_size": 512, "write_page_checksum": True},
    "lz4, byte streams": {"compression": "lz4", "use_dictionary": False, "data_page_size": 2048},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_pyarrow_writes_is_read_as_pyarrow_reads_it(shared_embedded, home, tmp_path, way):
    for shard in range(2):
        path = tmp_path / f"{shard}.parquet"
        pq.write_table(table(shard * ROWS), path, row_group_size=300, **WAYS[way])
        shared_embedded.put(f"{home}/d/{shard}.parquet", path.read_bytes())
    ds = forebay.Dataset(f"forebay://{home}/d/{{0..1}}.parquet", node=shared_embedded)
    theirs = [row for shard in range(2) for row in expected(pq.read_table(tmp_path / f"{shard}.parquet"))]
    assert len(ds) == len(theirs) == 2 * ROWS
    for number in (0, 1, 299, 300, 999, 1000, 1999):
        same(ds[number], theirs[number])
    seen = []
    for batch in ds.loader(batch_size=50, shuffle="window", window=400, seed=3):
        for at in range(50):
            ours = {name: values[at] for name, values in batch.items()}
            number = int(ours["id"])
            same(ours, theirs[number])
            seen.append(number)
    assert sorted(seen) == list(range(2 * ROWS))
    assert seen != sorted(seen)


def test_columns_of_one_width_come_as_one_array(shared_embedded, home, tmp_path):
    pq.write_table(table(), tmp_path / "0.parquet", row_group_size=100)
    shared_embedded.put(f"{home}/d/0.parquet", (tmp_path / "0.parquet").read_bytes())
    fields = {"id": "auto", "score": float, "label": int, "day": "auto", "text": str, "maybe": "auto"}
    ds = forebay.Dataset(f"{home}/d/", fields=fields, node=shared_embedded)
    batch = next(iter(ds.loader(batch_size=8)))
    assert list(batch) == list(fields)
    assert batch["id"].dtype == np.int64 and batch["id"].tolist() == list(range(8))
    assert batch["score"].dtype == np.float64 and batch["label"].dtype == np.int64
    assert batch["day"].dtype == np.dtype("datetime64[D]")
    assert batch["text"] == [f"größe {number}" for number in range(8)]
    assert batch["maybe"] == [0, 1, 2, None, 4, 5, 6, 7]


def test_columns_that_are_not_asked_for_are_not_read(tmp_path):
    wide = pa.table({"id": list(range(100)), "image": [np.random.bytes(40_000) for _ in range(100)]})
    pq.write_table(wide, tmp_path / "0.parquet", row_group_size=25, compression="none", write_page_index=True)
    (tmp_path / "lake").mkdir()
    with forebay.open(f"file://{tmp_path / 'lake'}") as node:
        node.create_bucket("rows")
        node.put("rows/d/0.parquet", (tmp_path / "0.parquet").read_bytes())
    with forebay.open(f"file://{tmp_path / 'lake'}") as node:
        ds = forebay.Dataset("rows/d/", fields=["id"], node=node)
        loader = ds.loader(batch_size=10)
        assert sorted(int(one) for batch in loader for one in batch["id"]) == list(range(100))
        assert loader.stats().bytes_lake < 1_000_000


def test_a_petastorm_table_is_parquet_and_its_pickle_is_not_loaded(shared_embedded, home, tmp_path):
    # What pickle.loads would run if anybody did.
    hostile = b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR."
    rows = pa.table({"id": [1, 2, 3]})
    schema = rows.schema.with_metadata({b"dataset-toolkit.unischema.v1": hostile})
    pq.write_table(rows.cast(schema), tmp_path / "part-0.parquet")
    shared_embedded.put(f"{home}/d/part-0.parquet", (tmp_path / "part-0.parquet").read_bytes())
    shared_embedded.put(f"{home}/d/_common_metadata", hostile)
    shared_embedded.put(f"{home}/d/_SUCCESS", b"")
    ds = forebay.Dataset(f"{home}/d/", node=shared_embedded)
    assert [sample["id"] for sample in ds] == [1, 2, 3]
    assert not (tmp_path / "owned").exists()


def test_shards_with_other_types_are_refused_with_the_column(shared_embedded, home, tmp_path):
    for number, rows in enumerate([{"id": pa.array([1], pa.int64())}, {"id": pa.array(["a"])}]):
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
        shared_embedded.put(f"{home}/d/{number}.parquet", (tmp_path / f"{number}.parquet").read_bytes())
    with pytest.raises(forebay.InvalidInputError, match="different types") as caught:
        len(forebay.Dataset(f"{home}/d/", node=shared_embedded))
    assert "id" in str(caught.value)


def test_a_damaged_page_is_the_fault_of_its_rows(shared_embedded, home, tmp_path):
    path = tmp_path / "0.parquet"
    rows = pa.table({"id": list(range(400)), "text": [f"{number:08}" for number in range(400)]})
    pq.write_table(
        rows, path, row_group_size=100, compression="zstd", write_page_checksum=True, use_dictionary=False
    )
    damaged = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(2).column(1)
    damaged[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 0x55
    shared_embedded.put(f"{home}/d/0.parquet", bytes(damaged))
    ds = forebay.Dataset(f"{home}/d/", node=shared_embedded)
    assert ds[199]["text"] == "00000199"
    assert ds[300]["text"] == "00000300"
    with pytest.raises(forebay.CorruptError) as caught:
        ds[250]
    assert "0.parquet" in str(caught.value) and "text" in str(caught.value)
    loader = ds.loader(batch_size=100, on_error="skip")
    # No batch is empty: the next good row comes where all rows of one are damaged.
    assert [len(batch["id"]) for batch in loader] == [100, 100, 1, 100]
    assert loader.stats().bad_samples == 100


def test_rows_resume_exactly_on_another_world_size(shared_embedded, home, tmp_path):
    pq.write_table(table(rows=600), tmp_path / "0.parquet", row_group_size=90)
    shared_embedded.put(f"{home}/d/0.parquet", (tmp_path / "0.parquet").read_bytes())
    ds = forebay.Dataset(f"{home}/d/", fields=["id"], node=shared_embedded)
    options = {"shuffle": "window", "window": 200, "seed": 5}
    whole = [int(one) for batch in ds.loader(batch_size=20, **options) for one in batch["id"]]
    first = ds.loader(batch_size=20, **options)
    steps = iter(first)
    seen = [int(one) for _ in range(9) for one in next(steps)["id"]]
    state = first.state_dict()
    ranks = []
    for rank in range(2):
        loader = ds.loader(batch_size=10, rank=rank, world_size=2, **options)
        loader.load_state_dict(state)
        ranks.append([[int(one) for one in batch["id"]] for batch in loader])
    rest = [one for step in zip(*ranks, strict=True) for batch in step for one in batch]
    assert seen + rest == whole
