"""CopyObject and object tagging."""

import pytest

from stores import new_bucket
from errors import refused
from payload import MIB, payload, same


@pytest.fixture
def source(any_s3, any_bucket):
    body = payload(2 * MIB + 3, 5)
    answer = any_s3.put_object(
        Bucket=any_bucket, Key="from", Body=body, Metadata={"a": "1"}, ContentType="x/y", Tagging="t=1"
    )
    return {"Bucket": any_bucket, "Key": "from"}, body, answer["ETag"]


def test_copy_keeps_bytes_metadata_and_tags(any_s3, source):
    at, body, _ = source
    other = new_bucket(any_s3)
    done = any_s3.copy_object(Bucket=other, Key="to", CopySource=at)
    got = any_s3.get_object(Bucket=other, Key="to")
    assert got["ETag"] == done["CopyObjectResult"]["ETag"]
    assert (got["Metadata"], got["ContentType"], got["TagCount"]) == ({"a": "1"}, "x/y", 1)
    same(got["Body"].read(), body)


def test_copy_with_replace_takes_the_new_metadata(any_s3, source):
    at, _, _ = source
    any_s3.copy_object(
        Bucket=at["Bucket"], Key="to", CopySource=at, MetadataDirective="REPLACE", Metadata={"b": "2"}, ContentType="z/z"
    )
    head = any_s3.head_object(Bucket=at["Bucket"], Key="to")
    assert (head["Metadata"], head["ContentType"]) == ({"b": "2"}, "z/z")


def test_copy_onto_itself_needs_a_change(any_s3, source):
    at, body, _ = source
    with refused("InvalidRequest", 400):
        any_s3.copy_object(**at, CopySource=at)
    any_s3.copy_object(**at, CopySource=at, MetadataDirective="REPLACE", Metadata={"c": "3"})
    got = any_s3.get_object(**at)
    assert got["Metadata"] == {"c": "3"}
    same(got["Body"].read(), body)


def test_copy_conditions_look_at_the_source(any_s3, source):
    at, _, etag = source
    to = {"Bucket": at["Bucket"], "Key": "to"}
    with refused("PreconditionFailed", 412):
        any_s3.copy_object(**to, CopySource=at, CopySourceIfMatch='"0123"')
    with refused("PreconditionFailed", 412):
        any_s3.copy_object(**to, CopySource=at, CopySourceIfNoneMatch=etag)
    any_s3.copy_object(**to, CopySource=at, CopySourceIfMatch=etag)


def test_copy_of_nothing_is_not_found(any_s3, any_bucket):
    with refused("NoSuchKey", 404):
        any_s3.copy_object(Bucket=any_bucket, Key="to", CopySource={"Bucket": any_bucket, "Key": "nothing"})


def test_tags_are_set_read_and_removed(any_s3, source):
    at, body, etag = source
    tags = [{"Key": "project", "Value": "forebay"}, {"Key": "a b", "Value": "ü+/="}]
    any_s3.put_object_tagging(**at, Tagging={"TagSet": tags})
    got = any_s3.get_object_tagging(**at)["TagSet"]
    assert sorted(got, key=lambda tag: tag["Key"]) == sorted(tags, key=lambda tag: tag["Key"])
    whole = any_s3.get_object(**at)
    assert (whole["TagCount"], whole["ETag"]) == (2, etag)
    same(whole["Body"].read(), body)
    any_s3.delete_object_tagging(**at)
    assert any_s3.get_object_tagging(**at)["TagSet"] == []


def test_overwrite_drops_the_old_tags(any_s3, source):
    at, _, _ = source
    any_s3.put_object(**at, Body=b"new")
    assert any_s3.get_object_tagging(**at)["TagSet"] == []


def test_too_many_or_too_long_tags_are_refused(s3, bucket):
    s3.put_object(Bucket=bucket, Key="o", Body=b"x")
    many = [{"Key": f"k{number}", "Value": "v"} for number in range(11)]
    with refused("BadRequest", 400):
        s3.put_object_tagging(Bucket=bucket, Key="o", Tagging={"TagSet": many})
    with refused("InvalidTag", 400):
        s3.put_object_tagging(Bucket=bucket, Key="o", Tagging={"TagSet": [{"Key": "k" * 129, "Value": "v"}]})
    twice = [{"Key": "k", "Value": "1"}, {"Key": "k", "Value": "2"}]
    with refused("InvalidTag", 400):
        s3.put_object_tagging(Bucket=bucket, Key="o", Tagging={"TagSet": twice})


def test_tags_survive_restart(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", Tagging="a=1&b=2")
    node.restart()
    assert len(node.client().get_object_tagging(Bucket=bucket, Key="o")["TagSet"]) == 2
