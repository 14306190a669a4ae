"""Overload is answered, never by dying: 503 SlowDown with Retry-After under a hard limit."""

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from itertools import count
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from stores import new_bucket
from forebay_node import wait_for
from payload import MIB, payload, same

LIMITS = """
[limits]
inflight_bytes = "16MiB"
inflight_requests = 8
"""


def hold_open(url: str, length: int) -> socket.socket:
    """A PUT that says how much it will send and then waits."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + b"x")
    return connection


def refused_with(url: str) -> tuple[int, str | None, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, None, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Retry-After"), error.read()


def test_requests_past_the_limit_get_slow_down(own_node):
    node = own_node(config=LIMITS).start()
    s3 = node.client()
    bucket = new_bucket(s3)
    s3.put_object(Bucket=bucket, Key="o", Body=b"here")

    def url(method, key):
        return s3.generate_presigned_url(method, Params={"Bucket": bucket, "Key": key}, ExpiresIn=600)

    with ExitStack() as stack:
        numbers = count()

        def hold_one():
            stack.callback(hold_open(url("put_object", f"held-{next(numbers)}"), MIB).close)

        for _ in range(8):
            hold_one()
        get = url("get_object", "o")

        def is_refused():
            status, retry_after, body = refused_with(get)
            if status == 200:
                # The last PUT may have come while another request still had its place, and was refused itself.
                hold_one()
                return False
            assert (status, b"SlowDown" in body) == (503, True), body
            assert retry_after and int(retry_after) >= 1
            return True

        wait_for("the limit to be reached", is_refused, 10)
        assert node.process.poll() is None
    wait_for("requests to be taken again", lambda: refused_with(get) == (200, None, b"here"), 20, pause=0.05)


def test_bodies_past_the_byte_limit_get_slow_down(own_node):
    node = own_node(config=LIMITS).start()
    s3 = node.client()
    bucket = new_bucket(s3)

    def url(key):
        return s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=600)

    with ExitStack() as stack:
        numbers = count()

        def hold_one():
            stack.callback(hold_open(url(f"held-{next(numbers)}"), 7 * MIB).close)

        for _ in range(2):
            hold_one()

        def is_refused():
            try:
                s3.put_object(Bucket=bucket, Key="third", Body=payload(7 * MIB, 1))
                # The second PUT may have come while this one had its bytes, and was refused itself.
                hold_one()
                return False
            except ClientError as error:
                assert error.response["Error"]["Code"] == "SlowDown", error
                return True

        wait_for("the limit to be reached", is_refused, 10)


def test_a_crowd_is_served_or_refused_but_never_wrong(own_node):
    node = own_node(config=LIMITS, ram="64MiB").start()
    s3 = node.client()
    bucket = new_bucket(s3)
    body = payload(2 * MIB, 2)
    s3.put_object(Bucket=bucket, Key="o", Body=body)
    outcomes = []

    def read():
        try:
            same(node.client().get_object(Bucket=bucket, Key="o")["Body"].read(), body)
            outcomes.append("ok")
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=read) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"ok", "SlowDown"} and "ok" in outcomes
    same(s3.get_object(Bucket=bucket, Key="o")["Body"].read(), body)


def test_huge_headers_are_refused_cleanly(node):
    parts = urlsplit(node.s3_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"x-junk: " + b"j" * 4_000_000 + b"\r\n\r\n")
            answer = connection.recv(64)
        except (ConnectionResetError, BrokenPipeError):
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    node.admin("/healthz")


def test_garbage_on_the_socket_is_no_crash(node):
    parts = urlsplit(node.s3_url)
    for junk in [b"\x00" * 1000, b"GET\r\n\r\n", b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", b"\xff\xfe" * 50 + b"\r\n\r\n"]:
        with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            try:
                answer = connection.recv(64)
            except ConnectionResetError:
                answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    node.admin("/healthz")
