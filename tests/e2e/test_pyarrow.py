"""Parquet over S3 by Arrow's own C++ client."""

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY
from payload import MIB, payload, same

ROWS = 200_000


@pytest.fixture
def fs(node):
    return pafs.S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, region="us-east-1", scheme="http",
        endpoint_override=node.s3_url.removeprefix("http://"),
    )  # fmt: skip


@pytest.fixture
def table():
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "score": pa.array([number * 0.5 for number in range(ROWS)], pa.float64()),
            "name": pa.array([f"row-{number}" for number in range(ROWS)]),
        }
    )


def test_table_comes_back(fs, bucket, table):
    pq.write_table(table, f"{bucket}/t.parquet", filesystem=fs, row_group_size=20_000)
    assert pq.read_table(f"{bucket}/t.parquet", filesystem=fs).equals(table)


def test_one_column_and_one_row_group(fs, bucket, table):
    pq.write_table(table, f"{bucket}/t.parquet", filesystem=fs, row_group_size=20_000)
    file = pq.ParquetFile(f"{bucket}/t.parquet", filesystem=fs)
    group = file.read_row_group(3, columns=["score"])
    assert group.column("score").to_pylist() == table.column("score")[60_000:80_000].to_pylist()


def test_partitioned_dataset_with_a_filter(fs, bucket, table):
    table = table.append_column("part", pa.array([number % 4 for number in range(ROWS)], pa.int32()))
    ds.write_dataset(table, f"{bucket}/set", filesystem=fs, format="parquet", partitioning=["part"])
    dataset = ds.dataset(f"{bucket}/set", filesystem=fs, format="parquet", partitioning=["part"])
    found = dataset.to_table(filter=(ds.field("part") == 2) & (ds.field("id") < 100), columns=["id"])
    assert sorted(found.column("id").to_pylist()) == list(range(2, 100, 4))


def test_streams_and_random_access(fs, bucket):
    body = payload(23 * MIB, 1)
    with fs.open_output_stream(f"{bucket}/raw") as stream:  # multipart
        stream.write(body)
    with fs.open_input_file(f"{bucket}/raw") as file:
        assert file.size() == len(body)
        same(file.read_at(1000, 11 * MIB + 1), body[11 * MIB + 1 : 11 * MIB + 1001])
    with fs.open_input_stream(f"{bucket}/raw") as stream:
        same(stream.read(), body)


def test_listing_deleting_and_copying(fs, bucket):
    for key in ["d/1", "d/e/2"]:
        with fs.open_output_stream(f"{bucket}/{key}") as stream:
            stream.write(b"x")
    found = fs.get_file_info(pafs.FileSelector(f"{bucket}/d", recursive=True))
    assert sorted(info.path for info in found if info.type == pafs.FileType.File) == [f"{bucket}/d/1", f"{bucket}/d/e/2"]
    fs.copy_file(f"{bucket}/d/1", f"{bucket}/copied")
    fs.delete_dir(f"{bucket}/d")
    assert fs.get_file_info(f"{bucket}/d/1").type == pafs.FileType.NotFound
    assert fs.get_file_info(f"{bucket}/copied").size == 1
