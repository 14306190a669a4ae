"""A node in front of Ceph's S3 gateway: old, strict in other places than SeaweedFS, and much used."""

import pytest
from botocore.exceptions import ClientError

import ceph_rgw
from stores import new_bucket
from errors import refused
from forebay_node import Node, client_for
from payload import MIB, payload, same

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
LAKE = "rgw-lake"


@pytest.fixture(scope="module")
def ceph(tmp_path_factory):
    with ceph_rgw.CephRgw(tmp_path_factory.mktemp("ceph")) as ceph:
        client_for(ceph.endpoint, key=ceph_rgw.KEY, secret=ceph_rgw.SECRET).create_bucket(Bucket=LAKE)
        yield ceph


@pytest.fixture(scope="module")
def rgw_node(ceph, tmp_path_factory):
    url = f"s3://{LAKE}?endpoint={ceph.endpoint}&region=us-east-1&style=path"
    with Node(tmp_path_factory.mktemp("rgw-node"), lake=url, env=ceph_rgw.environment()) as node:
        yield node


@pytest.fixture
def s3(rgw_node):
    return rgw_node.client()


@pytest.fixture
def bucket(s3):
    return new_bucket(s3)


@pytest.mark.parametrize("size", [0, 1, MIB + 1, 20 * MIB + 3])
def test_objects_come_back(s3, bucket, size):
    body = payload(size, size)
    s3.put_object(Bucket=bucket, Key="a b/ü+%", Body=body, Metadata={"k": "v"}, ContentType="x/y")
    got = s3.get_object(Bucket=bucket, Key="a b/ü+%")
    assert (got["Metadata"], got["ContentType"]) == ({"k": "v"}, "x/y")
    same(got["Body"].read(), body)


def test_multipart_survives_a_restart(rgw_node, s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="big", Metadata={"a": "b"})["UploadId"]
    at = {"Bucket": bucket, "Key": "big", "UploadId": upload}
    bodies = [payload(5 * MIB, 1), payload(77, 2)]
    parts = [{"PartNumber": 1, "ETag": s3.upload_part(**at, PartNumber=1, Body=bodies[0])["ETag"]}]
    rgw_node.restart()
    s3 = rgw_node.client()
    parts.append({"PartNumber": 2, "ETag": s3.upload_part(**at, PartNumber=2, Body=bodies[1])["ETag"]})
    s3.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})
    got = s3.get_object(Bucket=bucket, Key="big")
    assert got["Metadata"] == {"a": "b"}
    same(got["Body"].read(), b"".join(bodies))


def test_conditional_writes_keep_their_promise(s3, bucket):
    at = {"Bucket": bucket, "Key": "o"}
    etag = s3.put_object(**at, Body=b"one", IfNoneMatch="*")["ETag"]
    with refused("PreconditionFailed", 412):
        s3.put_object(**at, Body=b"two", IfNoneMatch="*")
    s3.put_object(**at, Body=b"three", IfMatch=etag)
    with refused("PreconditionFailed", 412):
        s3.put_object(**at, Body=b"four", IfMatch=etag)
    assert s3.get_object(**at)["Body"].read() == b"three"


def test_a_conditional_delete_that_ceph_would_ignore_is_refused(s3, bucket):
    at = {"Bucket": bucket, "Key": "o"}
    etag = s3.put_object(**at, Body=b"one")["ETag"]
    with refused("NotImplemented", 501):
        s3.delete_object(**at, IfMatch=etag)
    assert s3.get_object(**at)["Body"].read() == b"one"


def test_listing_pages_in_byte_order(s3, bucket):
    keys = sorted(["a", "a/1", "a-", "a0", "b/c/d", "ü"], key=lambda key: key.encode())
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    seen, token = [], {}
    while True:
        page = s3.list_objects_v2(Bucket=bucket, MaxKeys=2, **token)
        seen += [one["Key"] for one in page["Contents"]]
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    assert seen == keys
    grouped = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Prefix"] for one in grouped["CommonPrefixes"]] == ["a/", "b/"]


def test_copy_tags_and_delete(s3, bucket):
    s3.put_object(Bucket=bucket, Key="from", Body=b"x" * 1000, Tagging="a=1")
    s3.copy_object(Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "from"})
    assert s3.get_object_tagging(Bucket=bucket, Key="to")["TagSet"] == [{"Key": "a", "Value": "1"}]
    s3.delete_object(Bucket=bucket, Key="from")
    with pytest.raises(ClientError):
        s3.head_object(Bucket=bucket, Key="from")
