"""What a restart keeps: everything acknowledged, and what the NVMe tier held."""

import os
import shutil
import subprocess

import pytest

from forebay_node import wait_for
from stores import new_bucket
from payload import MIB, payload, same

SIZE = 40 * MIB


def warm(node):
    """A node with one object that was read from the lake and then pushed out of RAM to NVMe by a second."""
    s3 = node.client()
    bucket = new_bucket(s3)
    bodies = {}
    for key, seed in [("one", 1), ("two", 2), ("three", 3)]:
        bodies[key] = payload(SIZE, seed)
        (node.lake_dir / bucket).mkdir(exist_ok=True)
        (node.lake_dir / bucket / key).write_bytes(bodies[key])
    for _ in range(2):
        for key, body in bodies.items():
            same(s3.get_object(Bucket=bucket, Key=key)["Body"].read(), body)
    return bucket, bodies


def read_all(node, bucket, bodies) -> int:
    """Reads everything, compares every byte, returns what it cost the lake."""
    s3 = node.client()
    before = node.lake_read_bytes()
    for key, body in bodies.items():
        same(s3.get_object(Bucket=bucket, Key=key)["Body"].read(), body)
    return node.lake_read_bytes() - before


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nvme_content_survives(own_node, how):
    node = own_node(ram="64MiB", nvme="256MiB").start()
    bucket, bodies = warm(node)

    def has_moved_out():
        # A disk that is slower than the readers loses pages on the way; reading again gives it another chance.
        read_all(node, bucket, bodies)
        return node.metric("forebay_tier_used_bytes", tier="nvme") >= SIZE

    wait_for("a third of the bytes to be on NVMe", has_moved_out, seconds_max=60)
    if how == "stop":
        assert node.stop() == 0
    else:
        node.kill()
    node.start()
    cost = read_all(node, bucket, bodies)
    # RAM is gone, and after a kill also what was on its way to the disk; what was on the disk must have stayed.
    assert cost <= 3 * SIZE * (0.5 if how == "stop" else 0.8)
    assert node.metric("forebay_served_bytes_total", source="nvme") > 0


def test_acknowledged_objects_are_there_after_a_kill(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    for number in range(20):
        s3.put_object(Bucket=bucket, Key=f"{number}", Body=payload(number * 10_000, number), Metadata={"n": str(number)})
    node.restart()
    s3 = node.client()
    for number in range(20):
        got = s3.get_object(Bucket=bucket, Key=f"{number}")
        assert got["Metadata"] == {"n": str(number)}
        same(got["Body"].read(), payload(number * 10_000, number))


def test_running_download_finishes_on_a_graceful_stop(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    body = payload(8 * MIB, 4)
    s3.put_object(Bucket=bucket, Key="o", Body=body)
    stream = s3.get_object(Bucket=bucket, Key="o")["Body"]
    first = stream.read(1000)
    node.process.terminate()
    same(first + stream.read(), body)
    assert node.process.wait(30) == 0
    node.process = None


def test_foreign_and_damaged_files_are_set_aside(own_node):
    node = own_node(ram="64MiB", nvme="256MiB").start()
    bucket, bodies = warm(node)
    node.stop()
    files = node.segment_files()
    assert files, "the NVMe tier has no files"
    (files[0].parent / "holiday.jpg").write_bytes(b"not ours" * 1000)
    for path in files[:1]:
        with open(path, "r+b") as file:
            file.write(b"\xff" * 4096)  # the header, whatever it holds
    node.start()
    read_all(node, bucket, bodies)


def test_every_file_of_the_tier_cut_short_is_no_crash(own_node):
    node = own_node(ram="64MiB", nvme="256MiB").start()
    bucket, bodies = warm(node)
    node.stop()
    for path in node.data.rglob("*"):
        if path.is_file() and path.name != "keys.toml":
            os.truncate(path, path.stat().st_size // 3)
    node.start()
    read_all(node, bucket, bodies)


def test_full_disk_means_smaller_cache_not_failure(own_node):
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small file system can only be mounted by root")
    node = own_node(ram="64MiB", nvme="1GiB")
    node.data.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(node.data)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        node.start()
        bucket, bodies = warm(node)
        read_all(node, bucket, bodies)
        s3 = node.client()
        s3.put_object(Bucket=bucket, Key="written", Body=payload(5 * MIB, 9))
        same(s3.get_object(Bucket=bucket, Key="written")["Body"].read(), payload(5 * MIB, 9))
    finally:
        node.kill()
        subprocess.run(["umount", str(node.data)], check=True)
