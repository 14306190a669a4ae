"""The log never holds a request up: with nobody reading it, lines are dropped, counted, and said to be dropped."""

import os
import threading

import pytest
from botocore.exceptions import ClientError
from forebay_node import wait_for
from stores import new_bucket


def test_a_log_that_nobody_reads_costs_lines_and_no_request(own_node):
    node = own_node()
    pipe = node.log
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    node.start()
    node.log = node.root / "what-came-out.log"
    s3 = node.client()
    bucket = new_bucket(s3)
    key = "/".join(["k" * 200] * 5)  # lines of this length fill what may wait in about a thousand requests
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    for number in range(1, 5001):
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"x"
        if number % 100 == 0 and node.metric("forebay_log_lines_dropped_total") > 0:
            break
    assert node.metric("forebay_log_lines_dropped_total") > 0

    os.set_blocking(reader, True)

    def drain():
        with open(reader, "rb") as source, open(node.log, "wb", buffering=0) as target:
            while piece := source.read1():
                target.write(piece)

    thread = threading.Thread(target=drain)
    thread.start()
    wait_for("it to be said", lambda: "log lines were dropped" in node.log_text())
    assert node.stop() == 0
    thread.join()
    lines = node.log_text().splitlines()
    assert "stopped" in lines[-1], "the last line is written before the process ends"
    assert sum("forebay::access" in line for line in lines) > 500


def test_a_refused_request_says_why_and_who_asked_for_what(own_node):
    node = own_node().start()
    s3 = node.client()
    bucket = new_bucket(s3)
    etag = s3.put_object(Bucket=bucket, Key="key", Body=b"x")["ETag"]
    stranger = node.client(secret="wrong")
    with pytest.raises(ClientError):
        stranger.put_object(Bucket=bucket, Key="other", Body=b"y")
    with pytest.raises(ClientError):
        s3.get_object(Bucket=bucket, Key="missing")
    with pytest.raises(ClientError):
        s3.get_object(Bucket=bucket, Key="key", IfNoneMatch=etag)

    def line_with(*parts):
        def is_there():
            lines = [line for line in node.log_text().splitlines() if "forebay::access" in line]
            return any(all(part in line for part in parts) for line in lines)

        wait_for(f"a line with {parts}", is_there)

    line_with('code="SignatureDoesNotMatch"', f'claimed_what="PUT /{bucket}/other"', 'claimed_who="')
    line_with('code="NoSuchKey"', 'claimed_who="-"')
    line_with("status=304", "complete=true")
