"""Expecting S3 errors by code and status."""

from contextlib import contextmanager

from botocore.exceptions import ClientError


@contextmanager
def refused(code: str, status: int):
    """The call inside must fail with this S3 code and HTTP status, and carry a request id."""
    try:
        yield
    except ClientError as error:
        answer = error.response
        got = (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"])
        assert got == (code, status), f"expected {(code, status)}, got {got}: {answer['Error'].get('Message')}"
        assert answer["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-request-id"), "no request id"
        return
    raise AssertionError(f"expected {code}, but the call succeeded")
