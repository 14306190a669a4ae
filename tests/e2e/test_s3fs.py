"""s3fs (fsspec): the way pandas, dask and many loaders reach S3."""

import pytest

from forebay_node import ACCESS_KEY, SECRET_KEY
from payload import MIB, payload, same


@pytest.fixture
def fs(node):
    s3fs = pytest.importorskip("s3fs", reason="s3fs has an environment of its own: tests/e2e/requirements/s3fs.txt")
    return s3fs.S3FileSystem(
        key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=node.s3_url, client_kwargs={"region_name": "us-east-1"},
        use_listings_cache=False, skip_instance_cache=True,
    )  # fmt: skip


def test_open_write_read_and_seek(fs, bucket):
    body = payload(14 * MIB + 9, 1)
    with fs.open(f"{bucket}/o", "wb", block_size=5 * MIB) as file:
        file.write(body)
    with fs.open(f"{bucket}/o", "rb") as file:
        file.seek(9 * MIB - 3)
        same(file.read(100), body[9 * MIB - 3 : 9 * MIB + 97])
    same(fs.cat(f"{bucket}/o"), body)


def test_many_ranges_at_once(fs, bucket):
    body = payload(MIB, 2)
    fs.pipe(f"{bucket}/o", body)
    starts = list(range(0, MIB - 1000, 50_000))
    pieces = fs.cat_ranges([f"{bucket}/o"] * len(starts), starts, [start + 777 for start in starts])
    for start, piece in zip(starts, pieces):
        same(piece, body[start : start + 777])


def test_listing_walking_and_removing(fs, bucket):
    for key in ["a/1", "a/b/2", "c"]:
        fs.pipe(f"{bucket}/{key}", key.encode())
    assert sorted(fs.find(bucket)) == [f"{bucket}/a/1", f"{bucket}/a/b/2", f"{bucket}/c"]
    assert sorted(fs.ls(bucket, detail=False)) == [f"{bucket}/a", f"{bucket}/c"]
    assert fs.isdir(f"{bucket}/a") and fs.isfile(f"{bucket}/c") and not fs.exists(f"{bucket}/nothing")
    assert fs.glob(f"{bucket}/a/**") != []
    fs.rm(f"{bucket}/a", recursive=True)
    assert fs.find(bucket) == [f"{bucket}/c"]


def test_copy_move_and_info(fs, bucket):
    fs.pipe(f"{bucket}/one", b"12345")
    fs.cp_file(f"{bucket}/one", f"{bucket}/two")
    fs.mv(f"{bucket}/two", f"{bucket}/three")
    assert fs.info(f"{bucket}/three")["size"] == 5
    assert fs.checksum(f"{bucket}/one") is not None


def test_missing_file_is_file_not_found(fs, bucket):
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{bucket}/nothing")


def test_put_and_get_folders(fs, bucket, tmp_path):
    (tmp_path / "in" / "d").mkdir(parents=True)
    (tmp_path / "in" / "d" / "f").write_bytes(b"x" * 1000)
    fs.put(str(tmp_path / "in"), f"{bucket}/tree", recursive=True)
    fs.get(f"{bucket}/tree", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out" / "d" / "f").read_bytes() == b"x" * 1000
