"""`StorageWriter`: what PyTorch's DCP saves becomes a step of a run.

Two ways lead here. A plain `save` brings tensors: each rank copies those of its plan into the memory of its node and
hands them over, the coordinator last, in `finish`, which DCP reaches only if no rank failed. `async_save` brings what
the stager has handed over already: nothing is written, `finish` waits. Either way the node of the coordinator creates
the manifest when the records of all ranks are there, and `finish` returns when it is in the lake. DCP has no call for
a save that failed: what is left open is given up at the next `reset`, or by the node at its deadline.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _Base
from torch.distributed.checkpoint.storage import WriteResult

from forebay import _native
from forebay._shares import Part
from forebay._tensors import Shard, pieces
from forebay._windows import LATER_BYTES_MIN, write
from forebay.dcp._staged import StagedObject, StagedTensor, Ticket
from forebay.dcp._stager import Stager, encoded, warn_of_pickle
from forebay.dcp._tree import tree_of
from forebay.dcp._where import SCHEME, Link, Where, threads_for
from forebay.errors import InternalError, InvalidInputError, NotFoundError, TimedOutError
from forebay.node import Node

#: Seconds that a save may take until it is durable.
DEADLINE_SECONDS = 1800.0
#: How often it is looked whether another rank of this host has failed.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank is told with its plan."""

    #: The same for all ranks, new for every save.
    attempt: str
    rank: int
    world_size: int
    #: For rank 0 alone: the tree of the step.
    tree: str | None = None


class StorageWriter(_Base):
    """Saves by PyTorch's DCP as steps of a run.

    Args:
        path: The id: `forebay://bucket/run/step-100`, see `Where.of`; may come later, by `checkpoint_id`.
        step: The step, if `path` is only the run.
        node: The node, or its address; by default that of this host.
        overwrite: Whether a step that is there is replaced, by its next generation; else `AlreadyExistsError`.
        thread_count: Threads that copy; by default one for each core.
        staged: `"ram"`, or `"nvme"` to have staged bytes survive the node.
        digest: `"sha256"` for parts to have that as well.
        alarms: What happens when state looks wrong: `"warn"`, `"refuse"` or `"off"`.
        reuse: Whether parts that the step before has are referenced, not written.
        deadline: Seconds that a save may take until it is durable.
        metadata: What to remember with the step: anything that JSON can have.
        process_group: Ranks that save together, for staging; as given to `async_save`.
        no_dist: Stage for this process alone, though there are others.

    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        step: int | None = None,
        node: Node | str | None = None,
        overwrite: bool = True,
        thread_count: int | None = None,
        staged: str = "ram",
        digest: str = "blake3",
        alarms: str = "warn",
        reuse: bool = True,
        deadline: float = DEADLINE_SECONDS,
        metadata: dict[str, Any] | None = None,
        process_group: Any = None,
        no_dist: bool = False,
    ) -> None:
        super().__init__()
        self.link = Link(node)
        self.overwrite = overwrite
        self.thread_count = thread_count
        self.deadline = deadline
        self.no_dist = no_dist
        #: What the last `stage` cost, and how far it was then.
        self.staged_report: dict[str, Any] | None = None
        #: What became of the last save, at the coordinator.
        self.report: dict[str, Any] | None = None
        self._options = {"staged": staged, "digest": digest, "alarms": alarms, "reuse": reuse}
        self._metadata = json.dumps(metadata or {})
        self._id = path
        self._step = step
        self._where = Where.of(path, step) if path is not None else None
        self._stager = Stager(self, process_group)
        #: The last step that was staged: each has its own id.
        self._taken: Where | None = None
        self._is_coordinator = False
        #: The save of this rank, until it was handed over.
        self._open: _native.CheckpointSave | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        given = {
            "step": self._step,
            "node": self.link.address,
            "overwrite": self.overwrite,
            "thread_count": self.thread_count,
            **self._options,
            "deadline": self.deadline,
            "metadata": json.loads(self._metadata),
            "no_dist": self.no_dist,
        }
        return _again, (self._id, given)

    # --- where ---

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether an id is one of ours."""
        return str(checkpoint_id).startswith(SCHEME)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str] | None:
        """The id of this save."""
        return self._id

    @property
    def where(self) -> Where:
        """The step that is saved."""
        if self._where is None:
            raise InvalidInputError("where to? give the writer a path, or the save a checkpoint_id")
        return self._where

    def storage_meta(self) -> StorageMeta:
        """Return what is known of this save."""
        return StorageMeta(checkpoint_id=self._id)

    def options(self, attempt: str, rank: int, size: int) -> dict[str, Any]:
        """Return how the save of a rank is to be opened."""
        return {
            **self._options,
            "attempt": attempt,
            "rank": rank,
            "world_size": size,
            "supersede": self.overwrite,
            "deadline": self.deadline,
            "metadata": self._metadata,
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new save; what an earlier one left open is given up."""
        self._give_up()
        if checkpoint_id is not None:
            where = Where.of(checkpoint_id, self._step)
            self._id, self._where = checkpoint_id, where

    def _give_up(self) -> None:
        left, self._open = self._open, None
        if left is not None:
            left.abort()

    # --- staging: the writer is a stager, too ---

    _synchronize_after_execute = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Whether there is something to wait for: no, `stage` has copied."""
        return False

    def synchronize_staging(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Give up what was not finished."""
        self._give_up()

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy a state into memory of the node and hand it over; see `Stager`."""
        return self._stager.stage(state_dict)

    def take_for_staging(self) -> Where:
        """Return where to stage to; each id once: newer versions of PyTorch name the next one only afterwards."""
        if self.where == self._taken:
            message = "this id was staged already: give each save a writer of its own, or use forebay.dcp.async_save"
            raise InvalidInputError(message, [("checkpoint_id", str(self._id))])
        self._taken = self.where
        return self.where

    # --- planning ---

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remember who commits."""
        if not kwargs.get("use_collectives", True):
            raise InvalidInputError("a step is committed for all ranks together: use_collectives=False cannot be done")
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Tell the coordinator which plan is its own."""
        return replace(plan, storage_data=self._is_coordinator)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the ranks, the coordinator first, and give it the tree of the step."""
        attempt, size = f"a-{secrets.token_hex(8)}", len(plans)
        plans = _full(plans)
        first = next((index for index, plan in enumerate(plans) if plan.storage_data is True), 0)
        order = [first, *(index for index in range(size) if index != first)]
        told = list(plans)
        for rank, index in enumerate(order):
            tree = json.dumps(_tree(plans)) if rank == 0 else None
            told[index] = replace(plans[index], storage_data=_Part(attempt, rank, size, tree))
        return told

    # --- writing ---

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        """Hand over what the plan says, or only look that the stager has."""
        found = [(item, _resolved(planner, item)) for item in plan.items]
        if any(isinstance(value, (StagedTensor, StagedObject)) for _, value in found):
            results = [self._was_staged(item, value) for item, value in found]
        else:
            results = self._write(plan.storage_data, found)
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result(results)
        return done

    def _was_staged(self, item: WriteItem, value: Any) -> WriteResult:
        name = item.index.fqn
        if not isinstance(value, (StagedTensor, StagedObject)):
            raise InvalidInputError(
                "a planner added this to what was staged; save it without a stager", [("entry", name)]
            )
        known = value.content.name if isinstance(value, StagedTensor) else value.name
        if known != name:
            message = f"a planner calls this {name!r}, but it was staged before it was asked; save it without a stager"
            raise InvalidInputError(message, [("entry", known)])
        if (value.ticket.root, value.ticket.step) != (self.where.root, self.where.step):
            raise InvalidInputError("the state was staged for another id", [("checkpoint_id", str(self._id))])
        size = value.nbytes_staged if isinstance(value, StagedTensor) else value.nbytes
        return WriteResult(index=item.index, size_in_bytes=size, storage_data=value.ticket)

    def _write(self, part: _Part, found: list[tuple[WriteItem, Any]]) -> list[WriteResult]:
        where = self.where
        options = self.options(part.attempt, part.rank, part.world_size)
        if part.tree is not None:
            options["tree"] = part.tree
        self._open = save = _native.CheckpointSave(self.link.client, where.root, where.step, **options)
        try:
            sizes = self._fill(save, found)
            if part.rank != 0:
                # The coordinator's goes last, in `finish`: without it nothing becomes visible.
                save.stage()
                self._open = None
        except BaseException:
            self._give_up()
            raise
        ticket = Ticket(where.root, where.step, save.attempt, save.id)
        return [
            WriteResult(index=item.index, size_in_bytes=size, storage_data=ticket)
            for (item, _), size in zip(found, sizes, strict=True)
        ]

    def _fill(self, save: _native.CheckpointSave, found: list[tuple[WriteItem, Any]]) -> list[int]:
        parts: list[Part] = []
        sizes = []
        for item, value in found:
            if item.type == WriteItemType.BYTE_IO:
                name = item.index.fqn
                kind, data = value.kind_and_bytes(name) if isinstance(value, _Made) else encoded(name, value)
                save.object(name, kind, data)
                sizes.append(len(data))
            else:
                mine = _parts(item, value)
                parts += mine
                sizes.append(sum(part.nbytes for part in mine))
        write(save, parts, threads_for(self.thread_count))
        return sizes

    # --- the commit ---

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Wait until the step is in the lake: at the coordinator, when no rank failed."""
        save, self._open = self._open, None
        if save is not None:
            self.report = save.stage()
            self._await(save.id, save.attempt)
            return
        tickets = {result.storage_data for rank in results for result in rank}
        attempts = {ticket.attempt for ticket in tickets if isinstance(ticket, Ticket)}
        if len(attempts) != 1:
            raise InternalError(f"the ranks of a save speak of {len(attempts)} attempts, not of one")
        attempt = attempts.pop()
        run = self.link.run(self.where)
        mine = [state for state in run.saves() if state["attempt"] == attempt]
        if not mine:
            self._look(run, attempt)
            return
        self._await(min(mine, key=lambda state: int(state["rank"]))["id"], attempt)

    def _await(self, save: str, attempt: str) -> None:
        run = self.link.run(self.where)
        # The node keeps the deadline itself, and says who is missing; this is for a node that does not answer.
        end = time.monotonic() + self.deadline + 60
        while True:
            state: dict[str, Any] | None
            try:
                state = run.wait_save(save, _LOOK_SECONDS)
            except TimedOutError:
                if time.monotonic() > end:
                    raise
                state = _failed(run, attempt)
            except NotFoundError:
                self._look(run, attempt)
                return
            if state is None:
                continue
            if state["phase"] != "durable":
                raise state["error"] or InternalError("the save has failed")
            self.report = {**(self.report or {}), **state}
            return

    def _look(self, run: _native.CheckpointRoot, attempt: str) -> None:
        """Look in the lake for the end of a save that the node has forgotten."""
        found = json.loads(run.step(self.where.step).manifest())
        if found["attempt"] != attempt:
            message = "the node does not know the save any more, and the step is another one; save it again"
            raise InternalError(message, [("attempt", attempt)])


def _again(path: str | None, given: dict[str, Any]) -> StorageWriter:
    return StorageWriter(path, **given)


def _failed(run: _native.CheckpointRoot, attempt: str) -> dict[str, Any] | None:
    """A save of the same attempt that has failed: what any rank of this host says is true for all."""
    states = (state for state in run.saves() if state["attempt"] == attempt)
    return next((state for state in states if state["phase"] == "failed"), None)


@dataclass(frozen=True, slots=True)
class _Made:
    """Bytes that a planner made of an object, in its own way."""

    data: bytes

    def kind_and_bytes(self, name: str) -> tuple[str, bytes]:
        warn_of_pickle(name)
        return "pickle", self.data


def _resolved(planner: SavePlanner, item: WriteItem) -> Any:
    """What an item is: a tensor, an object, bytes that a planner made of one, or a reference to what was staged."""
    if item.type != WriteItemType.BYTE_IO:
        return planner.resolve_data(item)
    look = getattr(planner, "lookup_object", None)
    if look is not None:
        value = look(item.index)
        if isinstance(value, StagedObject) or _is_stock(planner):
            return value
    return _Made(planner.resolve_data(item).getvalue())


def _is_stock(planner: SavePlanner) -> bool:
    """Whether a planner makes bytes of objects just as PyTorch's own."""
    methods = ("resolve_data", "transform_object")
    return all(getattr(type(planner), name, None) is getattr(DefaultSavePlanner, name) for name in methods)


def _full(plans: list[SavePlan]) -> list[SavePlan]:
    """Plans with nothing left out: a planner that keeps plans sends only what has changed since the last save."""
    if all(getattr(plan, "usable", True) for plan in plans):
        return plans
    kept = [kept for kept in SavePlanner._cached_global_plan.values() if len(kept) == len(plans)]
    if len(kept) != 1:
        raise InvalidInputError("plans are kept for several planners; leave enable_plan_caching off")
    return list(kept[0])


def _parts(item: WriteItem, value: torch.Tensor) -> list[Part]:
    """The tensor of an item, which is a box of the whole; nothing if that has no elements but the whole has."""
    data, name = item.tensor_data, item.index.fqn
    if tuple(value.shape) != tuple(data.chunk.sizes):
        message = f"a planner gave {tuple(value.shape)} for a box of {tuple(data.chunk.sizes)}"
        raise InvalidInputError(message, [("tensor", name)])
    local = Shard(value.detach(), offset=data.chunk.offsets, shape=data.size)
    found = pieces(local, name, later_bytes_min=LATER_BYTES_MIN)
    return [Part(name, piece, piece.offset, piece.sizes, 0) for piece in found]


def _tree(plans: list[SavePlan]) -> Any:
    """The tree of a step from the plans of all ranks."""
    paths: dict[str, Any] = {}
    tensors: set[str] = set()
    for plan in plans:
        known = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        for item in plan.items:
            name = item.index.fqn
            paths.setdefault(name, tuple(known.get(name, (name,))))
            if item.type != WriteItemType.BYTE_IO:
                tensors.add(name)
    return tree_of(paths, tensors)
