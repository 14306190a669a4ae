"""Flipped bits in both tiers, under a running node and across a restart: never an answer, always counted."""

import re
from pathlib import Path

import pytest

from stores import new_bucket
from forebay_node import wait_for
from payload import KIB, MIB, payload, same

SIZE = 30 * MIB


def flip_file(path: Path) -> int:
    """Flips one bit in every 16 KiB of a file past its first 64 KiB; returns how many."""
    flipped = 0
    with open(path, "r+b") as file:
        size = path.stat().st_size
        for at in range(64 * KIB + 777, size, 16 * KIB):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]))
            flipped += 1
    return flipped


def flip_ram(pid: int) -> int:
    """Flips one bit in every 16 KiB of every memfd mapping of a process."""
    flipped = 0
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    regions = [re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) .*memfd:", line) for line in maps]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for region in filter(None, regions):
            for at in range(int(region[1], 16) + 777, int(region[2], 16), 16 * KIB):
                memory.seek(at)
                byte = memory.read(1)
                if byte == b"\0":
                    continue  # not in use: leave it, or fresh memory would be touched
                memory.seek(at)
                memory.write(bytes([byte[0] ^ 0x10]))
                flipped += 1
    return flipped


def cold_objects(node, bucket: str) -> dict[str, bytes]:
    bodies = {f"o{number}": payload(SIZE, number) for number in range(4)}
    (node.lake_dir / bucket).mkdir(exist_ok=True)
    for key, body in bodies.items():
        (node.lake_dir / bucket / key).write_bytes(body)
    return bodies


def read_all(node, bucket, bodies):
    s3 = node.client()
    for key, body in bodies.items():
        same(s3.get_object(Bucket=bucket, Key=key)["Body"].read(), body)


@pytest.fixture
def filled(own_node):
    """A node whose NVMe tier holds more than its RAM tier can."""
    node = own_node(ram="64MiB", nvme="256MiB").start()
    bucket = new_bucket(node.client())
    bodies = cold_objects(node, bucket)
    for _ in range(2):
        read_all(node, bucket, bodies)
    wait_for("pages on disk", lambda: node.metric("forebay_tier_used_bytes", tier="nvme") > SIZE, 20)
    return node, bucket, bodies


def corrupt_blocks(node, tier: str) -> float:
    return node.metric("forebay_corrupt_blocks_total", tier=tier)


def test_flipped_bits_on_disk_under_a_running_node_are_caught(filled):
    node, bucket, bodies = filled
    assert sum(flip_file(path) for path in node.segment_files()) > 100
    for _ in range(2):
        read_all(node, bucket, bodies)
    assert corrupt_blocks(node, "nvme") > 0


def test_flipped_bits_on_disk_across_a_restart_are_caught(filled):
    node, bucket, bodies = filled
    node.kill()
    assert sum(flip_file(path) for path in node.segment_files()) > 100
    node.start()
    for _ in range(2):
        read_all(node, bucket, bodies)


def test_ranged_reads_catch_flipped_bits_too(filled):
    node, bucket, bodies = filled
    for path in node.segment_files():
        flip_file(path)
    s3 = node.client()
    for key, body in bodies.items():
        for first in range(1000, SIZE - 70_000, 3 * MIB):
            got = s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={first}-{first + 69_999}")["Body"].read()
            same(got, body[first : first + 70_000])


def ram_only(own_node, **env):
    node = own_node(ram="256MiB", nvme="0", env=env).start()
    bucket = new_bucket(node.client())
    bodies = cold_objects(node, bucket)
    read_all(node, bucket, bodies)
    return node, bucket, bodies


def test_flipped_bits_in_ram_are_caught_by_a_read(own_node):
    node, bucket, bodies = ram_only(own_node)
    assert flip_ram(node.process.pid) > 100
    read_all(node, bucket, bodies)
    assert corrupt_blocks(node, "ram") > 0
    before = node.lake_read_bytes()
    read_all(node, bucket, bodies)
    assert node.lake_read_bytes() == before, "what was fetched again is not cached again"


def test_flipped_bits_in_ram_are_caught_by_the_scrub(own_node):
    node, bucket, bodies = ram_only(own_node, FOREBAY_LIMITS_SCRUB_PERIOD="1s")
    assert flip_ram(node.process.pid) > 100
    wait_for("the scrub to find them", lambda: corrupt_blocks(node, "ram") > 100, 30, pause=0.1)
    read_all(node, bucket, bodies)
