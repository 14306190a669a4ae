"""`forebay dataset` through a running node, with a pack that is killed, and tar as Python reads it."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY, binary, wait_for
from payload import payload
from stores import new_bucket
from upload_gate import UploadGate

SAMPLES = 200
MIB = 1 << 20


@pytest.fixture
def bucket(node):
    """A bucket with raw files below `raw/`: pairs of `cls` and `jpg`."""
    s3 = node.client()
    bucket = new_bucket(s3)
    for number in range(SAMPLES):
        s3.put_object(Bucket=bucket, Key=f"raw/{number:04}.jpg", Body=payload(60_000 + number, number))
        s3.put_object(Bucket=bucket, Key=f"raw/{number:04}.cls", Body=str(number % 7).encode())
    return bucket


def command(node, *args: str, url: str | None = None) -> subprocess.Popen:
    env = dict(os.environ, FOREBAY_NODE=url or node.s3_url)
    env.update({"FOREBAY_ACCESS_KEY_ID": ACCESS_KEY, "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY})
    return subprocess.Popen(
        [binary(), "--json", "dataset", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )


def run(node, *args: str, code: int = 0) -> dict:
    process = command(node, *args)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err.decode()
    return json.loads(err if code else out)


def keys(node, bucket: str, prefix: str) -> list[str]:
    found = node.client().list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return [entry["Key"] for entry in found]


def test_a_pack_that_was_killed_goes_on_and_is_read_by_tarfile(node, bucket):
    pack = ["pack", f"forebay://{bucket}/raw/", f"forebay://{bucket}/out/", "--format", "tar", "--shard-size", "1MiB", "--jobs", "2"]
    # 12 MB in shards of 1 MiB, two at once: half of the bytes are at least two shards with their records, and never all.
    with UploadGate(node.s3_url, 6 * MIB) as gate:
        process = command(node, *pack, url=gate.url)
        wait_for("the gate to be shut", gate.is_shut.is_set, 60)
        wait_for("two shards", lambda: len(keys(node, bucket, "out/.forebay/pack-")) >= 2)
        process.kill()
        process.communicate()
    wait_for("what it had asked for to end", lambda: json.loads(node.admin("/v1/status"))["in_flight"]["s3_requests"] == 0)
    assert "out/SHA256SUMS" not in keys(node, bucket, "out/")
    torn = run(node, "index", f"forebay://{bucket}/out/", code=1)
    assert "not whole" in torn["error"]["message"]
    before = len(keys(node, bucket, "out/.forebay/pack-"))
    done = run(node, *pack)
    assert done["shards_written"] == done["shards"] - before
    members = {}
    for key in keys(node, bucket, "out/shard-"):
        shard = node.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(shard)) as tar:
            members.update({member.name: tar.extractfile(member).read() for member in tar})
    assert len(members) == 2 * SAMPLES
    assert members["0007.jpg"] == payload(60_007, 7)
    assert members["0008.cls"] == b"1"
    assert run(node, "verify", f"forebay://{bucket}/out/")["ok"]


def test_what_was_changed_in_the_lake_is_found(node, bucket):
    run(node, "manifest", f"forebay://{bucket}/raw/")
    node.client().put_object(Bucket=bucket, Key="raw/0003.cls", Body=b"9")
    process = command(node, "verify", f"forebay://{bucket}/raw/")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert json.loads(out)["changed"] == ["0003.cls"]
