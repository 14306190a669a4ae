"""A lake that throttles or goes away: jobs and copies go on by themselves, and people are told."""

import json
import subprocess
import threading
import time
import urllib.request

import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY, binary, wait_for
from throttled_lake import ENV, ThrottledLake

OBJECTS = 600


@pytest.fixture
def lake():
    with ThrottledLake() as lake:
        lake.objects = {f"data/train/{number:05}.bin": bytes([number % 251]) * 2000 for number in range(OBJECTS)}
        yield lake


@pytest.fixture
def node(own_node, lake):
    return own_node(lake=lake.url, env={**ENV, "FOREBAY_LIMITS_REQUEST_PATIENCE": "2s"}).start()


def forebay(node, *args: str) -> subprocess.CompletedProcess:
    env = {
        "FOREBAY_ACCESS_KEY_ID": ACCESS_KEY,
        "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY,
        "FOREBAY_ADMIN": node.admin_url,
        "FOREBAY_DATA": str(node.data),
    }
    command = [binary(), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def admin(node, path: str) -> dict:
    with urllib.request.urlopen(node.admin_url + path, timeout=10) as answer:
        return json.load(answer)


def check_throttling_was_absorbed(lake: ThrottledLake) -> None:
    assert lake.refused > 0, "the lake had no reason to throttle"
    assert lake.refused_late <= 0.05 * lake.sent_late + 3, f"{lake.refused_late} of {lake.sent_late} refused"


@pytest.mark.parametrize("per_s", [300, 150])
def test_a_warm_job_on_a_throttled_lake_ends_done(node, lake, per_s):
    lake.throttle(per_s)
    warmed = forebay(node, "cache", "warm", "data/train/", "--wait")
    assert warmed.returncode == 0, warmed.stderr
    job = admin(node, "/v1/jobs")[0]
    assert (job["state"], job["objects_done"], job["objects_failed"]) == ("done", OBJECTS, 0)
    check_throttling_was_absorbed(lake)


def test_a_copy_of_many_files_from_a_throttled_lake_finishes(node, lake, tmp_path):
    lake.throttle(200)
    copied = forebay(node, "cp", "-r", "--endpoint", node.s3_url, "forebay://data/train/", str(tmp_path / "out"))
    assert copied.returncode == 0, copied.stderr
    assert len(list((tmp_path / "out").rglob("*.bin"))) == OBJECTS
    check_throttling_was_absorbed(lake)


def test_a_job_waits_for_a_lake_that_is_away_and_goes_on(node, lake):
    lake.throttle(300)
    result = {}
    warming = threading.Thread(target=lambda: result.update(end=forebay(node, "cache", "warm", "data/train/", "--wait")))
    warming.start()
    wait_for("the job to begin", lambda: lake.accepted > 100)
    lake.is_away = True
    away_at = time.monotonic()
    wait_for("readyz to tell", lambda: "away" in (admin(node, "/readyz").get("reason") or ""), 10)
    assert time.monotonic() - away_at < 5  # 2 s on a machine that is not crowded
    wait_for("the job to say why it waits", lambda: "away" in (admin(node, "/v1/jobs")[0].get("waiting") or ""), 10)
    assert not any(one["up"] for one in admin(node, "/v1/status")["lakes"])
    lake.is_away = False
    warming.join(60)
    assert result["end"].returncode == 0, result["end"].stderr
    assert admin(node, "/v1/jobs")[0]["state"] == "done"
    wait_for("readyz to tell that it is back", lambda: not admin(node, "/readyz").get("reason"), 10)


def test_a_person_is_told_after_seconds_that_the_lake_is_away(node, lake):
    s3 = node.client()
    assert s3.get_object(Bucket="data", Key="train/00001.bin")["Body"].read() == bytes([1]) * 2000
    lake.is_away = True
    began = time.monotonic()
    with pytest.raises(s3.exceptions.ClientError) as told:
        s3.get_object(Bucket="data", Key="train/00002.bin")
    answer = told.value.response["ResponseMetadata"]
    assert answer["HTTPStatusCode"] == 503 and "retry-after" in answer["HTTPHeaders"], answer
    assert time.monotonic() - began < 15
    lake.is_away = False
    wait_for("the lake to be back", lambda: not admin(node, "/readyz").get("reason"), 10)
    assert s3.get_object(Bucket="data", Key="train/00002.bin")["Body"].read() == bytes([2]) * 2000


def test_a_lake_that_is_away_at_start_keeps_only_its_own_buckets_from_being_served(own_node, lake):
    lake.is_away = True
    config = f"[limits]\nrequest_patience = '1s'\n[[bucket]]\nname = 'far'\nlake = '{lake.url}'\n"
    node = own_node(config=config, env=ENV).start()
    s3 = node.client()
    s3.create_bucket(Bucket="near")
    s3.put_object(Bucket="near", Key="k", Body=b"here")
    assert s3.get_object(Bucket="near", Key="k")["Body"].read() == b"here"
    with pytest.raises(s3.exceptions.ClientError) as told:
        s3.get_object(Bucket="far", Key="data/train/00003.bin")
    assert told.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert "s3://lake" in admin(node, "/readyz")["reason"]
    lake.is_away = False
    wait_for("the lake to pass its self-test", lambda: not admin(node, "/readyz").get("reason"), 30)
    assert s3.get_object(Bucket="far", Key="data/train/00003.bin")["Body"].read() == bytes([3]) * 2000
    s3.put_object(Bucket="far", Key="once", Body=b"1", IfNoneMatch="*")
