"""s3cmd, which signs and lists in its own old ways."""

import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY
from payload import MIB, payload, same
from programs import program, run, tree


@pytest.fixture
def s3cmd(node, tmp_path):
    host = node.s3_url.removeprefix("http://")
    config = tmp_path / "s3cfg"
    config.write_text("[default]\nuse_https = False\n")

    def call(*args, **options):
        return run(
            program("s3cmd"), "-c", str(config), f"--host={host}", f"--host-bucket={host}", f"--access_key={ACCESS_KEY}",
            f"--secret_key={SECRET_KEY}", "--region=us-east-1", "--no-progress", *args, **options,
        )  # fmt: skip

    return call


def test_put_get_info_and_del(s3cmd, bucket, tmp_path):
    (tmp_path / "in").write_bytes(b"hello from s3cmd")
    s3cmd("put", "--add-header=x-amz-meta-colour:red", str(tmp_path / "in"), f"s3://{bucket}/a b+c")
    s3cmd("get", f"s3://{bucket}/a b+c", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"hello from s3cmd"
    assert b"red" in s3cmd("info", f"s3://{bucket}/a b+c").stdout
    s3cmd("del", f"s3://{bucket}/a b+c")
    assert s3cmd("ls", f"s3://{bucket}/").stdout == b""


def test_multipart_put(s3cmd, bucket, tmp_path):
    body = payload(17 * MIB, 1)
    (tmp_path / "in").write_bytes(body)
    s3cmd("put", "--multipart-chunk-size-mb=5", str(tmp_path / "in"), f"s3://{bucket}/big")
    s3cmd("get", f"s3://{bucket}/big", str(tmp_path / "out"))
    same((tmp_path / "out").read_bytes(), body)


def test_sync_there_and_back(s3cmd, bucket, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    back.mkdir()
    for name in ["1", "d/2", "d/e/3"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    s3cmd("sync", f"{source}/", f"s3://{bucket}/t/")
    s3cmd("sync", f"s3://{bucket}/t/", f"{back}/")
    assert tree(back) == tree(source)


def test_copy_and_move(s3cmd, bucket, tmp_path):
    (tmp_path / "in").write_bytes(b"x")
    s3cmd("put", str(tmp_path / "in"), f"s3://{bucket}/one")
    s3cmd("cp", f"s3://{bucket}/one", f"s3://{bucket}/two")
    s3cmd("mv", f"s3://{bucket}/two", f"s3://{bucket}/three")
    listed = s3cmd("ls", f"s3://{bucket}/").stdout.decode()
    assert "one" in listed and "three" in listed and "two" not in listed
