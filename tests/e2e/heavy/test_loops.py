"""Datasets in the training loops that people have, on two ranks: whoever shards, data is sharded once."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy
pytest.importorskip("lightning", reason="the loops have an environment of their own: requirements/loops.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from dataset_shards import put_tars  # noqa: E402
from forebay_node import Node  # noqa: E402

SCRIPT = Path(__file__).parent / "loop_ranks.py"
SAMPLES = 256
#: A node of Ray on a busy machine, for this test alone.
RAY = {"RAY_TRAIN_V2_ENABLED": "1", "RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "180"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]):
        with forebay.connect(str(root / "n.sock")) as node:
            node.create_bucket("loops")
            name = put_tars(node, "loops/d", shards=4, samples=SAMPLES // 4, extra=lambda number: {"x": b"%04d" % number})
            forebay.Dataset(name, node=node).index()
            yield str(root / "n.sock"), name


@pytest.fixture
def ranks(data, tmp_path):
    """Runs a loop and returns what each rank saw in each epoch."""

    def run(loop, form, world=2, launched=True):
        arguments = [str(SCRIPT), loop, form, *data, str(tmp_path)]
        command = [sys.executable, *arguments]
        if launched:
            torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", str(free_port())]
            command = [sys.executable, *torchrun, *arguments]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **RAY, "PYTHONPATH": str(SCRIPT.parent)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world)]

    return run


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def check_once(seen):
    """Every sample came once in every epoch, on one rank, in another order each time."""
    first, second = ([sorted(rank[epoch]) for rank in seen] for epoch in range(2))
    for epoch in (first, second):
        assert sorted(sum(epoch, [])) == list(range(SAMPLES))
        assert len({len(rank) for rank in epoch}) == 1
    assert seen[0][0] != seen[0][1]


@pytest.mark.parametrize("form", ["loader", "batches", "batches-workers", "spawned-batches-workers", "samples"])
def test_a_loop_by_hand_sees_every_sample_once(ranks, form):
    check_once(ranks("hand", form))


@pytest.mark.parametrize("form", [
    "loader",
    "map",
    "batches",
    "batches-workers",
    "spawned-batches-workers",
    "samples:dispatch",
    "samples:shard",
    "samples-workers:shard",
    "spawned-samples-workers:shard",
])
def test_accelerate_sees_every_sample_once(ranks, form):
    check_once(ranks("accelerate", form))


@pytest.mark.parametrize("form", ["map", "samples"])
def test_the_trainer_of_hugging_face_sees_every_sample_once(ranks, form):
    check_once(ranks("trainer", form))


@pytest.mark.parametrize("form", ["loader", "map", "batches", "spawned-batches-workers"])
def test_lightning_sees_every_sample_once(ranks, form, tmp_path):
    check_once(ranks("lightning", form, launched=False))
    # The sanity run takes two batches; the validation after each epoch begins at the start again.
    for rank in range(2):
        validated = json.loads((tmp_path / f"validated-{rank}.json").read_text())
        steps = SAMPLES // 8
        assert len(validated) == 2 + 2 * steps
        assert validated[2 : 2 + steps] == validated[2 + steps :]
        assert validated[:2] == validated[2:4]


@pytest.mark.parametrize("form", ["loader", "sent", "map", "batches"])
def test_ray_train_sees_every_sample_once(ranks, form):
    pytest.importorskip("ray")
    check_once(ranks("ray", form, launched=False))


@pytest.mark.parametrize("form", ["dp_tp", "pp_dp"])
def test_ranks_of_a_mesh_share_batches_along_model_dimensions(ranks, form, tmp_path):
    seen = ranks("mesh", form, world=4)
    places = [json.loads((tmp_path / f"place-{rank}.json").read_text()) for rank in range(4)]
    by_data = {}
    for (data, _), epochs in zip(places, seen, strict=True):
        by_data.setdefault(data, []).append(epochs)
    assert all(one == other for one, other in by_data.values())
    check_once([by_data[0][0], by_data[1][0]])
