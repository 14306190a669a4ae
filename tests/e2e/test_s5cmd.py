"""s5cmd: many small requests in parallel, large files in parts."""

import pytest

from payload import MIB, payload, same
from programs import program, run, tree


@pytest.fixture
def s5cmd(node):
    def call(*args, **options):
        return run(program("s5cmd"), "--endpoint-url", node.s3_url, *args, **options)

    return call


def test_large_file_goes_up_and_down_in_parts(s5cmd, bucket, tmp_path):
    body = payload(60 * MIB + 3, 1)
    (tmp_path / "in").write_bytes(body)
    s5cmd("cp", "-c", "3", "-p", "16", str(tmp_path / "in"), f"s3://{bucket}/big")
    s5cmd("cp", "-c", "3", "-p", "16", f"s3://{bucket}/big", str(tmp_path / "out"))
    same((tmp_path / "out").read_bytes(), body)


def test_many_small_files_in_parallel(s5cmd, bucket, tmp_path):
    source = tmp_path / "source"
    for number in range(300):
        path = source / f"{number % 7}" / f"{number:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload(1000 + number, number))
    s5cmd("cp", f"{source}/*", f"s3://{bucket}/small/")
    s5cmd("cp", f"s3://{bucket}/small/*", f"{tmp_path}/back/")
    assert tree(tmp_path / "back") == tree(source)
    assert s5cmd("ls", f"s3://{bucket}/small/*").stdout.count(b"\n") == 300
    s5cmd("rm", f"s3://{bucket}/small/*")
    assert s5cmd("ls", f"s3://{bucket}/*", ok=False).stdout == b""


def test_sync_wildcards_and_cat(s5cmd, bucket, tmp_path):
    for name in ["a.log", "b.log", "c.txt"]:
        (tmp_path / name).write_text(name)
    s5cmd("sync", f"{tmp_path}/", f"s3://{bucket}/s/")
    assert s5cmd("ls", f"s3://{bucket}/s/*.log").stdout.count(b".log") == 2
    assert s5cmd("cat", f"s3://{bucket}/s/c.txt").stdout == b"c.txt"
    assert b"3 objects" in s5cmd("du", f"s3://{bucket}/s/*").stdout


def test_pipe_writes_a_stream(s5cmd, bucket):
    s5cmd("pipe", f"s3://{bucket}/p", input=b"piped")
    assert s5cmd("cat", f"s3://{bucket}/p").stdout == b"piped"
