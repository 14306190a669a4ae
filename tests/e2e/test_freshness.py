"""A changed object in the lake is noticed by version: never, after a while, or at once, as the bucket says."""

import os

import pytest

from forebay_node import wait_for
from payload import MIB, payload

CONFIG = """
[[bucket]]
name = "always-bucket"
consistency = "always"

[[bucket]]
name = "second-bucket"
consistency = "1s"

[[bucket]]
name = "frozen-bucket"
consistency = "immutable"
"""


@pytest.fixture
def node(own_node):
    node = own_node(config=CONFIG).start()
    for name in ["always-bucket", "second-bucket", "frozen-bucket"]:
        node.client().create_bucket(Bucket=name)
        (node.lake_dir / name).mkdir(exist_ok=True)
    return node


def replace(node, bucket: str, body: bytes) -> None:
    """As somebody else would: a new file under the old name."""
    temporary = node.lake_dir / bucket / ".new"
    temporary.write_bytes(body)
    os.replace(temporary, node.lake_dir / bucket / "o")


def read(node, bucket: str) -> bytes:
    return node.client().get_object(Bucket=bucket, Key="o")["Body"].read()


OLD, NEW = payload(3 * MIB, 1), payload(3 * MIB, 2)


def test_always_sees_a_change_at_once(node):
    replace(node, "always-bucket", OLD)
    assert read(node, "always-bucket") == OLD
    replace(node, "always-bucket", NEW)
    assert read(node, "always-bucket") == NEW


def test_revalidation_sees_a_change_after_its_time(node):
    replace(node, "second-bucket", OLD)
    assert read(node, "second-bucket") == OLD
    replace(node, "second-bucket", NEW)
    assert read(node, "second-bucket") in (OLD, NEW)
    wait_for("the change to be noticed", lambda: read(node, "second-bucket") == NEW, 10, pause=0.1)


def test_immutable_asks_the_lake_only_once(node):
    replace(node, "frozen-bucket", OLD)
    assert read(node, "frozen-bucket") == OLD
    before = node.metric("forebay_lake_requests_total")
    for _ in range(5):
        assert read(node, "frozen-bucket") == OLD
    assert node.metric("forebay_lake_requests_total") == before


def test_a_removed_object_is_noticed(node):
    replace(node, "always-bucket", OLD)
    assert read(node, "always-bucket") == OLD
    (node.lake_dir / "always-bucket" / "o").unlink()
    with pytest.raises(Exception, match="NoSuchKey"):
        read(node, "always-bucket")
