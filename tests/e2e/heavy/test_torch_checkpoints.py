"""`forebay.Checkpoints` with torch: models and optimizers in place, every type of element, DTensor over several ranks."""

import json
import os
import subprocess
import sys
import textwrap
import uuid

import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

from forebay_node import Node  # noqa: E402

SECONDS_MAX = 240


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]):
        yield str(root / "n.sock")


@pytest.fixture
def ckpt(address):
    with forebay.connect(address) as node:
        bucket = f"b-{uuid.uuid4().hex[:12]}"
        node.create_bucket(bucket)
        with forebay.Checkpoints(f"{bucket}/run", node=node, on_error="raise") as checkpoints:
            yield checkpoints


def trained(seed: int):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_a_model_and_its_optimizer_go_on_where_they_were(ckpt):
    model, optimizer = trained(1)
    rng = torch.get_rng_state()
    ckpt.save(3, {"model": model, "optim": optimizer, "rng": rng}).durable().result(60)
    expected = next_step(model, optimizer, rng)
    other, other_optimizer = trained(2)
    addresses = [parameter.data_ptr() for parameter in other.parameters()]
    state = ckpt.load(3, into={"model": other, "optim": other_optimizer, "rng": torch.get_rng_state()})
    assert [parameter.data_ptr() for parameter in other.parameters()] == addresses
    found = next_step(other, other_optimizer, state["rng"])
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def next_step(model, optimizer, rng):
    torch.set_rng_state(rng)
    optimizer.zero_grad()
    model(torch.randn(5, 8)).square().sum().backward()
    optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_an_optimizer_that_has_not_stepped_yet_gets_its_state(ckpt):
    model, optimizer = trained(1)
    ckpt.save(1, {"optim": optimizer}).durable().result(60)
    fresh = torch.optim.AdamW(model.parameters(), lr=0.5)
    ckpt.load(1, into={"optim": fresh})
    before, after = optimizer.state_dict(), fresh.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for index, moments in before["state"].items():
        for name, value in moments.items():
            assert torch.equal(after["state"][index][name], value), (index, name)


@pytest.mark.parametrize(
    "name",
    ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool", "complex64"],
)
def test_every_type_of_element_comes_back(ckpt, name):
    dtype = getattr(torch, name)
    tensors = {
        "plain": (torch.arange(24) % 2).to(torch.float32).to(dtype).reshape(2, 3, 4),
        "scalar": torch.tensor(1.0).to(dtype),
        "none": torch.empty((0, 3), dtype=dtype),
    }
    tensors["across"] = tensors["plain"].transpose(0, 2)
    ckpt.save(1, tensors).durable().result(60)
    back = ckpt.load(1)
    for key, tensor in tensors.items():
        assert back[key].dtype == dtype and back[key].shape == tensor.shape
        assert torch.equal(back[key].to(torch.complex64), tensor.to(torch.complex64)), key


def test_what_is_not_contiguous_goes_through_windows_both_ways(ckpt, monkeypatch):
    monkeypatch.setattr("forebay._windows.WINDOW_BYTES", 1 << 20)
    state = {"w": torch.arange(3 << 18).reshape(3, -1).t(), "c": torch.randn(1 << 18, dtype=torch.complex64).conj()}
    report = ckpt.save(1, state).durable().result(60)
    assert report.copies == 2
    into = {"w": torch.zeros(3, 1 << 18, dtype=torch.int64).t(), "c": torch.zeros(1 << 18, dtype=torch.complex64).conj()}
    ckpt.load(1, into=into)
    assert torch.equal(into["w"], state["w"]) and torch.equal(into["c"], state["c"])


def test_a_tensor_without_plain_bytes_is_refused_by_name(ckpt):
    for tensor in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(forebay.UnsupportedError, match="model.odd"):
            ckpt.save(1, {"model": {"odd": tensor}})


def test_tied_weights_are_saved_once_and_loaded_into_both(ckpt):
    def tied():
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(10, 4), "head": torch.nn.Linear(4, 10, bias=False)})
        model["head"].weight = model["embed"].weight
        return model

    model, other = tied(), tied()
    report = ckpt.save(1, {"model": model}).durable().result(60)
    assert report.bytes == 10 * 4 * 4
    ckpt.load(1, into={"model": other})
    assert torch.equal(other["head"].weight, model["embed"].weight)
    assert other["head"].weight.data_ptr() == other["embed"].weight.data_ptr()


def test_a_step_opens_as_tensors_of_torch(ckpt):
    from forebay.safetensors import load_file

    state = {"w": torch.randn(64, 64, dtype=torch.bfloat16)}
    ckpt.save(1, state).durable().result(60)
    name = f"{ckpt.root}/steps/1"
    for mapped in (False, True):
        assert torch.equal(load_file(name, framework="pt", mapped=mapped, node=ckpt.node)["w"], state["w"])
    copied = load_file(name, node=ckpt.node)["w"]
    copied.mul_(2)  # tensors of torch are the caller's own unless asked for otherwise


PROGRAM = """
import json, os, sys, torch, torch.distributed as dist, forebay
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
whole = torch.arange(10 * 7.0).reshape(10, 7)
rows = distribute_tensor(whole.clone(), mesh, [Shard(0)])
columns = distribute_tensor(whole.clone(), mesh, [Shard(1)])
same = distribute_tensor(whole.clone(), mesh, [Replicate()])
state = {"rows": rows, "columns": columns, "same": same, "rng": torch.full((16,), rank), "seed": rank}
node = forebay.connect(os.environ["NODE"])
ckpt = forebay.Checkpoints(os.environ["ROOT"], node=node, on_error="raise")
told = [ckpt.rank, ckpt.world_size]
if os.environ["DO"] == "save":
    report = ckpt.save(1, state).durable().result(120)
    told += [report.bytes, ckpt.latest()]
else:
    # Other shards than those that were saved: rows where columns were, and the other way around.
    into = {
        "rows": distribute_tensor(whole * 0, mesh, [Shard(1)]),
        "columns": distribute_tensor(whole * 0, mesh, [Shard(0)]),
        "same": distribute_tensor(whole * 0, mesh, [Replicate()]),
        "rng": torch.zeros(16, dtype=torch.int64),
        "seed": -1,
    }
    ckpt.load(into=into)
    told += [all(torch.equal(into[name].full_tensor(), whole) for name in ("rows", "columns", "same"))]
    told += [int(into["rng"][0]), into["seed"]]
print(json.dumps(told))
dist.destroy_process_group()
"""


def run_ranks(world: int, tmp_path, **env) -> list:
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(PROGRAM))
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **env}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 0, out + err
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return found


def test_dtensors_of_four_ranks_are_loaded_by_any_number(ckpt, address, tmp_path):
    saved = run_ranks(4, tmp_path, NODE=address, ROOT=ckpt.root, DO="save")
    assert [one[:2] + one[3:] for one in saved] == [[rank, 4, 1] for rank in range(4)]
    assert sum(one[2] for one in saved) == 3 * 70 * 4 + 4 * 16 * 8, "replicas once, what differs for each rank"
    for world in (2, 3):
        for rank, found in enumerate(run_ranks(world, tmp_path, NODE=address, ROOT=ckpt.root, DO="load")):
            assert found == [rank, world, True, rank, rank]
