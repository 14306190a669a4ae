"""rclone: copy, sync, check, move, with hashes compared on both sides."""

import pytest

from forebay_node import ACCESS_KEY, REGION, SECRET_KEY
from payload import MIB, payload, same
from programs import program, run, tree


@pytest.fixture
def rclone(node):
    env = {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_FB_TYPE": "s3",
        "RCLONE_CONFIG_FB_PROVIDER": "Other",
        "RCLONE_CONFIG_FB_ENDPOINT": node.s3_url,
        "RCLONE_CONFIG_FB_REGION": REGION,
        "RCLONE_CONFIG_FB_ACCESS_KEY_ID": ACCESS_KEY,
        "RCLONE_CONFIG_FB_SECRET_ACCESS_KEY": SECRET_KEY,
    }

    def call(*args, **options):
        return run(program("rclone"), *args, env=env, **options)

    return call


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    for name, size in [("a.bin", 5), ("d/b.bin", 2 * MIB), ("d/e/c ü.bin", 77), ("empty", 0)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(payload(size, size))
    return folder


def test_copy_check_and_back(rclone, bucket, source, tmp_path):
    rclone("copy", str(source), f"fb:{bucket}/tree")
    rclone("check", str(source), f"fb:{bucket}/tree")
    rclone("copy", f"fb:{bucket}/tree", str(tmp_path / "back"))
    assert tree(tmp_path / "back") == tree(source)


def test_multipart_upload_and_ranged_download(rclone, bucket, tmp_path):
    body = payload(30 * MIB + 1, 2)
    (tmp_path / "big").write_bytes(body)
    rclone("copyto", "--s3-upload-cutoff", "8M", "--s3-chunk-size", "8M", str(tmp_path / "big"), f"fb:{bucket}/big")
    rclone("copyto", "--multi-thread-cutoff", "8M", "--multi-thread-streams", "4", f"fb:{bucket}/big", str(tmp_path / "out"))
    same((tmp_path / "out").read_bytes(), body)


def test_sync_removes_what_is_gone(rclone, bucket, source):
    rclone("sync", str(source), f"fb:{bucket}/tree")
    (source / "a.bin").unlink()
    rclone("sync", str(source), f"fb:{bucket}/tree")
    listed = rclone("lsf", "-R", "--files-only", f"fb:{bucket}/tree").stdout.decode().split("\n")
    assert sorted(filter(None, listed)) == ["d/b.bin", "d/e/c ü.bin", "empty"]


def test_modification_time_is_kept_as_metadata(rclone, bucket, source):
    import os

    os.utime(source / "a.bin", (1_600_000_000, 1_600_000_000))
    rclone("copy", str(source), f"fb:{bucket}/tree")
    again = rclone("copy", "-v", "--dry-run", str(source), f"fb:{bucket}/tree").stderr.decode()
    assert "Skipped copy" not in again


def test_server_side_move_and_purge(rclone, bucket, source):
    rclone("copy", str(source), f"fb:{bucket}/tree")
    rclone("moveto", f"fb:{bucket}/tree/a.bin", f"fb:{bucket}/moved.bin")
    assert rclone("cat", f"fb:{bucket}/moved.bin").stdout == (source / "a.bin").read_bytes()
    rclone("purge", f"fb:{bucket}/tree")
    assert rclone("lsf", "-R", "--files-only", f"fb:{bucket}").stdout.decode().split() == ["moved.bin"]


def test_rcat_streams_unknown_length(rclone, bucket):
    body = payload(12 * MIB, 3)
    rclone("rcat", f"fb:{bucket}/stream", input=body)
    same(rclone("cat", f"fb:{bucket}/stream").stdout, body)
    same(rclone("cat", "--offset", "1000", "--count", "50", f"fb:{bucket}/stream").stdout, body[1000:1050])
