"""Buckets and objects with boto3: what is put is what is got, on every kind of lake."""

import base64
import hashlib
import urllib.error
import urllib.request

import pytest

from errors import refused
from payload import KIB, MIB, payload, same

SIZES = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, MIB + 1, 9 * MIB + 17]


@pytest.mark.parametrize("size", SIZES)
def test_object_comes_back_as_it_was_put(any_s3, any_bucket, size):
    body = payload(size, seed=size)
    put = any_s3.put_object(Bucket=any_bucket, Key="o", Body=body)
    for _ in range(2):  # once while it may still be in memory from the write, once from the cache
        got = any_s3.get_object(Bucket=any_bucket, Key="o")
        assert got["ContentLength"] == size
        assert got["ETag"] == put["ETag"]
        same(got["Body"].read(), body)
    assert any_s3.head_object(Bucket=any_bucket, Key="o")["ContentLength"] == size


def test_single_put_has_the_md5_as_etag(s3, bucket):
    body = payload(300 * KIB)
    assert s3.put_object(Bucket=bucket, Key="o", Body=body)["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'


def test_overwrite_is_visible_at_once(any_s3, any_bucket):
    for round in range(5):
        body = payload(200 * KIB + round, seed=round)
        any_s3.put_object(Bucket=any_bucket, Key="o", Body=body)
        same(any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read(), body)


def test_deleted_object_is_gone_at_once(any_s3, any_bucket):
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"x")
    any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read()
    any_s3.delete_object(Bucket=any_bucket, Key="o")
    with refused("NoSuchKey", 404):
        any_s3.get_object(Bucket=any_bucket, Key="o")
    any_s3.delete_object(Bucket=any_bucket, Key="o")  # again is fine


RANGES = [
    ("bytes=0-0", 0, 1),
    ("bytes=0-65535", 0, 64 * KIB),
    ("bytes=65535-65536", 64 * KIB - 1, 64 * KIB + 1),
    ("bytes=1048570-1048590", MIB - 6, MIB + 15),
    ("bytes=100-", 100, 3 * MIB + 5),
    ("bytes=-7", 3 * MIB - 2, 3 * MIB + 5),
    ("bytes=-99999999", 0, 3 * MIB + 5),
    ("bytes=3145720-99999999", 3145720, 3 * MIB + 5),
]


@pytest.mark.parametrize("header,start,end", RANGES)
def test_range_returns_exactly_its_bytes(any_s3, any_bucket, header, start, end):
    size = 3 * MIB + 5
    body = payload(size, seed=3)
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=body)
    got = any_s3.get_object(Bucket=any_bucket, Key="o", Range=header)
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert got["ContentRange"] == f"bytes {start}-{end - 1}/{size}"
    same(got["Body"].read(), body[start:end])


def test_range_past_the_end_is_416(any_s3, any_bucket):
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"0123456789")
    with refused("InvalidRange", 416):
        any_s3.get_object(Bucket=any_bucket, Key="o", Range="bytes=10-20")


def test_metadata_and_content_headers_come_back(any_s3, any_bucket):
    headers = {
        "ContentType": "application/x-thing",
        "CacheControl": "max-age=7",
        "ContentDisposition": 'attachment; filename="a b.txt"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
    }
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"x", Metadata={"owner": "me", "run": "7"}, **headers)
    for answer in (any_s3.head_object(Bucket=any_bucket, Key="o"), any_s3.get_object(Bucket=any_bucket, Key="o")):
        assert answer["Metadata"] == {"owner": "me", "run": "7"}
        assert {name: answer[name] for name in headers} == headers


def test_response_overrides_replace_headers(s3, bucket):
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", ContentType="text/plain")
    got = s3.get_object(Bucket=bucket, Key="o", ResponseContentType="image/png", ResponseCacheControl="no-store")
    assert (got["ContentType"], got["CacheControl"]) == ("image/png", "no-store")


KEYS = ["a b", "ü/ñ/日本語", "a+b%20c", "q?x=1&y=2#z", "deep/er/and/deeper", "dots..and.", "~tilde(1)'!*", "a" * 200, "quote\"s"]


@pytest.mark.parametrize("key", KEYS)
def test_unusual_keys_work(any_s3, any_bucket, key):
    any_s3.put_object(Bucket=any_bucket, Key=key, Body=key.encode())
    assert any_s3.get_object(Bucket=any_bucket, Key=key)["Body"].read() == key.encode()
    assert [item["Key"] for item in any_s3.list_objects_v2(Bucket=any_bucket)["Contents"]] == [key]
    any_s3.delete_object(Bucket=any_bucket, Key=key)


@pytest.mark.parametrize("key", ["../escape", "a/../../escape", "..", "/../x"])
def test_keys_never_escape_the_folder(node, s3, bucket, key):
    before = {path for path in node.root.iterdir()}
    try:
        s3.put_object(Bucket=bucket, Key=key, Body=b"evil")
    except Exception as error:  # boto3 raises different classes for refused keys
        assert "500" not in str(error)
    assert {path for path in node.root.iterdir()} == before
    assert not (node.lake_dir / "escape").exists()


def test_missing_things_have_their_own_codes(any_s3, any_bucket):
    with refused("NoSuchKey", 404):
        any_s3.get_object(Bucket=any_bucket, Key="nothing")
    with refused("404", 404):
        any_s3.head_object(Bucket=any_bucket, Key="nothing")
    with refused("NoSuchBucket", 404):
        any_s3.get_object(Bucket="no-such-bucket-here", Key="nothing")
    with refused("NoSuchBucket", 404):
        any_s3.put_object(Bucket="no-such-bucket-here", Key="o", Body=b"x")
    with refused("NoSuchBucket", 404):
        any_s3.list_objects_v2(Bucket="no-such-bucket-here")


def test_bucket_life_cycle(any_s3):
    name = "bucket-life-cycle"
    any_s3.create_bucket(Bucket=name)
    assert name in [bucket["Name"] for bucket in any_s3.list_buckets()["Buckets"]]
    any_s3.head_bucket(Bucket=name)
    assert any_s3.get_bucket_location(Bucket=name)["LocationConstraint"] in (None, "us-east-1")
    any_s3.put_object(Bucket=name, Key="o", Body=b"x")
    with refused("BucketNotEmpty", 409):
        any_s3.delete_bucket(Bucket=name)
    any_s3.delete_object(Bucket=name, Key="o")
    any_s3.delete_bucket(Bucket=name)
    with refused("404", 404):
        any_s3.head_bucket(Bucket=name)


def test_delete_objects_answers_for_each_key(any_s3, any_bucket):
    keys = [f"k/{number}" for number in range(20)]
    for key in keys:
        any_s3.put_object(Bucket=any_bucket, Key=key, Body=b"x")
    wanted = [{"Key": key} for key in [*keys, "never-there"]]
    answer = any_s3.delete_objects(Bucket=any_bucket, Delete={"Objects": wanted})
    assert sorted(item["Key"] for item in answer["Deleted"]) == sorted([*keys, "never-there"])
    assert "Errors" not in answer
    assert "Contents" not in any_s3.list_objects_v2(Bucket=any_bucket)


def test_delete_objects_quiet_says_nothing(s3, bucket):
    s3.put_object(Bucket=bucket, Key="o", Body=b"x")
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "o"}], "Quiet": True})
    assert "Deleted" not in answer


def test_wrong_content_md5_is_refused_and_leaves_no_object(any_s3, any_bucket):
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with refused("BadDigest", 400):
        any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"this", ContentMD5=wrong)
    with refused("404", 404):
        any_s3.head_object(Bucket=any_bucket, Key="o")


def test_refused_overwrite_leaves_the_old_object(any_s3, any_bucket):
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"old")
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with refused("BadDigest", 400):
        any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"new", ContentMD5=wrong)
    assert any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read() == b"old"


def test_metadata_past_2_kib_is_too_large(s3, bucket):
    with refused("MetadataTooLarge", 400):
        s3.put_object(Bucket=bucket, Key="o", Body=b"x", Metadata={"big": "x" * 2100})


def test_our_own_documents_cannot_be_written_or_read(s3, bucket):
    with refused("InvalidArgument", 400):
        s3.put_object(Bucket=bucket, Key=".forebay/evil", Body=b"x")
    with refused("NoSuchKey", 404):
        s3.get_object(Bucket=bucket, Key=".forebay/uploads")


def test_operations_that_are_not_there_say_so(s3, bucket):
    with refused("NotImplemented", 501):
        s3.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={"Rules": [{"ID": "r", "Status": "Enabled", "Filter": {}, "Expiration": {"Days": 1}}]},
        )


def test_post_is_answered_with_not_implemented(node, bucket):
    request = urllib.request.Request(f"{node.s3_url}/{bucket}", data=b"--b--", method="POST")
    request.add_header("Content-Type", "multipart/form-data; boundary=b")
    try:
        urllib.request.urlopen(request, timeout=20)
        raise AssertionError("POST was accepted")
    except urllib.error.HTTPError as error:
        assert error.code in (403, 501), error.code
        assert b"<Code>" in error.read()


def test_encryption_is_refused_not_ignored(s3, bucket):
    with refused("NotImplemented", 501):
        s3.put_object(Bucket=bucket, Key="o", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId="k")


def test_file_copied_into_the_folder_is_an_object(node, s3, bucket):
    body = payload(150 * KIB, seed=11)
    (node.lake_dir / bucket / "dropped").mkdir(parents=True)
    (node.lake_dir / bucket / "dropped" / "in.bin").write_bytes(body)
    same(s3.get_object(Bucket=bucket, Key="dropped/in.bin")["Body"].read(), body)
    head = s3.head_object(Bucket=bucket, Key="dropped/in.bin")
    listed = s3.list_objects_v2(Bucket=bucket)["Contents"][0]
    assert (listed["Key"], listed["Size"], listed["ETag"]) == ("dropped/in.bin", len(body), head["ETag"])


def test_object_is_an_ordinary_file_in_the_folder(node, s3, bucket):
    body = payload(70 * KIB, seed=12)
    s3.put_object(Bucket=bucket, Key="a/b.bin", Body=body)
    same((node.lake_dir / bucket / "a" / "b.bin").read_bytes(), body)
