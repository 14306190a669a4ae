"""DuckDB reading and writing Parquet over S3 by its httpfs extension."""

from pathlib import Path

import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY

pytestmark = pytest.mark.heavy


@pytest.fixture
def duck(node):
    duckdb = pytest.importorskip("duckdb")
    wheel = pytest.importorskip("duckdb_extension_httpfs")
    extension = next(Path(wheel.__file__).parent.rglob("httpfs.duckdb_extension"))
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    host = node.s3_url.removeprefix("http://")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{ACCESS_KEY}', SECRET '{SECRET_KEY}', REGION 'us-east-1', "
        f"ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
    )
    return connection


def test_parquet_written_by_duckdb_is_read_back(duck, bucket):
    duck.execute(f"COPY (SELECT range AS id, range * 2 AS twice FROM range(500000)) TO 's3://{bucket}/t.parquet'")
    count, total = duck.execute(f"SELECT count(*), sum(twice) FROM 's3://{bucket}/t.parquet' WHERE id >= 250000").fetchone()
    assert (count, total) == (250_000, sum(range(500_000, 1_000_000, 2)))


def test_glob_and_partitions(duck, bucket):
    duck.execute(
        f"COPY (SELECT range AS id, range % 3 AS part FROM range(3000)) TO 's3://{bucket}/set' "
        "(FORMAT parquet, PARTITION_BY (part))"
    )
    found = duck.execute(f"SELECT count(*) FROM read_parquet('s3://{bucket}/set/*/*.parquet', hive_partitioning = true) WHERE part = 1")
    assert found.fetchone() == (1000,)
