"""`StorageReader`: a step of a run, read by PyTorch's DCP.

What DCP keeps as a pickle is made here from the manifest. Every tensor is shown to the planner as one whole, so that
it asks for just the boxes that it needs, and those are read as exact ranges straight into the tensors of the caller,
by several threads, every block proved.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as _Base

from forebay import _native
from forebay._restore import Restore, refused_pickle
from forebay._state import Node as TreeNode
from forebay._tensors import NAMES, Shard, Target, targets
from forebay._windows import LATER_BYTES_MIN, read
from forebay.dcp._tree import leaves
from forebay.dcp._where import SCHEME, Link, Where, threads_for
from forebay.errors import InvalidInputError, NotFoundError, UnsupportedError
from forebay.node import Node

#: Bytes of tensors that have another type in the state than in the step, at a time.
CONVERT_BYTES_MAX = 256 << 20

#: Set to `1`, entries that are pickles are loaded without `allow_pickle=True`: for programs that only give an id.
ALLOW_PICKLE_VARIABLE = "FOREBAY_ALLOW_PICKLE"


def pickle_is_allowed() -> bool:
    """Return whether the environment says that whoever wrote the checkpoints is trusted."""
    return os.environ.get(ALLOW_PICKLE_VARIABLE) == "1"


class StorageReader(_Base):
    """Loads steps of a run by PyTorch's DCP, whether DCP saved them or `forebay.Checkpoints`.

    Args:
        path: The id: `forebay://bucket/run/step-100`, see `Where.of`; may come later, by `checkpoint_id`.
        step: The step, if `path` is only the run; `"latest"` for the newest.
        generation: The generation of the step; by default the highest.
        node: The node, or its address; by default that of this host.
        thread_count: Threads that read; by default one for each core.
        allow_pickle: Load entries that were saved as pickles, which can run any code. By default only if the
            environment variable `FOREBAY_ALLOW_PICKLE` is `1`.

    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        step: int | str | None = None,
        generation: int | None = None,
        node: Node | str | None = None,
        thread_count: int | None = None,
        allow_pickle: bool | None = None,
    ) -> None:
        super().__init__()
        self.link = Link(node)
        self.thread_count = thread_count
        self.allow_pickle = pickle_is_allowed() if allow_pickle is None else allow_pickle
        #: Bytes that the last load wanted, and read for it.
        self.bytes_wanted, self.bytes_read = 0, 0
        self._generation = generation
        self._wanted_step = step
        self._id = path
        self._found: _native.CheckpointStep | None = None
        self._nodes: dict[str, TreeNode] = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether an id is one of ours."""
        return str(checkpoint_id).startswith(SCHEME)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str] | None:
        """The id of this load."""
        return self._id

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new load; what is there is looked up again."""
        if checkpoint_id is not None:
            self._id = checkpoint_id
        self._found = None

    @property
    def step(self) -> _native.CheckpointStep:
        """The step, looked up when it is first needed."""
        if self._found is None:
            if self._id is None:
                raise InvalidInputError("where from? give the reader a path, or the load a checkpoint_id")
            given = self._wanted_step
            where = Where.of(self._id, 0 if given == "latest" else _number(given))
            run = self.link.run(where)
            number = run.latest() if given == "latest" else where.step
            if number is None:
                raise NotFoundError("the run has no committed step", [("root", where.root)])
            self._found = run.step(number, self._generation)
        return self._found

    # --- what is there ---

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what DCP wants to know, from the manifest."""
        step = self.step
        described = step.tensors()
        entries: dict[str, Any] = {}
        paths: dict[str, Any] = {}
        self._nodes = {}
        for path, node in leaves(json.loads(step.tree())):
            name = ".".join(str(key) for key in path)
            self._nodes[name], paths[name] = node, path
            is_tensor = isinstance(node, list) and node[0] == "t"
            entries[name] = _described(name, *described[node[1]]) if is_tensor else BytesStorageMetadata()
        return Metadata(
            state_dict_metadata=entries, planner_data=paths, storage_meta=StorageMeta(checkpoint_id=self._id)
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are: the node reads for all ranks of its host once."""
        return plans

    # --- reading ---

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Read what the plan says, straight into the tensors of the planner."""
        if not self._nodes:
            self.read_metadata()
        self.bytes_wanted, self.bytes_read = 0, 0
        batch = _Batch(self, planner)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes(item.storage_index.fqn))
            else:
                batch.add(item, self._nodes[item.storage_index.fqn][1])
        batch.read()
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def load_into(self, wants: list[Any]) -> None:
        """Fill memory with boxes of tensors."""
        if wants:
            wanted, found = self.step.load(wants, threads_for(self.thread_count))
            self.bytes_wanted += wanted
            self.bytes_read += found

    def _bytes(self, name: str) -> io.BytesIO:
        """State that is not a tensor, as `torch.save` would have it."""
        node = self._nodes[name]
        if isinstance(node, list) and node[0] == "j":
            kind, data = self.step.object(node[1], None)
            if kind != "json":
                # The planner unpickles whatever it is given.
                if not self.allow_pickle:
                    raise refused_pickle(name)
                return io.BytesIO(data)
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        restore = Restore(
            self.step.tensors(),
            lambda one: self.step.object(one, None),
            rank=rank,
            allow_pickle=self.allow_pickle,
        )
        value = restore.plan(node, path=(name,))
        wants = [(one, list(p.offset), list(p.sizes), (p.address, p.nbytes)) for one, p in restore.wants]
        self.load_into(wants)
        restore.finish()
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return file


class _Batch:
    """Tensors to be filled."""

    def __init__(self, reader: StorageReader, planner: LoadPlanner) -> None:
        self.reader = reader
        self.planner = planner
        self.described = reader.step.tensors()
        self._wants: list[Any] = []
        #: What cannot be filled where it is.
        self._later: list[tuple[str, Target]] = []
        self._after: list[Callable[[], object]] = []
        self._converted_bytes = 0

    def add(self, item: ReadItem, name: str) -> None:
        target = self.planner.resolve_tensor(item).detach()
        if tuple(target.shape) != tuple(item.lengths):
            message = f"a planner gave {tuple(target.shape)} for a box of {tuple(item.lengths)}"
            raise InvalidInputError(message, [("tensor", name)])
        word, shape = self.described[name]
        place = target
        if target.dtype != _dtype(name, word):
            place = torch.empty(tuple(target.shape), dtype=_dtype(name, word))
            self._after.append(lambda: target.copy_(place))
            self._converted_bytes += place.nbytes
        box = Shard(place, offset=item.storage_offsets, shape=shape)
        for one in targets(box, name, later_bytes_min=LATER_BYTES_MIN):
            if one.beside is not None:
                self._later.append((name, one))
                continue
            piece = one.piece
            self._wants.append((name, piece.offset, piece.sizes, (piece.address, piece.nbytes)))
            if one.finish is not None:
                # Before the conversion, if there is one.
                self._after.insert(0, one.finish)
        self._after.append(lambda: self.planner.commit_tensor(item, target))
        if self._converted_bytes >= CONVERT_BYTES_MAX:
            self.read()

    def read(self) -> None:
        self.reader.load_into(self._wants)
        read(self.reader.step, self._later, threads_for(self.reader.thread_count))
        for one in self._after:
            one()
        self._wants, self._later, self._after, self._converted_bytes = [], [], [], 0


def _number(step: int | str | None) -> int | None:
    if isinstance(step, str):
        raise InvalidInputError(f'step is a number or "latest", not {step!r}')
    return step


def _dtype(name: str, word: str) -> torch.dtype:
    dtype = getattr(torch, NAMES[word], None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"this version of torch has no {NAMES[word]}; update torch", [("tensor", name)])
    return dtype


def _described(name: str, word: str, shape: tuple[int, ...]) -> TensorStorageMetadata:
    """A tensor as one whole: any box of it can be asked for."""
    size = torch.Size(shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=size)
    return TensorStorageMetadata(properties=TensorProperties(dtype=_dtype(name, word)), size=size, chunks=[whole])
