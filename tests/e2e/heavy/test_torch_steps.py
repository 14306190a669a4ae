"""Steps as PyTorch's own readers see them: the view, and exports for DCP and safetensors."""

import json
import os
import subprocess

import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")

from forebay_node import ACCESS_KEY, SECRET_KEY, binary  # noqa: E402

DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
]


def ckpt(node, *args: str) -> dict:
    env = dict(os.environ, FOREBAY_NODE=node.s3_url)
    env.update({"FOREBAY_ACCESS_KEY_ID": ACCESS_KEY, "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY})
    done = subprocess.run([binary(), "--json", "ckpt", *args], capture_output=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def same(left: "torch.Tensor", right: "torch.Tensor") -> bool:
    flat = [tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8) for tensor in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*flat)


@pytest.fixture
def state():
    torch.manual_seed(7)
    state = {f"t.{name}": torch.randint(0, 2, (40, 6)).to(getattr(torch, name)) for name in DTYPES}
    state["scalar"] = torch.tensor(2.5)
    state["large"] = torch.randn(900, 700)
    return state


@pytest.fixture
def step(node, bucket, state, tmp_path):
    from safetensors.torch import save_file

    save_file(state, tmp_path / "in.safetensors")
    ckpt(node, "import", str(tmp_path / "in.safetensors"), f"forebay://{bucket}/run@5")
    return f"forebay://{bucket}/run@5"


def test_a_downloaded_view_is_opened_by_safetensors_and_the_hugging_face_reader(step, s3, bucket, state, tmp_path):
    from safetensors import safe_open
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    folder = tmp_path / "view"
    folder.mkdir()
    prefix = "run/steps/5/whole/"
    for entry in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
        s3.download_file(bucket, entry["Key"], str(folder / entry["Key"].removeprefix(prefix)))
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(state)
        assert all(same(file.get_tensor(name), tensor) for name, tensor in state.items())
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(into, storage_reader=HuggingFaceStorageReader(str(folder)))
    assert all(same(into[name], tensor) for name, tensor in state.items())


def test_an_export_for_dcp_is_loaded_by_dcp(step, node, state, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    ckpt(node, "export", step, str(tmp_path / "dcp"), "--format", "dcp")
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(into, checkpoint_id=str(tmp_path / "dcp"))
    assert all(same(into[name], tensor) for name, tensor in state.items())
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "flat.pt")
    flat = torch.load(tmp_path / "flat.pt", weights_only=True)
    assert set(flat) == set(state)


def test_a_file_of_torch_save_is_proved_without_unpickling(node, tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(100_000, dtype=torch.float32), "b": torch.ones(10)}, path)
    first = ckpt(node, "verify", str(path))
    assert (first["kind"], first["proved"]) == ("zip", "kept")
    assert ckpt(node, "verify", str(path))["proved"] == "bytes"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    torch.load(path, weights_only=True)  # torch does not notice
    done = subprocess.run([binary(), "--json", "ckpt", "verify", str(path)], capture_output=True, timeout=60)
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert findings and all("data/" in finding["name"] for finding in findings)
