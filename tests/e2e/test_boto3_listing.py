"""Listings with boto3: order, grouping, paging, encoding."""

import pytest
from botocore.exceptions import ClientError

from errors import refused

KEYS = sorted(["a/1", "a/2", "a/b/c", "a0", "a-", "b", "ü", "z/last", "dir with space/x"], key=lambda key: key.encode())


@pytest.fixture
def filled(any_s3, any_bucket):
    for key in KEYS:
        any_s3.put_object(Bucket=any_bucket, Key=key, Body=b"x")
    return any_s3, any_bucket


def pages(s3, bucket, **options):
    """All keys and prefixes by ListObjectsV2, following continuation tokens."""
    keys, prefixes = [], []
    while True:
        page = s3.list_objects_v2(Bucket=bucket, **options)
        found = page.get("Contents", [])
        groups = page.get("CommonPrefixes", [])
        assert page["KeyCount"] == len(found) + len(groups)
        assert page["KeyCount"] <= options.get("MaxKeys", 1000)
        keys += [one["Key"] for one in found]
        prefixes += [one["Prefix"] for one in groups]
        if not page["IsTruncated"]:
            return keys, prefixes
        options["ContinuationToken"] = page["NextContinuationToken"]


def test_keys_come_in_byte_order(filled):
    assert pages(*filled) == (KEYS, [])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_paging_at_any_size_loses_nothing(filled, size):
    assert pages(*filled, MaxKeys=size) == (KEYS, [])
    keys, prefixes = pages(*filled, MaxKeys=size, Delimiter="/")
    assert (keys, prefixes) == (["a-", "a0", "b", "ü"], ["a/", "dir with space/", "z/"])


def test_prefix_is_text_not_a_path(filled):
    assert pages(*filled, Prefix="a")[0] == ["a-", "a/1", "a/2", "a/b/c", "a0"]
    assert pages(*filled, Prefix="a/", Delimiter="/") == (["a/1", "a/2"], ["a/b/"])
    assert pages(*filled, Prefix="nothing") == ([], [])


def test_any_delimiter_groups(filled):
    assert pages(*filled, Delimiter="/b") == ([key for key in KEYS if key != "a/b/c"], ["a/b"])


def test_start_after_skips_up_to_it(filled):
    assert pages(*filled, StartAfter="a/2")[0] == [key for key in KEYS if key.encode() > b"a/2"]


def test_version_one_pages_by_marker(filled):
    s3, bucket = filled
    seen, marker = [], ""
    while True:
        page = s3.list_objects(Bucket=bucket, MaxKeys=2, Marker=marker)
        seen += [one["Key"] for one in page["Contents"]]
        if not page["IsTruncated"]:
            break
        marker = page.get("NextMarker") or page["Contents"][-1]["Key"]
    assert seen == KEYS


def test_url_encoding_keeps_strange_keys(filled):
    s3, bucket = filled
    page = s3.list_objects_v2(Bucket=bucket, EncodingType="url", Prefix="dir")
    assert page["Contents"][0]["Key"] in ("dir with space/x", "dir%20with%20space/x", "dir+with+space/x")


def test_max_keys_zero_is_empty_and_complete(filled):
    s3, bucket = filled
    page = s3.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert (page["KeyCount"], page["IsTruncated"]) == (0, False)


def test_garbage_continuation_token_is_invalid(filled):
    s3, bucket = filled
    with refused("InvalidArgument", 400):
        s3.list_objects_v2(Bucket=bucket, ContinuationToken="\x01not-a-token")


def test_listing_agrees_with_head(filled):
    s3, bucket = filled
    for one in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        head = s3.head_object(Bucket=bucket, Key=one["Key"])
        assert (one["ETag"], one["Size"]) == (head["ETag"], head["ContentLength"])
        assert abs((one["LastModified"] - head["LastModified"]).total_seconds()) <= 1


def test_a_key_below_an_object_is_stored_or_refused_cleanly(any_s3, any_bucket):
    """Neither a folder nor SeaweedFS can hold both `a` and `a/1`; real object stores can."""
    any_s3.put_object(Bucket=any_bucket, Key="a", Body=b"upper")
    try:
        any_s3.put_object(Bucket=any_bucket, Key="a/1", Body=b"lower")
        expected = ["a", "a/1"]
    except ClientError as error:
        assert 400 <= error.response["ResponseMetadata"]["HTTPStatusCode"] < 500, error
        expected = ["a"]
    assert pages(any_s3, any_bucket)[0] == expected
    assert any_s3.get_object(Bucket=any_bucket, Key="a")["Body"].read() == b"upper"


def test_more_than_a_thousand_keys_need_more_than_one_page(node, s3, bucket):
    folder = node.lake_dir / bucket / "many"
    folder.mkdir(parents=True)
    for number in range(2500):
        (folder / f"{number:05}").touch()
    keys, _ = pages(s3, bucket, Prefix="many/")
    assert keys == [f"many/{number:05}" for number in range(2500)]


def test_a_folder_whose_last_object_is_gone_is_no_common_prefix(any_s3, any_bucket):
    for key in ["gone/deep/x", "kept/deep/x", "top"]:
        any_s3.put_object(Bucket=any_bucket, Key=key, Body=b"x")
    any_s3.delete_object(Bucket=any_bucket, Key="gone/deep/x")
    assert pages(any_s3, any_bucket, Delimiter="/") == (["top"], ["kept/"])
    assert pages(any_s3, any_bucket, Delimiter="/", MaxKeys=1) == (["top"], ["kept/"])
    assert pages(any_s3, any_bucket, Delimiter="/", Prefix="gone/") == ([], [])
    assert pages(any_s3, any_bucket, Delimiter="/", Prefix="g") == ([], [])


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_a_part_of_a_name_as_prefix_groups_and_pages_as_ever(any_s3, any_bucket, size):
    for key in ["fo", "foo/bar", "foo/bar2", "foo/baz/1", "foo/baz/2", "foo/bazz", "foo.x", "foobar", "fz/1"]:
        any_s3.put_object(Bucket=any_bucket, Key=key, Body=b"x")

    def grouped(prefix, **more):
        return pages(any_s3, any_bucket, Delimiter="/", Prefix=prefix, MaxKeys=size, **more)

    assert grouped("fo") == (["fo", "foo.x", "foobar"], ["foo/"])
    assert grouped("foo/ba") == (["foo/bar", "foo/bar2", "foo/bazz"], ["foo/baz/"])
    assert grouped("foo/ba", StartAfter="foo/bar") == (["foo/bar2", "foo/bazz"], ["foo/baz/"])
    assert grouped("foo/baz") == (["foo/bazz"], ["foo/baz/"])
    assert grouped("foo/bar", StartAfter="foo/") == (["foo/bar", "foo/bar2"], [])
