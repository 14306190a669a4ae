"""The view of a step over S3: whole files that an export would write, seen by boto3."""

import json
import os
import random
import struct
import subprocess

import pytest
from botocore.exceptions import ClientError

from errors import refused
from forebay_node import ACCESS_KEY, SECRET_KEY, binary
from payload import payload
from stores import new_bucket

SHAPES = {"a.weight": (700, 96), "b.weight": (33,), "c": ()}


def safetensors(tensors: dict[str, tuple[tuple[int, ...], bytes]], offsets: dict[str, list[int]] | None = None) -> bytes:
    """A file of F32 tensors, made by hand."""
    header, first = {}, 0
    if offsets:
        sharding = {name: {"saved_offsets": offset} for name, offset in offsets.items()}
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(sharding)}
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [first, first + len(data)]}
        first += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


def read_tensors(file: bytes) -> dict[str, bytes]:
    (length,) = struct.unpack("<Q", file[:8])
    header = json.loads(file[8 : 8 + length])
    data = file[8 + length :]
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items() if name != "__metadata__"}


def ckpt(node, *args: str, code: int = 0) -> dict:
    env = dict(os.environ, FOREBAY_NODE=node.s3_url)
    env.update({"FOREBAY_ACCESS_KEY_ID": ACCESS_KEY, "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY})
    done = subprocess.run([binary(), "--json", "ckpt", *args], capture_output=True, env=env, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stderr if code else done.stdout)


@pytest.fixture
def step(any_node, tmp_path):
    """A run with one step, whose largest tensor came in two shards."""
    s3 = any_node.client()
    bucket = new_bucket(s3)
    tensors = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        size = 4
        for length in shape:
            size *= length
        tensors[name] = (shape, payload(size, number))
    rows = tensors["a.weight"][1]
    half = 350 * 96 * 4
    folder = tmp_path / "shards"
    folder.mkdir()
    first = {"a.weight": ((350, 96), rows[:half]), "b.weight": tensors["b.weight"], "c": tensors["c"]}
    offsets = {"a.weight": [0, 0], "b.weight": [0], "c": []}
    (folder / "one.safetensors").write_bytes(safetensors(first, offsets))
    second = {"a.weight": ((350, 96), rows[half:])}
    (folder / "two.safetensors").write_bytes(safetensors(second, {"a.weight": [350, 0]}))
    ckpt(any_node, "import", str(folder), f"forebay://{bucket}/run@7")
    return any_node, s3, bucket, {name: data for name, (_, data) in tensors.items()}


def test_boto3_sees_whole_files_equal_to_the_export(step, tmp_path):
    node, s3, bucket, tensors = step
    ckpt(node, "export", f"forebay://{bucket}/run@7", str(tmp_path / "out"), "--format", "hf")
    listed = s3.list_objects_v2(Bucket=bucket, Prefix="run/steps/7/whole/", Delimiter="/")
    assert "CommonPrefixes" not in listed
    [entry] = listed["Contents"]
    assert entry["Key"] == "run/steps/7/whole/model.safetensors"
    exported = (tmp_path / "out/model.safetensors").read_bytes()
    assert entry["Size"] == len(exported)
    head = s3.head_object(Bucket=bucket, Key=entry["Key"])
    assert (head["ContentLength"], head["ETag"]) == (len(exported), entry["ETag"])
    assert "-" in head["ETag"], "no client may take it for an MD5"
    whole = s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
    assert whole == exported
    assert read_tensors(whole) == tensors
    choose = random.Random(7)
    for _ in range(50):
        first = choose.randrange(len(exported))
        last = choose.randrange(first, len(exported))
        part = s3.get_object(Bucket=bucket, Key=entry["Key"], Range=f"bytes={first}-{last}")
        assert part["Body"].read() == exported[first : last + 1]
    s3.download_file(bucket, entry["Key"], str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == exported


def test_a_view_is_in_no_other_listing_and_cannot_be_changed(step):
    _, s3, bucket, _ = step
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys and not [key for key in keys if "/whole/" in key]
    folders = s3.list_objects_v2(Bucket=bucket, Prefix="run/steps/7/", Delimiter="/")["CommonPrefixes"]
    assert not [folder for folder in folders if "whole" in folder["Prefix"]]
    key = "run/steps/7/whole/model.safetensors"
    for call in (
        lambda: s3.put_object(Bucket=bucket, Key=key, Body=b"x"),
        lambda: s3.delete_object(Bucket=bucket, Key=key),
        lambda: s3.create_multipart_upload(Bucket=bucket, Key=key),
        lambda: s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": keys[0]}),
    ):
        with pytest.raises(ClientError, match="view of a committed step"):
            call()
    with refused("NoSuchKey", 404):
        s3.get_object(Bucket=bucket, Key="run/steps/7/whole/other.safetensors")


def test_a_file_of_a_view_is_copied_out(step):
    _, s3, bucket, tensors = step
    source = {"Bucket": bucket, "Key": "run/steps/7/whole/model.safetensors"}
    s3.copy_object(Bucket=bucket, Key="flat.safetensors", CopySource=source)
    assert read_tensors(s3.get_object(Bucket=bucket, Key="flat.safetensors")["Body"].read()) == tensors
