"""`Stager`: copies a state into the memory of the node, once, and hands it over.

All ranks agree first, by one exchange of small lists, on the attempt and on who stages what, so that replicas are
copied by one of them. From the return of `stage` on the node goes on alone: it hashes, writes and, at rank 0, commits
when the records of all ranks are there. The death of the trainer loses nothing then. What PyTorch does afterwards
with the staged state, in a thread or process, is to plan and to wait.
"""

from __future__ import annotations

import io
import json
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict

from forebay import _native
from forebay._failures import CheckpointWarning
from forebay._shares import Part
from forebay._tensors import Piece, library, pieces
from forebay._windows import LATER_BYTES_MIN, write
from forebay.dcp._staged import Boxes, Ints, StagedObject, StagedTensor, Ticket
from forebay.dcp._tree import Path, as_json, tree_of
from forebay.dcp._where import threads_for
from forebay.errors import InvalidInputError

if TYPE_CHECKING:
    from forebay.dcp._writer import StorageWriter


@dataclass(frozen=True, slots=True)
class Have:
    """What a rank has."""

    #: Name, type, where it begins, its extent.
    boxes: tuple[tuple[str, str, Ints, Ints], ...]
    objects: tuple[str, ...]
    #: Where entries lie in the nested state, by name.
    paths: dict[str, Path]


class Stager:
    """A stager for `torch.distributed.checkpoint.async_save`, to be used with the writer that it is given.

    The writer is one by itself, so this is only needed where a stager is asked for by name.

    Args:
        writer: The writer of the save, which says where to.
        process_group: Ranks that save together; as in `async_save`.

    """

    _synchronize_after_execute = False

    def __init__(self, writer: StorageWriter, process_group: Any = None) -> None:
        self.writer = writer
        self.process_group = process_group

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Whether there is something to wait for: no, `stage` has copied."""
        return self._synchronize_after_execute

    def synchronize_staging(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to give back: the memory is the node's."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy a state into memory of the node and hand it over.

        Returns:
            The state with references in the place of tensors and objects.

        """
        where = self.writer.take_for_staging()
        found, attempt, haves = self._agree(lambda: _Found(state_dict))
        rank, size = self._rank()
        options = self.writer.options(attempt, rank, size)
        if rank == 0:
            options["tree"] = json.dumps(_tree(haves))
        save = _native.CheckpointSave(self.writer.link.client, where.root, where.step, **options)
        try:
            parts = found.parts(_native.checkpoint_shares([have.boxes for have in haves], rank))
            write(save, parts, threads_for(self.writer.thread_count))
            before = {name for have in haves[:rank] for name in have.objects}
            for name, (kind, data) in found.objects.items():
                if name not in before:
                    save.object(name, kind, data)
            self.writer.staged_report = save.stage()
        except BaseException:
            save.abort()
            raise
        ticket = Ticket(where.root, where.step, save.attempt, save.id)
        return found.references(ticket)

    def _rank(self) -> tuple[int, int]:
        if self.writer.no_dist or not (dist.is_available() and dist.is_initialized()):
            return 0, 1
        return dist.get_rank(self.process_group), dist.get_world_size(self.process_group)

    def _agree(self, take: Callable[[], _Found]) -> tuple[_Found, str, list[Have]]:
        """Look at the state, tell the others what this rank has and hear what they have; rank 0 names the attempt."""
        attempt = f"a-{secrets.token_hex(8)}"
        _, size = self._rank()
        if size == 1:
            found = take()
            return found, attempt, [found.have()]
        error: Exception | None = None
        try:
            found = take()
        except Exception as why:
            # The others wait for this rank, so they are told.
            error = why
        told: list[Any] = [None] * size
        mine = str(error) if error is not None else found.have()
        dist.all_gather_object(told, (attempt, mine), group=self.process_group)
        if error is not None:
            raise error
        for other, (_, have) in enumerate(told):
            if isinstance(have, str):
                raise InvalidInputError(f"rank {other} could not stage its state: {have}", [("rank", str(other))])
        return found, told[0][0], [have for _, have in told]


class _Found:
    """A flat state, as boxes and objects."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        flat, paths = flatten_state_dict(state_dict)
        self.paths: dict[str, Path] = dict(paths)
        self.pieces: list[tuple[str, Piece]] = []
        self.boxes: dict[str, Boxes] = {}
        self.objects: dict[str, tuple[str, bytes]] = {}
        for name, value in flat.items():
            if library(value) == "t":
                self._tensor(name, value)
            else:
                self.objects[name] = encoded(name, value)

    def _tensor(self, name: str, value: Any) -> None:
        mine = pieces(value, name, later_bytes_min=LATER_BYTES_MIN)
        self.pieces += [(name, piece) for piece in mine]
        shape = tuple(getattr(value, "global_shape", value.shape))
        self.boxes[name] = Boxes(name, value.dtype, shape, tuple((piece.offset, piece.sizes) for piece in mine))

    def have(self) -> Have:
        """Return what the other ranks have to know."""
        mine = ((name, piece.dtype, piece.offset, piece.sizes) for name, piece in self.pieces)
        return Have(tuple(mine), tuple(self.objects), self.paths)

    def parts(self, shares: list[tuple[int, list[int], list[int], int]]) -> list[Part]:
        """Return what this rank writes."""
        return [Part(*self.pieces[index], tuple(offset), tuple(sizes), first) for index, offset, sizes, first in shares]

    def references(self, ticket: Ticket) -> dict[str, Any]:
        """Return the state as it was, with references in it."""
        flat = {
            name: StagedTensor(ticket, self.boxes[name])
            if name in self.boxes
            else StagedObject(ticket, name, len(self.objects[name][1]))
            for name in self.paths
        }
        return dict(unflatten_state_dict(flat, self.paths))


def encoded(name: str, value: Any) -> tuple[str, bytes]:
    """Return kind and bytes of state that is not a tensor: JSON where that is exact, else as `torch.save` has it."""
    data = as_json(value)
    if data is not None:
        return "json", data
    warn_of_pickle(name)
    file = io.BytesIO()
    torch.save(value, file)
    return "pickle", file.getvalue()


def warn_of_pickle(name: str) -> None:
    """Say while the value is still there that loading it will have to be asked for."""
    message = f"{name} can only be kept as a pickle: whoever loads this step needs allow_pickle=True"
    warnings.warn(message, CheckpointWarning, stacklevel=3)


def _tree(haves: list[Have]) -> Any:
    paths: dict[str, Path] = {}
    tensors: set[str] = set()
    for have in haves:
        paths = {**have.paths, **paths}
        tensors |= have.paths.keys() - set(have.objects)
    return tree_of(paths, tensors)
