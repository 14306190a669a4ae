"""A listing is complete or an error, also while others write."""

import threading

import pytest

from stores import new_bucket

COUNT = 100_000
FOLDERS = 100


def list_all(s3, bucket: str, **options) -> list[str]:
    keys, token = [], {}
    while True:
        page = s3.list_objects_v2(Bucket=bucket, **options, **token)
        keys += [one["Key"] for one in page.get("Contents", [])]
        if not page["IsTruncated"]:
            return keys
        token = {"ContinuationToken": page["NextContinuationToken"]}


@pytest.mark.timeout(600)
def test_hundred_thousand_keys_are_all_listed_while_others_are_written(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    expected = []
    for folder in range(FOLDERS):
        path = node.lake_dir / bucket / f"d{folder:03}"
        path.mkdir(parents=True)
        for number in range(COUNT // FOLDERS):
            (path / f"k{number:04}").touch()
            expected.append(f"d{folder:03}/k{number:04}")
    stop, written, removed = threading.Event(), [], []

    def churn(worker: int):
        mine = node.client()
        number = 0
        while not stop.is_set():
            key = f"d{number * 7 % FOLDERS:03}/new-{worker}-{number}"
            mine.put_object(Bucket=bucket, Key=key, Body=b"x")
            written.append(key)
            if number % 3 == 0:
                mine.delete_object(Bucket=bucket, Key=key)
                removed.append(key)
            number += 1

    threads = [threading.Thread(target=churn, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            before = set(written) - set(removed)
            keys = list_all(s3, bucket)
            assert keys == sorted(keys), "not in order"
            assert len(keys) == len(set(keys)), "a key came twice"
            found = set(keys)
            assert not set(expected) - found, "keys that were there all the time are missing"
            assert not (before - set(removed)) - found, "keys written before the listing are missing"
            assert found <= set(expected) | set(written), "keys that nobody wrote"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(written) > 10, "nobody wrote meanwhile"
    quiet = list_all(s3, bucket)
    assert set(quiet) == (set(expected) | set(written)) - set(removed)


def test_our_own_documents_are_never_listed(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    s3.create_multipart_upload(Bucket=bucket, Key="open")
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", Tagging="a=b", Metadata={"k": "v"})
    assert list_all(s3, bucket) == ["o"]
    assert "CommonPrefixes" not in s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Name"] for one in s3.list_buckets()["Buckets"]] == [bucket]
