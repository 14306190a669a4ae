"""What does not lie in plain memory, on an accelerator or not contiguous, goes through windows.

It has to be copied in this process, on its way to the node or from it. Window by window that takes a little memory, and
not as much again as the state has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay import _native
from forebay._shares import Part
from forebay._tensors import Piece, Target

#: Bytes that are copied at a time.
WINDOW_BYTES = 64 << 20
#: Smaller tensors are copied at once.
LATER_BYTES_MIN = 1 << 20


def write(save: _native.CheckpointSave, parts: list[Part], threads: int) -> int:
    """Hand parts over, what lies in plain memory at once; return the bytes that had to be copied before."""
    save.write([_row(part, part.piece, part.first) for part in parts if part.piece.take is None], threads)
    window_bytes = min(WINDOW_BYTES, save.file_bytes_max)
    copied = 0
    rows: list[Any] = []
    kept: list[Piece] = []
    for part in parts:
        if part.piece.take is None:
            copied += part.piece.copied * part.nbytes // max(1, part.piece.nbytes)
            continue
        for some in _cut(part, window_bytes):
            if kept and sum(piece.nbytes for piece in kept) + some.nbytes > window_bytes:
                save.write(rows, threads)
                rows, kept = [], []
            kept.append(part.piece.take(some.offset, some.sizes))
            copied += kept[-1].nbytes
            rows.append(_row(some, kept[-1], 0))
    if rows:
        save.write(rows, threads)
    return copied


def read(step: _native.CheckpointStep, later: list[tuple[str, Target]], threads: int) -> None:
    """Fill tensors that cannot be filled where they are."""
    rows: list[Any] = []
    window: list[Target] = []
    for name, whole in later:
        assert whole.beside is not None  # else it would have been filled where it is
        for some in _cut(Part(name, whole.piece, whole.piece.offset, whole.piece.sizes, 0), WINDOW_BYTES):
            if window and sum(target.piece.nbytes for target in window) + some.nbytes > WINDOW_BYTES:
                _fill(step, rows, window, threads)
                rows, window = [], []
            window.append(whole.beside(some.offset, some.sizes))
            piece = window[-1].piece
            rows.append((name, piece.offset, piece.sizes, (piece.address, piece.nbytes)))
    _fill(step, rows, window, threads)


def _fill(step: _native.CheckpointStep, rows: list[Any], window: list[Target], threads: int) -> None:
    if rows:
        step.load(rows, threads)
    for target in window:
        assert target.finish is not None  # it lies beside its place
        target.finish()


def _row(part: Part, piece: Piece, first: int) -> Any:
    """A part as `CheckpointSave.write` takes it."""
    return part.name, piece.dtype, piece.shape, part.offset, part.sizes, (piece.address + first, part.nbytes)


def _cut(part: Part, bytes_max: int) -> Iterator[Part]:
    """Cut a part along its outermost axis that has an extent, and again where that is not enough."""
    axis = next((axis for axis, size in enumerate(part.sizes) if size > 1), None)
    if axis is None or part.nbytes <= bytes_max:
        yield part
        return
    size = part.sizes[axis]
    rows = max(1, bytes_max * size // part.nbytes)
    for start in range(0, size, rows):
        offset = (*part.offset[:axis], part.offset[axis] + start, *part.offset[axis + 1 :])
        sizes = (*part.sizes[:axis], min(rows, size - start), *part.sizes[axis + 1 :])
        yield from _cut(Part(part.name, part.piece, offset, sizes, 0), bytes_max)
