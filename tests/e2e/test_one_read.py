"""One read: however many ask for the same bytes together, the lake sends them once."""

import hashlib
import threading
import urllib.request

import pytest

from stores import new_bucket, seaweed_endpoint, seaweed_lake
from lake_proxy import LakeProxy
from payload import MIB, payload

READERS = 64
SIZE = 32 * MIB


def read_together(node, bucket: str, key: str, readers: int) -> set[str]:
    """All readers start at once; returns the digests they saw."""
    url = node.client().generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=600)
    barrier, digests, errors = threading.Barrier(readers), set(), []

    def read():
        try:
            barrier.wait(30)
            digest = hashlib.sha256()
            with urllib.request.urlopen(url, timeout=120) as answer:
                while piece := answer.read(256 * 1024):
                    digest.update(piece)
            digests.add(digest.hexdigest())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[:3]
    return digests


def test_sixty_four_readers_of_a_cold_object_read_the_lake_once(own_node):
    node = own_node(ram="128MiB").start()
    bucket = new_bucket(node.client())
    body = payload(SIZE, 1)
    (node.lake_dir / bucket).mkdir(exist_ok=True)
    (node.lake_dir / bucket / "cold").write_bytes(body)
    before = node.lake_read_bytes()
    assert read_together(node, bucket, "cold", READERS) == {hashlib.sha256(body).hexdigest()}
    assert SIZE <= node.lake_read_bytes() - before <= SIZE * 1.02


def test_the_lake_agrees_with_our_count(own_node):
    with LakeProxy(seaweed_endpoint()) as proxy:
        lake, url, env = seaweed_lake(proxy.endpoint)
        node = own_node(lake=url, env=env, ram="128MiB").start()
        s3 = node.client()
        bucket = new_bucket(s3)
        body = payload(SIZE, 2)
        s3.put_object(Bucket=bucket, Key="cold", Body=body)
        node.kill()
        for path in node.segment_files():
            path.unlink()  # forget what the write cached
        node.start()
        before, before_lake = node.lake_read_bytes(), proxy.get_body_bytes
        assert read_together(node, bucket, "cold", 16) == {hashlib.sha256(body).hexdigest()}
        ours, lakes = node.lake_read_bytes() - before, proxy.get_body_bytes - before_lake
        assert SIZE <= lakes <= SIZE * 1.02
        assert abs(ours - lakes) <= SIZE * 0.01


@pytest.mark.parametrize("readers", [1, 8])
def test_a_warm_object_asks_nothing_of_the_lake(own_node, readers):
    node = own_node(ram="128MiB").start()
    s3 = node.client()
    bucket = new_bucket(s3)
    body = payload(SIZE, 3)
    s3.put_object(Bucket=bucket, Key="warm", Body=body)
    read_together(node, bucket, "warm", 1)
    before = node.lake_read_bytes()
    assert read_together(node, bucket, "warm", readers) == {hashlib.sha256(body).hexdigest()}
    assert node.lake_read_bytes() == before
