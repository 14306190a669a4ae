"""Checksums that clients send: verified before the object is visible, kept, and given back."""

import base64
import hashlib
import zlib

import pytest

from errors import refused
from payload import MIB, payload, same

ALGORITHMS = ["CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"]
FIELD = {name: f"Checksum{name}" for name in ALGORITHMS}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trailing_checksum_is_kept_and_returned(any_s3, any_bucket, algorithm):
    body = payload(3 * MIB + 7, 1)
    put = any_s3.put_object(Bucket=any_bucket, Key="o", Body=body, ChecksumAlgorithm=algorithm)
    got = any_s3.get_object(Bucket=any_bucket, Key="o", ChecksumMode="ENABLED")
    same(got["Body"].read(), body)  # botocore verifies the checksum while it reads
    assert got[FIELD[algorithm]] == put[FIELD[algorithm]]
    head = any_s3.head_object(Bucket=any_bucket, Key="o", ChecksumMode="ENABLED")
    assert head[FIELD[algorithm]] == put[FIELD[algorithm]]


def test_checksum_is_not_sent_unless_asked_for(node, bucket):
    s3 = node.client(response_checksum_validation="when_required")
    s3.put_object(Bucket=bucket, Key="o", Body=b"x", ChecksumAlgorithm="SHA256")
    assert "ChecksumSHA256" not in s3.get_object(Bucket=bucket, Key="o")


def encoded(algorithm: str, body: bytes) -> str:
    if algorithm == "CRC32":
        return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    return base64.b64encode(hashlib.new(algorithm.lower(), body).digest()).decode()


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksum_header_is_verified(any_s3, any_bucket, algorithm):
    good = {FIELD[algorithm]: encoded(algorithm, b"right")}
    any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"right", **good)
    with refused("BadDigest", 400):
        any_s3.put_object(Bucket=any_bucket, Key="o", Body=b"wrong", **good)
    assert any_s3.get_object(Bucket=any_bucket, Key="o")["Body"].read() == b"right"


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA256"])
def test_composite_checksum_of_parts(any_s3, any_bucket, algorithm):
    bodies = [payload(5 * MIB, 1), payload(9, 2)]
    upload_id = any_s3.create_multipart_upload(
        Bucket=any_bucket, Key="o", ChecksumAlgorithm=algorithm, ChecksumType="COMPOSITE"
    )["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        answer = any_s3.upload_part(
            Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm
        )
        assert answer[FIELD[algorithm]] == encoded(algorithm, body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"], FIELD[algorithm]: answer[FIELD[algorithm]]})
    done = any_s3.complete_multipart_upload(
        Bucket=any_bucket, Key="o", UploadId=upload_id, MultipartUpload={"Parts": parts}
    )
    joined = encoded(algorithm, b"".join(base64.b64decode(encoded(algorithm, body)) for body in bodies))
    assert done[FIELD[algorithm]] == f"{joined}-2"
    assert done["ChecksumType"] == "COMPOSITE"


def test_full_object_checksum_of_parts(any_s3, any_bucket):
    bodies = [payload(5 * MIB, 1), payload(5 * MIB, 2), payload(9, 3)]
    upload_id = any_s3.create_multipart_upload(
        Bucket=any_bucket, Key="o", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT"
    )["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        answer = any_s3.upload_part(
            Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumber=number, Body=body, ChecksumAlgorithm="CRC32"
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": answer["ChecksumCRC32"]})
    whole = encoded("CRC32", b"".join(bodies))
    with refused("BadDigest", 400):
        any_s3.complete_multipart_upload(
            Bucket=any_bucket, Key="o", UploadId=upload_id, MultipartUpload={"Parts": parts},
            ChecksumCRC32=encoded("CRC32", b"no"), ChecksumType="FULL_OBJECT",
        )  # fmt: skip
    done = any_s3.complete_multipart_upload(
        Bucket=any_bucket, Key="o", UploadId=upload_id, MultipartUpload={"Parts": parts},
        ChecksumCRC32=whole, ChecksumType="FULL_OBJECT",
    )  # fmt: skip
    assert (done["ChecksumCRC32"], done["ChecksumType"]) == (whole, "FULL_OBJECT")


def test_part_with_wrong_checksum_is_refused(any_s3, any_bucket):
    upload_id = any_s3.create_multipart_upload(Bucket=any_bucket, Key="o", ChecksumAlgorithm="SHA256")["UploadId"]
    with refused("BadDigest", 400):
        any_s3.upload_part(
            Bucket=any_bucket, Key="o", UploadId=upload_id, PartNumber=1, Body=b"wrong",
            ChecksumSHA256=encoded("SHA256", b"right"),
        )  # fmt: skip
