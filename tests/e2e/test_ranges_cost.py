"""A random read fetches only the blocks it touches."""

import pytest

from stores import new_bucket
from payload import KIB, MIB

GIB = 1024 * MIB
MARK = b"a known place in a sparse file"


@pytest.fixture
def sparse(own_node):
    """A cold object of 1 GiB that takes no space, with known bytes at a known place."""
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    (node.lake_dir / bucket).mkdir(exist_ok=True)
    with open(node.lake_dir / bucket / "huge", "wb") as file:
        file.truncate(GIB)
        file.seek(700 * MIB + 12345)
        file.write(MARK)
    s3.head_object(Bucket=bucket, Key="huge")
    return node, s3, bucket


COSTS = [
    (MIB, 1258291),  # 1.2 MiB
    (52_000, 192 * KIB),
    (1, 64 * KIB),
]


@pytest.mark.parametrize("size,lake_bytes_max", COSTS)
def test_a_range_costs_little_more_than_itself(sparse, size, lake_bytes_max):
    node, s3, bucket = sparse
    first = 700 * MIB + 12345
    before = node.lake_read_bytes()
    got = s3.get_object(Bucket=bucket, Key="huge", Range=f"bytes={first}-{first + size - 1}")["Body"].read()
    assert len(got) == size
    assert got[: len(MARK)] == MARK[:size]
    assert size <= node.lake_read_bytes() - before <= lake_bytes_max


def test_the_same_range_again_costs_nothing(sparse):
    node, s3, bucket = sparse
    for _ in range(2):
        before = node.lake_read_bytes()
        s3.get_object(Bucket=bucket, Key="huge", Range="bytes=5000000-5999999")["Body"].read()
    assert node.lake_read_bytes() == before


def test_scattered_small_reads_do_not_start_read_ahead(sparse):
    node, s3, bucket = sparse
    before = node.lake_read_bytes()
    offsets = [(number * 37 % 101) * 10 * MIB for number in range(20)]
    for offset in offsets:
        s3.get_object(Bucket=bucket, Key="huge", Range=f"bytes={offset}-{offset + 999}")["Body"].read()
    assert node.lake_read_bytes() - before <= len(set(offsets)) * 64 * KIB


def test_head_and_list_read_no_bytes(sparse):
    node, s3, bucket = sparse
    before = node.lake_read_bytes()
    s3.head_object(Bucket=bucket, Key="huge")
    s3.list_objects_v2(Bucket=bucket)
    assert node.lake_read_bytes() == before
