"""kill -9 in the middle of everything, then compare every byte.

What was acknowledged must be there; what was not may be there, but then whole.
"""

import random
import threading

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from stores import new_bucket
from forebay_node import wait_for
from payload import MIB, payload, same

PART = 5 * MIB


class Workers:
    """Threads that work until the node goes away under them."""

    def __init__(self, count: int, work):
        self.acknowledged: dict = {}
        self.attempted: dict = {}
        self.unexpected: list = []
        self.work = work
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def _run(self, number: int):
        try:
            self.work(self, number)
        except (BotoCoreError, ClientError, OSError):
            pass  # the node was killed
        except Exception as error:
            if "Incomplete" not in type(error).__name__ and "Protocol" not in type(error).__name__:
                self.unexpected.append(error)

    def kill_when(self, node, count: int):
        """Starts all, kills the node when so many things are acknowledged, waits for the threads."""
        for thread in self.threads:
            thread.start()
        wait_for(f"{count} acknowledged", lambda: len(self.acknowledged) >= count or self.unexpected, 60)
        node.kill()
        for thread in self.threads:
            thread.join()
        assert not self.unexpected, self.unexpected


def body_or_none(s3, bucket, key):
    try:
        return s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except ClientError as error:
        assert error.response["Error"]["Code"] == "NoSuchKey", error
        return None


@pytest.mark.parametrize("acknowledged", [1, 5, 23])
def test_kill_during_put(own_node, acknowledged):
    node = own_node().start()
    bucket = new_bucket(node.client())

    def write(workers, number):
        s3 = node.client()
        for round in range(1000):
            key, seed = f"w{number}/{round}", number * 1000 + round
            workers.attempted[key] = seed
            s3.put_object(Bucket=bucket, Key=key, Body=payload(2 * MIB + seed, seed))
            workers.acknowledged[key] = seed

    workers = Workers(4, write)
    workers.kill_when(node, acknowledged)
    s3 = node.start().client()
    for key, seed in workers.attempted.items():
        got = body_or_none(s3, bucket, key)
        assert got is not None or key not in workers.acknowledged, f"{key} was acknowledged and is lost"
        if got is not None:
            same(got, payload(2 * MIB + seed, seed))
    listed = {one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}
    assert set(workers.acknowledged) <= listed <= set(workers.attempted)


def test_kill_during_overwrite_leaves_old_or_new(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    s3.put_object(Bucket=bucket, Key="o", Body=payload(3 * MIB, 0))

    def write(workers, _):
        s3 = node.client()
        for round in range(1, 1000):
            workers.attempted[round] = True
            s3.put_object(Bucket=bucket, Key="o", Body=payload(3 * MIB, round))
            workers.acknowledged[round] = True

    workers = Workers(1, write)
    workers.kill_when(node, 4)
    got = body_or_none(node.start().client(), bucket, "o")
    last = max(workers.acknowledged)
    assert got in [payload(3 * MIB, round) for round in (last, last + 1)]


@pytest.mark.parametrize("acknowledged", [1, 6])
def test_kill_during_multipart(own_node, acknowledged):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="big")["UploadId"]

    def send(workers, number):
        s3 = node.client()
        for part in range(1 + number, 41, 4):
            answer = s3.upload_part(Bucket=bucket, Key="big", UploadId=upload, PartNumber=part, Body=payload(PART, part))
            workers.acknowledged[part] = answer["ETag"]

    workers = Workers(4, send)
    workers.kill_when(node, acknowledged)
    s3 = node.start().client()
    at = {"Bucket": bucket, "Key": "big", "UploadId": upload}
    listed = {part["PartNumber"]: part["ETag"] for part in s3.list_parts(**at).get("Parts", [])}
    for part, etag in workers.acknowledged.items():
        assert listed.get(part) == etag, f"part {part} was acknowledged and is lost"
    parts = sorted(workers.acknowledged)
    chosen = [{"PartNumber": part, "ETag": workers.acknowledged[part]} for part in parts]
    s3.complete_multipart_upload(**at, MultipartUpload={"Parts": chosen})
    same(body_or_none(s3, bucket, "big"), b"".join(payload(PART, part) for part in parts))


@pytest.mark.parametrize("delay_ms", [0, 3, 15, 60])
def test_kill_during_complete_is_whole_or_absent(own_node, delay_ms):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    at = {"Bucket": bucket, "Key": "big", "UploadId": s3.create_multipart_upload(Bucket=bucket, Key="big")["UploadId"]}
    parts = []
    for number in (1, 2, 3):
        answer = s3.upload_part(**at, PartNumber=number, Body=payload(PART, number))
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def finish(workers, _):
        node.client().complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
        workers.acknowledged["big"] = True

    workers = Workers(1, finish)
    workers.threads[0].start()
    workers.threads[0].join(delay_ms / 1000)
    node.kill()
    workers.threads[0].join()
    s3 = node.start().client()
    got = body_or_none(s3, bucket, "big")
    whole = b"".join(payload(PART, number) for number in (1, 2, 3))
    assert got is not None or not workers.acknowledged
    if got is None:  # then the upload must still be there to be completed
        s3.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
        got = body_or_none(s3, bucket, "big")
    same(got, whole)


@pytest.mark.parametrize("reads", [3, 40])
def test_kill_during_fill_and_eviction(own_node, reads):
    node = own_node(ram="64MiB", nvme="64MiB").start()
    bucket = new_bucket(node.client())
    count, size = 32, 6 * MIB  # 192 MiB through 128 MiB of cache
    folder = node.lake_dir / bucket
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}").write_bytes(payload(size + number, number))

    def read(workers, worker):
        s3, choice = node.client(), random.Random(worker)
        for round in range(10_000):
            number = choice.randrange(count)
            same(s3.get_object(Bucket=bucket, Key=f"{number}")["Body"].read(), payload(size + number, number))
            workers.acknowledged[worker, round] = True

    for _ in range(2):
        Workers(4, read).kill_when(node, reads)
        node.start()
    s3 = node.client()
    for number in range(count):
        same(body_or_none(s3, bucket, f"{number}"), payload(size + number, number))
