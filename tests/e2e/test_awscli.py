"""The aws command line."""

import json

import pytest

from payload import MIB, payload, same
from programs import program, run, tree


@pytest.fixture
def aws(node):
    def call(*args, **options):
        return run(program("aws"), "--endpoint-url", node.s3_url, "--output", "json", *args, **options)

    return call


def test_cp_up_and_down(aws, bucket, tmp_path):
    body = payload(21 * MIB + 5, 1)  # past the multipart threshold
    (tmp_path / "in").write_bytes(body)
    aws("s3", "cp", "--no-progress", str(tmp_path / "in"), f"s3://{bucket}/big")
    aws("s3", "cp", "--no-progress", f"s3://{bucket}/big", str(tmp_path / "out"))
    same((tmp_path / "out").read_bytes(), body)


def test_cp_from_stdin_and_to_stdout(aws, bucket):
    aws("s3", "cp", "-", f"s3://{bucket}/streamed", input=b"from a pipe")
    assert aws("s3", "cp", f"s3://{bucket}/streamed", "-").stdout == b"from a pipe"


def test_sync_moves_only_what_changed(aws, bucket, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    for name in ["a.txt", "d/b.txt", "d/e/c.txt"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode() * 100)
    first = aws("s3", "sync", "--no-progress", str(source), f"s3://{bucket}/tree").stdout.decode()
    assert first.count("upload:") == 3
    (source / "a.txt").write_bytes(b"changed and longer" * 200)
    second = aws("s3", "sync", "--no-progress", str(source), f"s3://{bucket}/tree").stdout.decode()
    assert second.count("upload:") == 1
    aws("s3", "sync", "--no-progress", f"s3://{bucket}/tree", str(back))
    assert tree(back) == tree(source)


def test_ls_mv_and_rm(aws, bucket):
    for key in ["x/1", "x/2", "y"]:
        aws("s3", "cp", "-", f"s3://{bucket}/{key}", input=b"1")
    listed = aws("s3", "ls", f"s3://{bucket}/").stdout.decode()
    assert "PRE x/" in listed and " y" in listed
    aws("s3", "mv", f"s3://{bucket}/y", f"s3://{bucket}/x/3")
    aws("s3", "rm", "--recursive", f"s3://{bucket}/x/")
    assert aws("s3", "ls", "--recursive", f"s3://{bucket}/", ok=False).stdout == b""


def test_mb_and_rb(aws):
    aws("s3", "mb", "s3://made-by-awscli")
    assert b"made-by-awscli" in aws("s3", "ls").stdout
    aws("s3", "rb", "s3://made-by-awscli")


def test_api_calls_answer_json(aws, bucket):
    aws("s3", "cp", "-", f"s3://{bucket}/k", input=b"12345")
    head = json.loads(aws("s3api", "head-object", "--bucket", bucket, "--key", "k").stdout)
    assert head["ContentLength"] == 5
    listed = json.loads(aws("s3api", "list-objects-v2", "--bucket", bucket).stdout)
    assert [item["Key"] for item in listed["Contents"]] == ["k"]


def test_error_names_the_cause(aws):
    failed = aws("s3", "cp", "s3://no-such-bucket-here/k", "-", ok=False)
    assert failed.returncode != 0
    missing = aws("s3api", "get-object", "--bucket", "no-such-bucket-here", "--key", "k", "/dev/null", ok=False)
    assert b"NoSuchBucket" in missing.stderr
