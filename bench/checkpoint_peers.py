"""What checkpoints are measured against: plain bytes, and other libraries. See bench/checkpoint.py."""

import os
import pathlib
import shutil
from typing import Any

import numpy
import torch
import torch.distributed.checkpoint as dcp

import forebay


def plain(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


def plain_write(folder: pathlib.Path, tensors: list[torch.Tensor]) -> None:
    """Write and sync."""
    with open(folder / "plain", "wb", buffering=0) as file:
        for tensor in tensors:
            file.write(plain(tensor))
        os.fsync(file.fileno())


def plain_read(folder: pathlib.Path, tensors: list[torch.Tensor]) -> None:
    with open(folder / "plain", "rb", buffering=0) as file:
        for tensor in tensors:
            file.readinto(plain(tensor))


def dcp_save(folder: pathlib.Path, state: dict[str, Any]) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "dcp", thread_count=2, sync_files=True))


def dcp_async(folder: pathlib.Path, state: dict[str, Any]) -> Any:
    return dcp.async_save(state, storage_writer=dcp.FileSystemWriter(folder / "dcp", thread_count=2, sync_files=True))


def dcp_load(folder: pathlib.Path, state: dict[str, Any]) -> None:
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder / "dcp"))


def torch_save(folder: pathlib.Path, state: dict[str, Any]) -> None:
    with open(folder / "torch.pt", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def torch_load(folder: pathlib.Path, state: dict[str, Any]) -> None:
    for name, part in torch.load(folder / "torch.pt").items():
        for key, tensor in part.items():
            state[name][key].copy_(tensor)


def flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {f"{name}.{key}": tensor for name, part in state.items() for key, tensor in part.items()}


def safetensors_save(folder: pathlib.Path, state: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(flat(state), folder / "all.safetensors")
    with open(folder / "all.safetensors", "rb") as file:
        os.fsync(file.fileno())


def safetensors_load(folder: pathlib.Path, state: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    targets = flat(state)
    for name, tensor in load_file(folder / "all.safetensors").items():
        targets[name].copy_(tensor)


def _manager() -> Any:
    import torch_checkpointing as tc
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    items = {name: tc.ItemSpec() for name in ("model", "exp_avg", "exp_avg_sq")}
    # Its direct I/O fails on common file systems.
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    config = tc.CheckpointManager.Config(items=items, save=tc.SyncCheckpointSaverConfig(), storage_config=storage)
    return tc.CheckpointManager(config)


def tc_save(folder: pathlib.Path, state: dict[str, Any]) -> None:
    shutil.rmtree(folder / "tc", ignore_errors=True)
    _manager().save(str(folder / "tc"), state)
    os.sync()


def tc_load(folder: pathlib.Path, state: dict[str, Any]) -> None:
    _manager().load(str(folder / "tc"), into=state)


PEERS = {
    "torch": (torch_save, torch_load),
    "dcp": (dcp_save, dcp_load),
    "safetensors": (safetensors_save, safetensors_load),
    "torch_checkpointing": (tc_save, tc_load),
}


def open_views(socket: str, root: str, step: int, ready: Any, end: Any) -> None:
    """A process that opens a model where the node keeps it, and looks at all of it; says what memory it had before."""
    with forebay.connect(socket) as node:
        found = forebay._native.CheckpointRoot(node._client, root).step(step)
        before = pss(os.getpid())
        views = found.views(list(found.tensors()), 2)
        for view in views:
            numpy.frombuffer(view, dtype=numpy.uint8)[::4096].sum(dtype=numpy.uint64)
        ready.put((os.getpid(), before))
        end.wait(300)


def pss(pid: int) -> int:
    """A process's memory that is not of files; what several have mapped counts in shares."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        counted = (line for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        return sum(int(line.split()[1]) * 1024 for line in counted)


def private_bytes(pid: int) -> int:
    """Memory of a process that is neither shared nor of a file."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))
