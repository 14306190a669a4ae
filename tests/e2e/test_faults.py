"""A lake that misbehaves: storms of errors, stalls, short bodies, objects replaced in the middle of a read."""

import itertools
import threading

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from stores import new_bucket, seaweed_client, seaweed_endpoint, seaweed_lake
from lake_proxy import Fault, LakeProxy
from payload import MIB, payload, same

SIZE = 24 * MIB + 7


@pytest.fixture
def proxy():
    with LakeProxy(seaweed_endpoint()) as proxy:
        yield proxy


@pytest.fixture
def behind(own_node, proxy):
    """A node whose lake is reached through the proxy, the lake's bucket, and a bucket of the node."""
    lake, url, env = seaweed_lake(proxy.endpoint)
    node = own_node(lake=url, env=env).start()
    return node, lake, new_bucket(node.client())


def put_past_the_node(lake: str, bucket: str, key: str, body: bytes) -> None:
    seaweed_client().put_object(Bucket=lake, Key=f"{bucket}/{key}", Body=body)


def is_object_read(method: str, path: str) -> bool:
    return method == "GET" and "list-type" not in path and ".forebay" not in path


def test_bytes_are_right_through_a_storm_of_errors(behind, proxy):
    node, lake, bucket = behind
    body = payload(SIZE, 1)
    put_past_the_node(lake, bucket, "o", body)
    count = itertools.count()
    proxy.fault = lambda method, path, _: Fault.error(503) if method == "GET" and next(count) % 2 == 0 else None
    same(node.client().get_object(Bucket=bucket, Key="o")["Body"].read(), body)
    assert proxy.faults > 0


def test_short_bodies_are_never_answers(behind, proxy):
    node, lake, bucket = behind
    body = payload(SIZE, 2)
    put_past_the_node(lake, bucket, "o", body)
    count = itertools.count()
    proxy.fault = lambda method, path, _: (
        Fault.short() if is_object_read(method, path) and next(count) % 3 == 0 else None
    )
    same(node.client().get_object(Bucket=bucket, Key="o")["Body"].read(), body)
    assert proxy.faults > 0


def test_a_stalled_read_is_started_again(behind, proxy):
    node, lake, bucket = behind
    body = payload(SIZE, 3)
    put_past_the_node(lake, bucket, "o", body)
    count = itertools.count()
    proxy.fault = lambda method, path, _: Fault.stall() if is_object_read(method, path) and next(count) == 1 else None
    same(node.client().get_object(Bucket=bucket, Key="o")["Body"].read(), body)
    assert proxy.faults == 1


def test_an_outage_is_an_error_and_ends(behind, proxy):
    node, lake, bucket = behind
    put_past_the_node(lake, bucket, "o", b"x" * 1000)
    s3 = node.client()
    proxy.fault = lambda *_: Fault.error(500)
    with pytest.raises((BotoCoreError, ClientError)) as failed:
        s3.get_object(Bucket=bucket, Key="o")["Body"].read()
    if isinstance(failed.value, ClientError):
        assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] in (500, 502, 503, 504)
    proxy.fault = lambda *_: None
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"x" * 1000


def test_cached_objects_outlive_the_lake(own_node, proxy):
    lake, url, env = seaweed_lake(proxy.endpoint)
    node = own_node(lake=url, env={**env, "FOREBAY_CONSISTENCY": "immutable"}).start()
    s3 = node.client()
    bucket = new_bucket(s3)
    body = payload(3 * MIB, 4)
    put_past_the_node(lake, bucket, "o", body)
    same(s3.get_object(Bucket=bucket, Key="o")["Body"].read(), body)
    proxy.fault = lambda *_: Fault.error(500)
    same(s3.get_object(Bucket=bucket, Key="o")["Body"].read(), body)


def test_a_failed_write_is_not_acknowledged(behind, proxy):
    node, _, bucket = behind
    s3 = node.client()
    s3.put_object(Bucket=bucket, Key="o", Body=b"old")
    proxy.fault = lambda method, *_: Fault.error(500) if method in ("PUT", "POST") else None
    with pytest.raises((BotoCoreError, ClientError)):
        s3.put_object(Bucket=bucket, Key="o", Body=b"new")
    proxy.fault = lambda *_: None
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"old"


def test_an_object_replaced_during_a_read_is_never_mixed(behind, proxy):
    node, lake, bucket = behind
    old, new = payload(SIZE, 5), payload(SIZE, 6)
    put_past_the_node(lake, bucket, "o", old)
    replaced = threading.Event()
    seen = itertools.count()

    def replace_once(method, path, _):
        # The second read of the object's bytes is in the middle of it: replace the object right then.
        if is_object_read(method, path) and next(seen) == 1 and not replaced.is_set():
            put_past_the_node(lake, bucket, "o", new)
            replaced.set()
        return None

    proxy.fault = replace_once
    s3 = node.client()
    try:
        got = s3.get_object(Bucket=bucket, Key="o")["Body"].read()
    except (BotoCoreError, ClientError):
        got = None  # cut off: fine
    assert replaced.is_set(), "the object was read in one request: make it larger"
    assert got is None or got in (old, new), "bytes of two versions in one answer"
    # The node knows by now that the object changed: whoever tries again gets the new one.
    same(s3.get_object(Bucket=bucket, Key="o")["Body"].read(), new)
