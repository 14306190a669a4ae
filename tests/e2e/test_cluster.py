"""Several nodes, one pool: real processes on loopback, one lake, counted at the lake's side."""

import hashlib
import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY, binary, wait_for
from lake_proxy import LakeProxy
from payload import MIB, payload

SIZE = 40 * MIB
# A machine that is busy with other tests is no silent node.
PATIENT = {"FOREBAY_PEER_SILENCE": "30s"}


class Pool:
    """Nodes of one cluster over an S3 lake, with a proxy that counts what the lake sends."""

    def __init__(self, own_node, count, env=PATIENT, args=()):
        self.store = own_node(ram="256MiB", nvme="0").start()
        self.store.client().create_bucket(Bucket="lake")
        self.proxy = LakeProxy(self.store.s3_url)
        self.own_node, self.env, self.args, self.nodes = own_node, env, args, []
        for _ in range(count):
            self.add()
        wait_for("all nodes to see each other", lambda: all(self.seen(node) == count for node in self.nodes), 60)

    def add(self, **options):
        url = f"s3://lake?endpoint={self.proxy.endpoint}&region=us-east-1&style=path"
        env = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, **self.env}
        args = ["--cluster", "e2e", "--peer", "127.0.0.1:0", *self.args]
        if self.nodes:
            args += ["--join", peer_of(self.nodes[0])]
        node = self.own_node(lake=url, env=env, args=args, ram="128MiB", nvme="0", **options).start()
        self.nodes.append(node)
        return node

    def seen(self, node) -> int:
        return len([member for member in nodes_of(node) if member["state"] == "serving"])

    def put(self, key: str, body: bytes) -> None:
        """Past the nodes, so that all of them are cold."""
        self.store.client().put_object(Bucket="lake", Key=f"data/{key}", Body=body)

    def lake_bytes(self) -> int:
        with self.proxy.lock:
            return self.proxy.get_body_bytes

    def close(self):
        self.proxy.__exit__(None, None, None)


def peer_of(node) -> str:
    return json.loads(node.ready_file.read_text())["peer"]


def nodes_of(node) -> list[dict]:
    return json.loads(node.admin("/v1/nodes"))


def url_of(node, key: str) -> str:
    return node.client().generate_presigned_url("get_object", Params={"Bucket": "data", "Key": key}, ExpiresIn=600)


def digest_of(url: str) -> str:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=120) as answer:
        while piece := answer.read(256 * 1024):
            digest.update(piece)
    return digest.hexdigest()


def read_all(urls: list[str]) -> tuple[set[str], list[Exception]]:
    digests, errors, barrier = set(), [], threading.Barrier(len(urls))

    def read(url):
        try:
            barrier.wait(60)
            digests.add(digest_of(url))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return digests, errors


@pytest.fixture
def pool(own_node):
    pools = []

    def make(*args, **options):
        pools.append(Pool(own_node, *args, **options))
        return pools[-1]

    yield make
    for made in pools:
        made.close()


def test_sixty_four_cold_readers_over_four_nodes_cost_the_lake_one_read(pool):
    cluster = pool(4)
    body = payload(SIZE, 1)
    cluster.put("cold", body)
    before = cluster.lake_bytes()
    digests, errors = read_all([url_of(cluster.nodes[number % 4], "cold") for number in range(64)])
    assert not errors, errors[:3]
    assert digests == {hashlib.sha256(body).hexdigest()}
    assert SIZE <= cluster.lake_bytes() - before <= SIZE * 1.02
    peers = sum(node.metric("forebay_served_bytes_total", source="peer") for node in cluster.nodes)
    assert peers > 0


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_no_read_fails_when_an_owner_goes_down(pool, blow):
    cluster = pool(3, env={"FOREBAY_PEER_SILENCE": "2s"})
    bodies = {f"object-{number}": payload(3 * MIB, number) for number in range(24)}
    for key, body in bodies.items():
        cluster.put(key, body)
    expected = {key: hashlib.sha256(body).hexdigest() for key, body in bodies.items()}
    survivors, victim = cluster.nodes[:2], cluster.nodes[2]
    failures, stop, reads = [], threading.Event(), [0]

    def reader(node, keys):
        for key in keys:
            if stop.is_set():
                return
            try:
                assert digest_of(url_of(node, key)) == expected[key]
                reads[0] += 1
            except Exception as error:
                failures.append((key, error))

    keys = sorted(expected)
    threads = [threading.Thread(target=reader, args=(node, keys[::step])) for node in survivors for step in (1, -1)]
    for thread in threads:
        thread.start()
    wait_for("reads under way", lambda: reads[0] >= 4, 60)
    victim.process.send_signal(blow)
    try:
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive(), "a read hangs"
    finally:
        stop.set()
        victim.process.send_signal(signal.SIGKILL)
    assert not failures, failures[:3]


def test_a_cluster_with_keys_speaks_tls_and_does_not_hear_strangers(pool, own_node, tmp_path):
    keys = tmp_path / "keys"
    made = subprocess.run([binary(), "cluster", "init", str(keys)], capture_output=True, text=True, check=True)
    assert "--cluster-keys" in made.stdout
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    cluster = pool(2, args=["--cluster-keys", str(keys)])
    body = payload(20 * MIB, 7)
    cluster.put("secret", body)
    before = cluster.lake_bytes()
    digests, errors = read_all([url_of(node, "secret") for node in cluster.nodes])
    assert not errors and digests == {hashlib.sha256(body).hexdigest()}
    assert cluster.lake_bytes() - before <= len(body) * 1.02
    with pytest.raises(Exception):
        urllib.request.urlopen(f"http://{peer_of(cluster.nodes[0])}/v1/node", timeout=10).read()
    stranger_keys = tmp_path / "stranger"
    subprocess.run([binary(), "cluster", "init", str(stranger_keys)], check=True, capture_output=True)
    cluster.args = ["--cluster-keys", str(stranger_keys)]
    stranger = cluster.add()
    time.sleep(3)  # Longer than the nodes of one cluster need to find each other.
    assert len(nodes_of(stranger)) == 1 and len(nodes_of(cluster.nodes[0])) == 2


def test_a_copied_data_folder_is_refused(own_node):
    original = own_node(args=["--cluster", "e2e", "--peer", "127.0.0.1:0"], ram="64MiB", nvme="0").start()
    twin = own_node(lake=original.lake, env=original.env, args=original.args, ram="64MiB", nvme="0")
    shutil.copytree(original.data, twin.data, ignore=shutil.ignore_patterns("nvme", "*.sock"))
    with pytest.raises(AssertionError, match="ended with 2"):
        twin.start()
    assert "node.key" in twin.log_text()
    assert original.restart(), "the original may come back, under its own identity"


def test_beyond_loopback_a_node_without_keys_is_told_what_to_do(own_node):
    node = own_node(args=["--cluster", "e2e", "--peer", "192.0.2.1:9002"])
    with pytest.raises(AssertionError, match="ended with 2"):
        node.start()
    assert "forebay cluster init" in node.log_text()


def test_nodes_of_different_lakes_share_nothing(own_node):
    first = own_node(args=["--cluster", "e2e", "--peer", "127.0.0.1:0"], env=PATIENT, nvme="0").start()
    second = own_node(
        args=["--cluster", "e2e", "--peer", "127.0.0.1:0", "--join", peer_of(first)], env=PATIENT, nvme="0"
    ).start()
    for node, body in ((first, b"one"), (second, b"two")):
        node.client().create_bucket(Bucket="data")
        for number in range(8):
            node.client().put_object(Bucket="data", Key=f"key-{number}", Body=body * MIB)
    wait_for("both to see each other", lambda: len(nodes_of(first)) == len(nodes_of(second)) == 2, 60)
    # The first one keeps its port and its memory; the second one comes back empty and asks who has what.
    second.restart()
    wait_for("both to see each other", lambda: len(nodes_of(first)) == len(nodes_of(second)) == 2, 60)
    for node, body in ((first, b"one"), (second, b"two")):
        for number in range(8):
            found = node.client().get_object(Bucket="data", Key=f"key-{number}")["Body"].read()
            assert found == body * MIB
        assert node.metric("forebay_served_bytes_total", source="peer") == 0
    assert "not shared" in first.log_text() + second.log_text()
