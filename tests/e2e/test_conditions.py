"""Conditional reads and writes."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from botocore.exceptions import ClientError

from errors import refused

PAST = datetime(2001, 1, 1, tzinfo=timezone.utc)
FUTURE = datetime.now(timezone.utc) + timedelta(days=2)


@pytest.fixture
def stored(any_s3, any_bucket):
    etag = any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"one")["ETag"]
    return any_s3, {"Bucket": any_bucket, "Key": "o"}, etag


def test_matching_conditions_let_a_read_through(stored):
    s3, at, etag = stored
    assert s3.get_object(**at, IfMatch=etag)["Body"].read() == b"one"
    assert s3.get_object(**at, IfMatch="*")["Body"].read() == b"one"
    assert s3.get_object(**at, IfNoneMatch='"other"')["Body"].read() == b"one"
    assert s3.get_object(**at, IfModifiedSince=PAST)["Body"].read() == b"one"
    assert s3.get_object(**at, IfUnmodifiedSince=FUTURE)["Body"].read() == b"one"


def test_if_match_with_another_etag_fails(stored):
    s3, at, _ = stored
    with refused("PreconditionFailed", 412):
        s3.get_object(**at, IfMatch='"0123"')
    with refused("412", 412):
        s3.head_object(**at, IfMatch='"0123"')


def test_if_none_match_with_this_etag_is_not_modified(stored):
    s3, at, etag = stored
    with refused("304", 304):
        s3.get_object(**at, IfNoneMatch=etag)
    with refused("304", 304):
        s3.head_object(**at, IfNoneMatch=etag)


def test_dates_decide_when_there_is_no_etag(stored):
    s3, at, _ = stored
    with refused("304", 304):
        s3.get_object(**at, IfModifiedSince=FUTURE)
    with refused("PreconditionFailed", 412):
        s3.get_object(**at, IfUnmodifiedSince=PAST)


def test_if_match_hides_if_unmodified_since(stored):
    s3, at, etag = stored
    assert s3.get_object(**at, IfMatch=etag, IfUnmodifiedSince=PAST)["Body"].read() == b"one"


def test_if_none_match_hides_if_modified_since(stored):
    s3, at, etag = stored
    with refused("304", 304):
        s3.get_object(**at, IfNoneMatch=etag, IfModifiedSince=PAST)


def test_create_only_write_fails_when_something_is_there(stored):
    s3, at, _ = stored
    with refused("PreconditionFailed", 412):
        s3.put_object(**at, Body=b"two", IfNoneMatch="*")
    assert s3.get_object(**at)["Body"].read() == b"one"


def test_update_needs_the_current_etag(stored):
    s3, at, etag = stored
    second = s3.put_object(**at, Body=b"two", IfMatch=etag)["ETag"]
    with refused("PreconditionFailed", 412):
        s3.put_object(**at, Body=b"three", IfMatch=etag)
    assert s3.get_object(**at)["Body"].read() == b"two"
    s3.put_object(**at, Body=b"four", IfMatch=second)


def test_update_of_nothing_is_not_found(any_s3, any_bucket):
    with refused("NoSuchKey", 404):
        any_s3.put_object(Bucket=any_bucket, Key="nothing", Body=b"x", IfMatch='"0123"')


def test_delete_needs_the_current_etag(any_s3, any_bucket):
    s3, at = any_s3, {"Bucket": any_bucket, "Key": "o"}
    old = s3.put_object(**at, Body=b"one")["ETag"]
    new = s3.put_object(**at, Body=b"two")["ETag"]
    with refused("PreconditionFailed", 412):
        s3.delete_object(**at, IfMatch=old)
    assert s3.get_object(**at)["Body"].read() == b"two"
    s3.delete_object(**at, IfMatch=new)
    with refused("NoSuchKey", 404):
        s3.delete_object(**at, IfMatch=new)


def race(s3, at, count, **condition):
    """How many of `count` concurrent writers win."""

    def write(number):
        try:
            # Never the same bytes twice: an ETag made from them would match again.
            s3.put_object(**at, Body=f"writer {number} {condition}".encode(), **condition)
            return number
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412), error.response
            return None

    with ThreadPoolExecutor(count) as pool:
        return [number for number in pool.map(write, range(count)) if number is not None]


def test_one_of_many_creators_wins(any_s3, any_bucket):
    for round in range(8):
        at = {"Bucket": any_bucket, "Key": f"race-{round}"}
        winners = race(any_s3, at, 8, IfNoneMatch="*")
        assert len(winners) == 1
        assert any_s3.get_object(**at)["Body"].read().startswith(f"writer {winners[0]} ".encode())


def test_one_of_many_updaters_wins(any_s3, any_bucket):
    at = {"Bucket": any_bucket, "Key": "race"}
    etag = any_s3.put_object(**at, Body=b"start")["ETag"]
    for _ in range(8):
        winners = race(any_s3, at, 8, IfMatch=etag)
        assert len(winners) == 1
        etag = any_s3.head_object(**at)["ETag"]
