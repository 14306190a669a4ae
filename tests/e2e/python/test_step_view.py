"""The view of a step in Python: `forebay://bucket/run/steps/N/whole/` is a folder of safetensors files."""

import uuid

import numpy
import safetensors.numpy

import forebay
from conftest import socket_of
from forebay.fsspec import ForebayFileSystem


def test_fsspec_and_safetensors_open_the_view_of_a_step(shared_daemon, tmp_path):
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    frozen = numpy.arange(60_000, dtype=numpy.float32).reshape(200, 300)
    with forebay.connect(str(socket_of(shared_daemon))) as local, forebay.connect(shared_daemon.s3_url) as remote:
        local.create_bucket(bucket)
        with forebay.Checkpoints(f"forebay://{bucket}/run", node=local) as ckpt:
            for step in (1, 2):
                state = {"frozen": frozen, "moving": numpy.full((7, 3), step, dtype=numpy.int64)}
                ckpt.save(step, state).durable().result()
            reused = ckpt.steps()
        assert len(reused) == 2
        for node in (local, remote):
            fs = ForebayFileSystem(node=node, skip_instance_cache=True)
            folder = f"{bucket}/run/steps/2/whole"
            [path] = fs.ls(folder, detail=False)
            assert path == f"{folder}/model.safetensors"
            assert fs.isdir(folder) and fs.isfile(path) and fs.size(path) == len(fs.cat_file(path))
            assert not [name for name in fs.find(f"{bucket}/run") if "/whole/" in name]
            tensors = safetensors.numpy.load(fs.cat_file(path))
            assert sorted(name.rsplit(".", 1)[-1] for name in tensors) == ["frozen", "moving"]
            by_name = {name.rsplit(".", 1)[-1]: tensor for name, tensor in tensors.items()}
            assert numpy.array_equal(by_name["frozen"], frozen) and (by_name["moving"] == 2).all()
            fs.get(path, str(tmp_path / "got.safetensors"))
            with safetensors.safe_open(tmp_path / "got.safetensors", framework="numpy") as file:
                assert set(file.keys()) == set(tensors)
            with fs.open(path) as stream:
                stream.seek(-8, 2)
                assert stream.read() == fs.cat_file(path)[-8:]
