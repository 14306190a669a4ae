"""What each rank writes of a state that several ranks have.

Every rank says which boxes of which tensors it has. A box that several have is written once, in parts that are spread
over its owners, so that all write about as much (`crates/checkpoint/format/src/assign.rs`). The answer depends only
on what was said, so every rank finds the same one by itself.

Small tensors that every rank has whole and that differ, such as the states of random generators, are kept for each rank
under a name of its own: `rng` of the first rank, `rng@1` of rank 1. Larger ones should be replicas; that they are is
looked at in samples, and an alarm says if they are not.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay import _native
from forebay._ranks import Ranks
from forebay._state import Flat, Node, merged
from forebay._tensors import ELEMENT_BYTES, Piece
from forebay.errors import ForebayError, InvalidInputError

#: Tensors up to this size may differ between ranks.
OWN_BYTES_MAX = 64 << 10
#: Places in a larger tensor that are looked at, and how much of each.
_SAMPLES, _SAMPLE_BYTES = 8, 512
#: Marks a checksum, whose bits may all be zero.
_LOOKED = 1 << 32
#: Tensors named in a warning.
_NAMED_MAX = 5

#: A box of a tensor: name, type, shape of the whole, where it begins, its extent.
Box = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a box that this rank writes."""

    name: str
    piece: Piece
    #: Where it begins in the whole tensor.
    offset: tuple[int, ...]
    sizes: tuple[int, ...]
    #: Its first byte in the memory of the piece.
    first: int

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.piece.nbytes * math.prod(self.sizes) // max(1, math.prod(self.piece.sizes))


@dataclass
class Share:
    """What this rank hands over."""

    #: The same on all ranks; `None` in a world of one.
    attempt: str | None = None
    #: How names make up the state; on rank 0 that of all ranks, else nothing.
    tree: Node = None
    #: What it writes.
    parts: list[Part] = field(default_factory=list)
    #: Name, kind, bytes.
    objects: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: What looks wrong.
    warnings: list[str] = field(default_factory=list)


def agree(ranks: Ranks, step: int, take: Callable[[], Flat], *, alarms: str, timeout: float) -> Share:
    """Take the state apart and find out, together with the other ranks, what this one writes."""
    if ranks.size == 1:
        flat = take()
        parts = [Part(name, piece, piece.offset, piece.sizes, 0) for name, piece in flat.pieces]
        return Share(None, flat.tree, parts, flat.objects)
    try:
        flat = take()
    except ForebayError as error:
        ranks.all_gather(f"save {step}", error, timeout)
        raise
    said = ranks.all_gather(f"save {step}", _said(step, flat), timeout)
    _same_step(said)
    boxes = [[_box(box) for box in one["boxes"]] for one in said]
    names, different = _own_names(boxes, [one["prints"] for one in said])
    share = Share(said[0]["attempt"], objects=flat.objects)
    if different and alarms != "off":
        _alarm(different, alarms, share)
    if ranks.rank == 0:
        share.tree = merged([_renamed(one["tree"], own) for one, own in zip(said, names, strict=True)])
    haves = [
        [(own.get(name, name), dtype, offset, sizes) for name, dtype, _, offset, sizes in mine]
        for mine, own in zip(boxes, names, strict=True)
    ]
    for index, offset, sizes, first in _native.checkpoint_shares(haves, ranks.rank):
        share.parts.append(Part(haves[ranks.rank][index][0], flat.pieces[index][1], tuple(offset), tuple(sizes), first))
    return share


def _said(step: int, flat: Flat) -> dict[str, Any]:
    boxes = [(name, piece.dtype, piece.shape, piece.offset, piece.sizes) for name, piece in flat.pieces]
    return {
        "step": step,
        "attempt": f"a-{secrets.token_hex(8)}",
        "tree": flat.tree,
        "boxes": boxes,
        "prints": [_print(piece) for _, piece in flat.pieces],
    }


def _box(said: list[Any]) -> Box:
    name, dtype, shape, offset, sizes = said
    return str(name), str(dtype), tuple(shape), tuple(offset), tuple(sizes)


def _same_step(said: list[dict[str, Any]]) -> None:
    steps = [one["step"] for one in said]
    for rank, step in enumerate(steps):
        if step != steps[0]:
            message = f"rank {rank} saves step {step} and rank 0 step {steps[0]}: all ranks save the same step"
            raise InvalidInputError(message, [("rank", str(rank))])


def _print(piece: Piece) -> int:
    """A checksum of a tensor that every rank has whole, or of samples of it; 0 if nobody looked."""
    if not piece.is_whole or piece.take is not None:
        return 0
    if piece.nbytes <= OWN_BYTES_MAX:
        return _LOOKED | zlib.crc32(ctypes.string_at(piece.address, piece.nbytes))
    found = 0
    for number in range(_SAMPLES):
        start = (piece.nbytes - _SAMPLE_BYTES) * number // (_SAMPLES - 1)
        found = zlib.crc32(ctypes.string_at(piece.address + start, _SAMPLE_BYTES), found)
    return _LOOKED | found


def _own_names(boxes: list[list[Box]], prints: list[list[int]]) -> tuple[list[dict[str, str]], dict[str, list[int]]]:
    """Names that ranks use instead, for each rank; and larger tensors that differ, with a rank for each content."""
    first: dict[str, dict[int, int]] = {}
    small: dict[str, bool] = {}
    for rank, (mine, mine_prints) in enumerate(zip(boxes, prints, strict=True)):
        for (name, dtype, shape, _, sizes), crc in zip(mine, mine_prints, strict=True):
            if sizes == shape and crc:
                first.setdefault(name, {}).setdefault(crc, rank)
                small[name] = math.prod(shape) * ELEMENT_BYTES[dtype] <= OWN_BYTES_MAX
    names: list[dict[str, str]] = [{} for _ in boxes]
    different = {name: list(ranks.values()) for name, ranks in first.items() if len(ranks) > 1}
    for rank, (mine, mine_prints) in enumerate(zip(boxes, prints, strict=True)):
        for (name, _, _, _, _), crc in zip(mine, mine_prints, strict=True):
            if crc and name in different and small[name] and first[name][crc] != different[name][0]:
                names[rank][name] = f"{name}@{first[name][crc]}"
    return names, {name: ranks for name, ranks in different.items() if not small[name]}


def _alarm(different: dict[str, list[int]], alarms: str, share: Share) -> None:
    named = [f"{name} (ranks {', '.join(map(str, ranks[:4]))})" for name, ranks in different.items()]
    more = f" and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
    message = (
        f"tensors that all ranks have whole differ between ranks: {', '.join(named[:_NAMED_MAX])}{more}; one of "
        "them is kept: give each rank's its own name, or say with forebay.Shard which part of a whole it is"
    )
    if alarms == "refuse":
        raise InvalidInputError(message)
    share.warnings.append(message)


def _renamed(tree: Node, names: dict[str, str]) -> Node:
    if not names or not isinstance(tree, list) or not tree:
        return tree
    if tree[0] == "t":
        return ["t", names.get(tree[1], tree[1]), *tree[2:]]
    if tree[0] in ("d", "o"):
        return [tree[0], *([key, _renamed(value, names)] for key, value in tree[1:])]
    if tree[0] in ("l", "u", "s"):
        return [tree[0], *(_renamed(value, names) for value in tree[1:])]
    return tree
