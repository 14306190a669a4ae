"""Who may do what: signatures, presigned URLs, keys with limits, and what must be refused."""

import hashlib
import tomllib
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from errors import refused
from forebay_node import ACCESS_KEY, REGION, SECRET_KEY

KEYS_CONFIG = """
[[key]]
id = "reader"
secret = "reader-secret-0123456789"
access = "read-only"

[[key]]
id = "narrow"
secret = "narrow-secret-0123456789"
access = "read-write"
buckets = ["allowed-bucket"]

[[bucket]]
name = "open-bucket"
public_read = true
"""


def http(method: str, url: str, headers=None, body: bytes | None = None) -> tuple[int, bytes]:
    """One raw request, any answer."""
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def stored(s3, bucket):
    s3.put_object(Bucket=bucket, Key="o", Body=b"secret bytes")
    return {"Bucket": bucket, "Key": "o"}


# --- header signatures ---


def test_wrong_secret_is_refused(node, stored):
    with refused("SignatureDoesNotMatch", 403):
        node.client(secret="wrong-secret").get_object(**stored)


def test_unknown_key_is_refused(node, stored):
    with refused("InvalidAccessKeyId", 403):
        node.client(key="nobody").get_object(**stored)


def test_anonymous_access_is_refused(node, stored):
    status, body = http("GET", f"{node.s3_url}/{stored['Bucket']}/o")
    assert (status, b"AccessDenied" in body) == (403, True)


def test_signature_version_2_is_refused(node, stored):
    url = f"{node.s3_url}/{stored['Bucket']}/o"
    status, body = http("GET", url, {"Authorization": f"AWS {ACCESS_KEY}:c2lnbmF0dXJl", "Date": "Sun, 15 Nov 2026 00:00:00 GMT"})
    assert 400 <= status < 500 and b"secret bytes" not in body
    status, body = http("GET", f"{url}?AWSAccessKeyId={ACCESS_KEY}&Expires=9999999999&Signature=c2lnbmF0dXJl")
    assert 400 <= status < 500 and b"secret bytes" not in body


@contextmanager
def signing_time(at: datetime | None):
    """Signatures made inside say that they were made then."""
    real = botocore.auth.get_current_datetime
    if at:
        botocore.auth.get_current_datetime = lambda remove_tzinfo=True: at.replace(tzinfo=None)
    try:
        yield
    finally:
        botocore.auth.get_current_datetime = real


def signed(node, method: str, path: str, headers=None, at: datetime | None = None, region: str = REGION) -> dict:
    """Headers of a SigV4 request."""
    request = AWSRequest(method, node.s3_url + path, headers=headers or {})
    with signing_time(at):
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", region).add_auth(request)
    return dict(request.headers)


def test_own_signer_is_accepted_without_tricks(node, stored):
    path = f"/{stored['Bucket']}/o"
    assert http("GET", node.s3_url + path, signed(node, "GET", path)) == (200, b"secret bytes")


def test_other_region_is_refused(node, stored):
    # Raw, because boto3 signs again for the region that the refusal names.
    path = f"/{stored['Bucket']}/o"
    status, body = http("GET", node.s3_url + path, signed(node, "GET", path, region="eu-west-9"))
    assert (status, b"AuthorizationHeaderMalformed" in body) == (400, True), body


@pytest.mark.parametrize("minutes", [-60, 60])
def test_clock_skew_is_answered_as_such(node, stored, minutes):
    path = f"/{stored['Bucket']}/o"
    at = datetime.now(timezone.utc) + timedelta(minutes=minutes)
    status, body = http("GET", node.s3_url + path, signed(node, "GET", path, at=at))
    assert (status, b"RequestTimeTooSkewed" in body) == (403, True), body


def test_unsigned_amz_header_is_refused(node, s3, bucket):
    path = f"/{bucket}/o"
    headers = signed(node, "PUT", path, {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    headers["x-amz-meta-injected"] = "yes"
    status, _ = http("PUT", node.s3_url + path, headers, b"body")
    assert status in (400, 403)
    with refused("404", 404):
        s3.head_object(Bucket=bucket, Key="o")


def test_body_that_is_not_the_signed_one_is_refused(node, s3, bucket):
    path = f"/{bucket}/o"
    headers = signed(node, "PUT", path, {"x-amz-content-sha256": hashlib.sha256(b"right").hexdigest()})
    status, body = http("PUT", node.s3_url + path, headers, b"wrong")
    assert (status, b"XAmzContentSHA256Mismatch" in body) == (400, True), body
    with refused("404", 404):
        s3.head_object(Bucket=bucket, Key="o")


# --- presigned URLs ---


def test_presigned_get_head_and_put_work(node, s3, stored):
    get = s3.generate_presigned_url("get_object", Params=stored, ExpiresIn=60)
    assert http("GET", get) == (200, b"secret bytes")
    head = s3.generate_presigned_url("head_object", Params=stored, ExpiresIn=60)
    assert http("HEAD", head)[0] == 200
    put = s3.generate_presigned_url("put_object", Params={**stored, "Key": "new"}, ExpiresIn=60)
    assert http("PUT", put, body=b"put by url")[0] == 200
    assert s3.get_object(Bucket=stored["Bucket"], Key="new")["Body"].read() == b"put by url"


def test_presigned_url_is_for_its_method_and_key_only(node, s3, stored):
    get = s3.generate_presigned_url("get_object", Params=stored, ExpiresIn=60)
    assert http("PUT", get, body=b"x")[0] == 403
    assert http("GET", get.replace("/o?", "/other?"))[0] == 403


def test_presigned_url_expires(node, stored):
    request = AWSRequest("GET", f"{node.s3_url}/{stored['Bucket']}/o")
    with signing_time(datetime.now(timezone.utc) - timedelta(hours=2)):
        S3SigV4QueryAuth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION, expires=60).add_auth(request)
    status, body = http("GET", request.url)
    assert (status, b"AccessDenied" in body) == (403, True), body


def test_presigned_url_for_more_than_a_week_is_refused(node, stored):
    url = node.client().generate_presigned_url("get_object", Params=stored, ExpiresIn=8 * 24 * 3600)
    status, _ = http("GET", url)
    assert status in (400, 403)


def test_unsigned_amz_header_on_a_presigned_url_is_refused(node, s3, stored):
    url = s3.generate_presigned_url("put_object", Params={**stored, "Key": "new"}, ExpiresIn=60)
    status, _ = http("PUT", url, {"x-amz-meta-injected": "yes"}, b"x")
    assert status in (400, 403)
    status, _ = http("PUT", url, {"x-amz-copy-source": f"/{stored['Bucket']}/o"}, b"")
    assert status in (400, 403)
    with refused("404", 404):
        s3.head_object(Bucket=stored["Bucket"], Key="new")


def test_presigned_multipart_works(node, s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="o")["UploadId"]
    at = {"Bucket": bucket, "Key": "o", "UploadId": upload}
    url = s3.generate_presigned_url("upload_part", Params={**at, "PartNumber": 1}, ExpiresIn=60)
    assert http("PUT", url, body=b"part one")[0] == 200
    etag = s3.list_parts(**at)["Parts"][0]["ETag"]
    s3.complete_multipart_upload(**at, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]})
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"part one"


# --- several keys ---


@pytest.fixture
def guarded(own_node):
    node = own_node(config=KEYS_CONFIG).start()
    s3 = node.client()
    for name in ["allowed-bucket", "other-bucket", "open-bucket"]:
        s3.create_bucket(Bucket=name)
        s3.put_object(Bucket=name, Key="o", Body=b"x")
    return node


def test_read_only_key_cannot_write(guarded):
    reader = guarded.client(key="reader", secret="reader-secret-0123456789")
    assert reader.get_object(Bucket="other-bucket", Key="o")["Body"].read() == b"x"
    reader.list_objects_v2(Bucket="other-bucket")
    with refused("AccessDenied", 403):
        reader.put_object(Bucket="other-bucket", Key="n", Body=b"x")
    with refused("AccessDenied", 403):
        reader.delete_object(Bucket="other-bucket", Key="o")
    with refused("AccessDenied", 403):
        reader.create_multipart_upload(Bucket="other-bucket", Key="n")
    with refused("AccessDenied", 403):
        reader.create_bucket(Bucket="new-bucket")
    with refused("AccessDenied", 403):
        reader.put_object_tagging(Bucket="other-bucket", Key="o", Tagging={"TagSet": []})


def test_key_sees_only_its_buckets(guarded):
    narrow = guarded.client(key="narrow", secret="narrow-secret-0123456789")
    narrow.put_object(Bucket="allowed-bucket", Key="n", Body=b"x")
    with refused("AccessDenied", 403):
        narrow.get_object(Bucket="other-bucket", Key="o")
    with refused("AccessDenied", 403):
        narrow.list_objects_v2(Bucket="other-bucket")
    with refused("AccessDenied", 403):
        narrow.copy_object(Bucket="allowed-bucket", Key="stolen", CopySource={"Bucket": "other-bucket", "Key": "o"})
    visible = [bucket["Name"] for bucket in narrow.list_buckets()["Buckets"]]
    assert "allowed-bucket" in visible and "other-bucket" not in visible


def test_public_bucket_is_readable_by_anyone_and_writable_by_none(guarded):
    assert http("GET", f"{guarded.s3_url}/open-bucket/o") == (200, b"x")
    assert http("PUT", f"{guarded.s3_url}/open-bucket/n", body=b"x")[0] == 403
    assert http("GET", f"{guarded.s3_url}/other-bucket/o")[0] == 403


def test_secrets_are_never_logged(guarded):
    text = guarded.log_text()
    for secret in ["reader-secret-0123456789", "narrow-secret-0123456789", SECRET_KEY]:
        assert secret not in text


def test_generated_keys_are_private_and_never_shown(own_node):
    node = own_node()
    node.keys = False
    node.start()
    keys = node.data / "keys.toml"
    assert keys.stat().st_mode & 0o777 == 0o600
    text = keys.read_text()
    assert tomllib.loads(text)
    secrets = [line.split("=", 1)[1].strip().strip('"') for line in text.splitlines() if "secret" in line.split("=")[0]]
    assert secrets
    for secret in secrets:
        assert secret not in node.log_text()
