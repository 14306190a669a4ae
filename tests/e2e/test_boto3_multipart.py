"""Multipart uploads with boto3."""

import base64
import hashlib

import pytest

from stores import new_bucket, seaweed_lake
from errors import refused
from payload import MIB, payload, same

PART = 5 * MIB


def upload(s3, bucket, key, bodies, numbers=None, **options):
    """Starts an upload and stores the parts; returns its id and the list for `complete`."""
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key, **options)["UploadId"]
    parts = []
    for number, body in zip(numbers or range(1, len(bodies) + 1), bodies):
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    return upload_id, parts


def complete(s3, bucket, key, upload_id, parts, **options):
    return s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}, **options
    )


def test_parts_become_the_object(any_s3, any_bucket):
    bodies = [payload(PART, 1), payload(PART + 3, 2), payload(17, 3)]
    upload_id, parts = upload(any_s3, any_bucket, "big", bodies, Metadata={"a": "b"}, ContentType="x/y")
    with refused("404", 404):
        any_s3.head_object(Bucket=any_bucket, Key="big")
    done = complete(any_s3, any_bucket, "big", upload_id, parts)
    assert done["ETag"].strip('"').endswith("-3")
    got = any_s3.get_object(Bucket=any_bucket, Key="big")
    assert (got["ETag"], got["Metadata"], got["ContentType"]) == (done["ETag"], {"a": "b"}, "x/y")
    same(got["Body"].read(), b"".join(bodies))


def test_etag_is_the_md5_of_the_parts_md5s(s3, bucket):
    bodies = [payload(PART, 1), payload(9, 2)]
    upload_id, parts = upload(s3, bucket, "o", bodies)
    joined = hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()
    assert complete(s3, bucket, "o", upload_id, parts)["ETag"] == f'"{joined}-2"'


def test_part_numbers_may_have_gaps(any_s3, any_bucket):
    bodies = [payload(PART, 1), payload(PART, 2), payload(5, 3)]
    upload_id, parts = upload(any_s3, any_bucket, "o", bodies, numbers=[2, 7, 9000])
    complete(any_s3, any_bucket, "o", upload_id, parts)
    same(any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read(), b"".join(bodies))


def test_last_write_of_a_part_wins(any_s3, any_bucket):
    upload_id, _ = upload(any_s3, any_bucket, "o", [payload(PART, 1)])
    second = payload(PART, 2)
    answer = any_s3.upload_part(Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumber=1, Body=second)
    complete(any_s3, any_bucket, "o", upload_id, [{"PartNumber": 1, "ETag": answer["ETag"]}])
    same(any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read(), second)


def test_part_number_reads_one_part(any_s3, any_bucket):
    bodies = [payload(PART, 1), payload(PART, 2), payload(11, 3)]
    upload_id, parts = upload(any_s3, any_bucket, "o", bodies)
    complete(any_s3, any_bucket, "o", upload_id, parts)
    got = any_s3.get_object(Bucket=any_bucket, Key="o", PartNumber=2)
    assert got["PartsCount"] == 3
    same(got["Body"].read(), bodies[1])
    assert any_s3.head_object(Bucket=any_bucket, Key="o", PartNumber=3)["ContentLength"] == 11


def test_list_parts_pages_by_number(any_s3, any_bucket):
    upload_id, parts = upload(any_s3, any_bucket, "o", [b"1" * 10, b"2" * 20, b"3" * 30])
    first = any_s3.list_parts(Bucket=any_bucket, Key="o", UploadId=upload_id, MaxParts=2)
    assert [part["Size"] for part in first["Parts"]] == [10, 20]
    assert first["IsTruncated"] and first["NextPartNumberMarker"] == 2
    rest = any_s3.list_parts(Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumberMarker=2)
    assert [(part["PartNumber"], part["ETag"]) for part in rest["Parts"]] == [(3, parts[2]["ETag"])]
    assert not rest["IsTruncated"]


def test_open_uploads_are_listed_until_they_end(any_s3, any_bucket):
    first, _ = upload(any_s3, any_bucket, "a/x", [])
    second, _ = upload(any_s3, any_bucket, "b/y", [])
    listed = any_s3.list_multipart_uploads(Bucket=any_bucket)["Uploads"]
    assert [(one["Key"], one["UploadId"]) for one in listed] == [("a/x", first), ("b/y", second)]
    listed = any_s3.list_multipart_uploads(Bucket=any_bucket, Prefix="b/")["Uploads"]
    assert [one["Key"] for one in listed] == ["b/y"]
    any_s3.abort_multipart_upload(Bucket=any_bucket, Key="a/x", UploadId=first)
    any_s3.abort_multipart_upload(Bucket=any_bucket, Key="b/y", UploadId=second)
    assert "Uploads" not in any_s3.list_multipart_uploads(Bucket=any_bucket)
    with refused("NoSuchUpload", 404):
        any_s3.list_parts(Bucket=any_bucket, Key="a/x", UploadId=first)


def test_uploads_page_by_key_and_id(s3, bucket):
    made = sorted((key, upload(s3, bucket, key, [])[0]) for key in ["k1", "k2", "k3", "k4", "k5"])
    seen, markers = [], {}
    while True:
        page = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=2, **markers)
        seen += [(one["Key"], one["UploadId"]) for one in page["Uploads"]]
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert seen == made


def test_wrong_completions_are_refused(any_s3, any_bucket):
    upload_id, parts = upload(any_s3, any_bucket, "o", [payload(PART, 1), payload(PART, 2)])
    with refused("InvalidPartOrder", 400):
        complete(any_s3, any_bucket, "o", upload_id, parts[::-1])
    with refused("InvalidPart", 400):
        complete(any_s3, any_bucket, "o", upload_id, [parts[0], {"PartNumber": 2, "ETag": '"' + "0" * 32 + '"'}])
    with refused("InvalidPart", 400):
        complete(any_s3, any_bucket, "o", upload_id, [*parts, {"PartNumber": 3, "ETag": parts[0]["ETag"]}])
    with refused("NoSuchUpload", 404):
        complete(any_s3, any_bucket, "o", "never-made", parts)
    complete(any_s3, any_bucket, "o", upload_id, parts)  # the upload survived all of that


def test_small_part_in_the_middle_is_too_small(s3, bucket):
    upload_id, parts = upload(s3, bucket, "o", [b"small", payload(PART, 2)])
    with refused("EntityTooSmall", 400):
        complete(s3, bucket, "o", upload_id, parts)


@pytest.mark.parametrize("number", [0, 10001])
def test_part_number_out_of_bounds_is_invalid(s3, bucket, number):
    upload_id, _ = upload(s3, bucket, "o", [])
    with refused("InvalidArgument", 400):
        s3.upload_part(Bucket=bucket, Key="o", UploadId=upload_id, PartNumber=number, Body=b"x")


def test_wrong_part_md5_is_refused(any_s3, any_bucket):
    upload_id, _ = upload(any_s3, any_bucket, "o", [])
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with refused("BadDigest", 400):
        any_s3.upload_part(Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumber=1, Body=b"x", ContentMD5=wrong)
    assert "Parts" not in any_s3.list_parts(Bucket=any_bucket, Key="o", UploadId=upload_id)


def test_part_copy_takes_a_range_of_another_object(any_s3, any_bucket):
    source = payload(12 * MIB, 4)
    any_s3.put_object(Bucket=any_bucket, Key="source", Body=source)
    upload_id = any_s3.create_multipart_upload(Bucket=any_bucket, Key="o")["UploadId"]
    ranges, parts = [(MIB, 6 * MIB + 5), (0, 99)], []
    for number, (first, last) in enumerate(ranges, 1):
        answer = any_s3.upload_part_copy(
            Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumber=number,
            CopySource={"Bucket": any_bucket, "Key": "source"}, CopySourceRange=f"bytes={first}-{last}",
        )  # fmt: skip
        parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    complete(any_s3, any_bucket, "o", upload_id, parts)
    expected = b"".join(source[first : last + 1] for first, last in ranges)
    same(any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read(), expected)


def test_complete_with_if_none_match_keeps_the_old_object(any_s3, any_bucket):
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"old")
    upload_id, parts = upload(any_s3, any_bucket, "o", [b"new"])
    with refused("PreconditionFailed", 412):
        complete(any_s3, any_bucket, "o", upload_id, parts, IfNoneMatch="*")
    assert any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read() == b"old"


@pytest.mark.parametrize("kind", ["folder", "seaweed"])
def test_upload_goes_on_after_restart(own_node, kind):
    options = {}
    if kind == "seaweed":
        _, url, env = seaweed_lake()
        options = {"lake": url, "env": env}
    node = own_node(**options).start()
    s3 = node.client()
    bucket = new_bucket(s3)
    bodies = [payload(PART, 1), payload(100, 2)]
    upload_id, parts = upload(s3, bucket, "o", bodies[:1], Metadata={"kept": "yes"}, Tagging="a=b")
    node.restart()
    s3 = node.client()
    assert [part["Size"] for part in s3.list_parts(Bucket=bucket, Key="o", UploadId=upload_id)["Parts"]] == [PART]
    last = s3.upload_part(Bucket=bucket, Key="o", UploadId=upload_id, PartNumber=2, Body=bodies[1])
    complete(s3, bucket, "o", upload_id, [*parts, {"PartNumber": 2, "ETag": last["ETag"]}])
    got = s3.get_object(Bucket=bucket, Key="o")
    same(got["Body"].read(), b"".join(bodies))
    assert (got["Metadata"], got["TagCount"]) == ({"kept": "yes"}, 1)


def test_managed_transfer_uploads_and_downloads_in_parallel(any_s3, any_bucket, tmp_path):
    from boto3.s3.transfer import TransferConfig

    body = payload(40 * MIB + 1, 6)
    (tmp_path / "in").write_bytes(body)
    config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=4)
    any_s3.upload_file(str(tmp_path / "in"), any_bucket, "o", Config=config)
    any_s3.download_file(any_bucket, "o", str(tmp_path / "out"), Config=config)
    same((tmp_path / "out").read_bytes(), body)
