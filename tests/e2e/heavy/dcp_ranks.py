"""Ranks of a job that saves and loads by PyTorch's DCP, in any version of it.

One process imports torch, reads jobs from its standard input (JSON, one in a line), forks as many ranks as a job asks for, and prints what each of them said. So
the import, which takes longer than the tests, is made once for a version. Everything here is deterministic: a state is known from its seed.
"""

import importlib
import io
import json
import os
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh

import forebay
import forebay.dcp

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor

torch.set_num_threads(1)


def whole(seed, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def state_of(seed, mesh):
    """A state as jobs have them: sharded along one axis or the other, evenly or not, replicated, plain, and what is no tensor."""
    shard = lambda tensor, *placements: distribute_tensor(tensor, mesh, list(placements)) if mesh else tensor  # noqa: E731
    return {
        "model": {
            "rows": shard(whole(seed, 10, 6), Shard(0)),
            "columns": shard(whole(seed + 1, 4, 16, dtype=torch.bfloat16), Shard(1)),
            "replica": shard(whole(seed + 2, 7), Replicate()),
            "plain": whole(seed + 3, 5, 3, dtype=torch.float64),
            "large": whole(seed + 9, 300, 1000),
        },
        "optim": {"step": torch.tensor(float(seed)), "list": [whole(seed + 4, 3, dtype=torch.int64), {"lr": 0.1 * seed}]},
        "flags": whole(seed + 5, 9) > 0,
        "empty": torch.zeros(0, 4),
        "betas": (0.9, 0.999, seed),
        "names": ["a", "b", seed],
        "unusual": {"set": frozenset([seed])},
        "epoch": seed,
    }


def blank(state):
    """The same, with nothing in it yet."""
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


def differing(found, wanted, path=""):
    """Names of what is not as it should be."""
    if isinstance(wanted, dict):
        return [name for key in wanted for name in differing(found[key], wanted[key], f"{path}.{key}")]
    if isinstance(wanted, list):
        return [name for i, one in enumerate(wanted) for name in differing(found[i], one, f"{path}.{i}")]
    if isinstance(wanted, torch.Tensor):
        local = (lambda t: t.to_local() if hasattr(t, "to_local") else t)  # noqa: E731
        return [] if torch.equal(local(found), local(wanted)) else [path]
    return [] if found == wanted and type(found) is type(wanted) else [path]


# --- what a rank can be asked for ---


def save(node, mesh, rank, id, seed, **options):
    forebay.dcp.save(state_of(seed, mesh), id, node=node, **options)
    return "saved"


def save_by_id(node, mesh, rank, id, seed):
    """As a program does that knows nothing of our classes."""
    dcp.save(state_of(seed, mesh), checkpoint_id=id)
    return "saved"


def load_by_id(node, mesh, rank, id, seed, trusted=True):
    state = blank(state_of(seed, mesh))
    os.environ["FOREBAY_ALLOW_PICKLE"] = "1" if trusted else "0"
    dcp.load(state, checkpoint_id=id)
    return differing(state, state_of(seed, mesh))


class Bomb:
    """What a hostile writer puts into a step: unpickling it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


def save_hostile(node, mesh, rank, id, marker):
    forebay.dcp.save({"fine": torch.ones(3), "bomb": Bomb(marker)}, id, node=node)
    return "saved"


def load_hostile(node, mesh, rank, id, root, step, allow_pickle):
    """How every way of loading answers a step with code in it, and whether the code ran."""
    os.environ["FOREBAY_ALLOW_PICKLE"] = "1" if allow_pickle else "0"
    state = {"fine": torch.zeros(3), "bomb": None}
    ways = {
        "load": lambda: forebay.dcp.load(dict(state), id, node=node),
        "reader": lambda: dcp.load(dict(state), storage_reader=forebay.dcp.StorageReader(id, node=node)),
        "id": lambda: dcp.load(dict(state), checkpoint_id=id),
        "checkpoints": lambda: _checkpoints_load(node, root, step, allow_pickle),
    }
    from torch.distributed.checkpoint.api import CheckpointException

    said = {}
    for name, way in ways.items():
        try:
            way()
            said[name] = "loaded"
        except (Exception, CheckpointException) as why:
            said[name] = str(why)
    return said


def _checkpoints_load(node, root, step, allow_pickle):
    with forebay.connect(node) as connected:
        ckpt = forebay.Checkpoints(root, node=connected, rank=0, world_size=1, allow_pickle=allow_pickle)
        return ckpt.load(step)


def save_files(node, mesh, rank, id, seed):
    """PyTorch's own files, through fsspec."""
    try:
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecWriter
    except ImportError:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
    # 2.4 fails to sync with every file system of fsspec.
    dcp.save(state_of(seed, mesh), storage_writer=FsspecWriter(id, sync_files=False))
    return "saved"


def examples(node, mesh, rank):
    """Examples in the documentation of modules that need torch: how many there are, how many fail."""
    import doctest

    found = [doctest.testmod(importlib.import_module(f"forebay.dcp.{name}")) for name in ("_where", "_tree")]
    return [sum(one.attempted for one in found), sum(one.failed for one in found)]


def save_async(node, mesh, rank, id, seed, mode="thread", stager=False):
    state = state_of(seed, mesh)
    options = {}
    if mode == "process":
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    if stager:
        writer = forebay.dcp.StorageWriter(id, node=node)
        future = dcp.async_save(state, storage_writer=writer, async_stager=forebay.dcp.Stager(writer), **options)
    else:
        future = forebay.dcp.async_save(state, id, node=node, **options)
    shared = shared_memory()
    # What is changed now is not what was saved.
    for tensor in (state["model"]["plain"], state["model"]["large"]):
        tensor.fill_(-1)
    future.result()
    return sorted(shared | shared_memory())


def shared_memory():
    """Files in /dev/shm that this process has mapped, also those that were unlinked, as torch does with tensors for other processes."""
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if "/dev/shm/" in line}


def copies(node, mesh, rank, id, seed):
    """Bytes that were copied to stage a state, and bytes that the state has."""
    state = state_of(seed, mesh)
    writer = forebay.dcp.StorageWriter(id, node=node)
    dcp.async_save(state, storage_writer=writer).result()
    return writer.staged_report["bytes_copied"]


def load(node, mesh, rank, id, seed, expect=None, allow_pickle=True, **options):
    state = blank(state_of(seed, mesh))
    forebay.dcp.load(state, id, node=node, allow_pickle=allow_pickle, **options)
    return differing(state, state_of(seed if expect is None else expect, mesh))


def load_only(node, mesh, rank, id, seed, name):
    """One tensor alone: what it read, what it wanted."""
    state = {"model": {name: blank(state_of(seed, mesh))["model"][name]}}
    reader = forebay.dcp.StorageReader(id, node=node)
    dcp.load(state, storage_reader=reader)
    wanted = {"model": {name: state_of(seed, mesh)["model"][name]}}
    return [reader.bytes_read, reader.bytes_wanted, differing(state, wanted)]


def load_by_hugging_face(node, mesh, rank, folder, seed):
    """The data files of a step as they lie in the lake, by PyTorch's own reader of safetensors."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    wanted = {f"model.{name}": tensor for name, tensor in state_of(seed, mesh)["model"].items()}
    state = blank(wanted)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    return differing(state, wanted)


def load_keys(node, mesh, rank, id):
    """Everything, without a state to begin with."""
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    state = _load_state_dict_from_keys(storage_reader=forebay.dcp.StorageReader(id, node=node, allow_pickle=True))
    return differing(state, state_of(state["epoch"], None))


def load_by_checkpoints(node, mesh, rank, root, step, seed):
    """What DCP saved, by our own class."""
    with forebay.connect(node) as connected:
        ckpt = forebay.Checkpoints(root, node=connected, rank=0, world_size=1, allow_pickle=True)
        return differing(ckpt.load(step), state_of(seed, None))


def save_by_checkpoints(node, mesh, rank, root, step, seed):
    with forebay.connect(node) as connected:
        ckpt = forebay.Checkpoints(root, node=connected, on_error="raise", allow_pickle=True)
        ckpt.save(step, state_of(seed, mesh)).durable().result(60)
        ckpt.close()
    return "saved"


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def save_bomb(node, mesh, rank, id, path, own=False):
    """A step whose state runs code if it is unpickled: saved by DCP, or by our own class."""
    state = {"weight": torch.ones(3), "bomb": Bomb(path)}
    if own:
        root, _, step = id.rpartition("/step-")
        with forebay.connect(node) as connected:
            ckpt = forebay.Checkpoints(root, node=connected, on_error="raise", allow_pickle=True)
            ckpt.save(int(step), state).durable().result(60)
            ckpt.close()
    else:
        forebay.dcp.save(state, id, node=node)
    return "saved"


def load_bomb(node, mesh, rank, id, way):
    """How each way to load such a step fails."""
    state = {"weight": torch.zeros(3), "bomb": None}
    try:
        if way == "load":
            forebay.dcp.load(state, id, node=node)
        elif way == "reader":
            dcp.load(state, storage_reader=forebay.dcp.StorageReader(id, node=node))
        elif way == "id":
            dcp.load(state, checkpoint_id=id)
        else:
            root, _, step = id.rpartition("/step-")
            with forebay.connect(node) as connected:
                forebay.Checkpoints(root, node=connected, rank=0, world_size=1).load(int(step))
    except (Exception, dcp.api.CheckpointException) as error:
        return str(error)
    return "loaded"


class Failing(DefaultSavePlanner):
    """A rank that fails in the middle of writing."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def resolve_data(self, item):
        if self.fails and item.index.fqn == "model.rows":
            raise OSError("no memory for this tensor")
        return super().resolve_data(item)


def save_failing(node, mesh, rank, id, seed, failing_rank):
    try:
        forebay.dcp.save(state_of(seed, mesh), id, node=node, planner=Failing(rank == failing_rank))
    except (Exception, dcp.api.CheckpointException) as error:
        return str(error)
    return "saved"


def stage_failing(node, mesh, rank, id, seed, failing_rank):
    state = state_of(seed, mesh)
    if rank == failing_rank:
        state["model"]["odd"] = torch.zeros(3, dtype=torch.complex128)
    try:
        forebay.dcp.async_save(state, id, node=node)
    except (Exception, dcp.api.CheckpointException) as error:
        return str(error)
    return "saved"


def save_cached(node, mesh, rank, root, seeds):
    """Several saves with a planner that keeps its plans."""
    for step, seed in enumerate(seeds):
        forebay.dcp.save(
            state_of(seed, mesh), f"{root}/step-{step}", node=node, planner=DefaultSavePlanner(enable_plan_caching=True)
        )
    return "saved"


def stage_and_die(node, mesh, rank, id, seed):
    writer = forebay.dcp.StorageWriter(id, node=node)
    staged = writer.stage(state_of(seed, mesh))
    assert staged
    dist.barrier()
    os.kill(os.getpid(), 9)


def train(node, mesh, rank, id, steps, save):
    """FSDP2: trains a small model and saves it, or loads it and says whether it goes on in the same way."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        loss = model(whole(7, 4, 6)).square().sum()
        loss.backward()
        optimizer.step()
        return float(loss)

    for _ in range(steps):
        step()
    parts = lambda: dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))  # noqa: E731
    if save:
        forebay.dcp.async_save(parts(), id, node=node).result()
    else:
        state = parts()
        forebay.dcp.load(state, id, node=node)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return round(step(), 5)


def parallel_model(layout):
    """A small model, laid out over all ranks: `fsdp`, `tp`, or `fsdp+tp` on a mesh of two dimensions."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    world = dist.get_world_size()
    tp = {"fsdp": 1, "tp": world}.get(layout, 2)
    mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
    if tp > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if layout != "tp":
        fully_shard(model, mesh=mesh["dp"])
    return model


def go_on(node, mesh, rank, root, layout, steps=0, load=None, save=None):
    """Trains through `forebay.Checkpoints`, with a fresh model and optimizer: the loss of the next iteration."""
    model = parallel_model(layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        loss = model(whole(7, 4, 6)).square().sum()
        loss.backward()
        optimizer.step()
        return float(loss)

    with forebay.connect(node) as connected:
        ckpt = forebay.Checkpoints(root, node=connected, on_error="raise")
        if load is not None:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            ckpt.load(load, into={"model": model, "optim": optimizer})
        for _ in range(steps):
            step()
        if save is not None:
            ckpt.save(save, {"model": model, "optim": optimizer}).durable().result(60)
        ckpt.close()
    losses = [step(), step()]
    kinds = {type(value).__name__ for entry in optimizer.state.values() for name, value in entry.items() if name != "step"}
    return [losses, sorted(kinds)]


# --- the machinery ---


def run_rank(job, rank, store, told):
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(job["world"]), MASTER_ADDR="127.0.0.1", LOCAL_RANK=str(rank))
        os.environ["FOREBAY_NODE"] = job["node"]
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=job["world"])
        mesh = init_device_mesh("cpu", (job["world"],))
        said = {"said": globals()[job["call"]](job["node"], mesh, rank, **job["arguments"])}
    except BaseException as error:
        said = {"failed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    with open(f"{told}/{rank}.new", "w") as file:
        json.dump(said, file)
    os.rename(f"{told}/{rank}.new", f"{told}/{rank}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(job):
    with tempfile.TemporaryDirectory() as told:
        pids = []
        for rank in range(job["world"]):
            pid = os.fork()
            if pid == 0:
                run_rank(job, rank, f"{told}/store", told)
            pids.append(pid)
        deadline = time.monotonic() + job.get("seconds_max", 240)
        while pids and time.monotonic() < deadline:
            pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
            time.sleep(0.01)
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        found = []
        for rank in range(job["world"]):
            try:
                with open(f"{told}/{rank}") as file:
                    found.append(json.load(file))
            except FileNotFoundError:
                found.append({"failed": "hung" if pids else "died"})
        return found


if __name__ == "__main__":
    # Libraries may chat on standard output; answers have a stream of their own.
    answers = io.TextIOWrapper(os.fdopen(os.dup(1), "wb", 0), write_through=True)
    os.dup2(2, 1)
    answers.write(json.dumps({"torch": torch.__version__}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
