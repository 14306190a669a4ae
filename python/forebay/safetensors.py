"""safetensors files and steps in the lake, with the names that the package `safetensors` has.

A name is that of a file, `forebay://bucket/model.safetensors`, or of a step, `forebay://bucket/run-7/steps/1000`. What
is read is checked on the way. Arrays of numpy lie where the node keeps them and are read-only: any number of processes
share one copy. Tensors of torch are copied, because torch cannot mark one as read-only; `mapped=True` leaves them where
they are for who only reads. Writing to such a tensor ends the process.

>>> import forebay, numpy
>>> from forebay.safetensors import load_file, safe_open, save_file
>>> node = forebay.open("memory://")
>>> node.create_bucket("demo")
>>> save_file({"weight": numpy.arange(6.0).reshape(2, 3)}, "demo/model.safetensors", {"epoch": "3"}, node=node)
>>> load_file("demo/model.safetensors", node=node)["weight"].tolist()
[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
>>> with safe_open("demo/model.safetensors", framework="np", node=node) as file:
...     list(file.keys()), file.metadata(), file.get_slice("weight")[:, 1:].tolist()
(['weight'], {'epoch': '3'}, [[1.0, 2.0], [4.0, 5.0]])
>>> node.close()
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from forebay import _native
from forebay._tensors import NAMES, Piece, empty, library, pieces, targets, view_of
from forebay.errors import CorruptError, InvalidInputError, NotFoundError, UnsupportedError
from forebay.node import Node, connect

__all__ = ["load_file", "safe_open", "save_file"]

#: Longest header, as in the package `safetensors`.
_HEADER_BYTES_MAX = 100_000_000
#: Data begins at a multiple of this, so that mapped tensors are aligned.
_ALIGNMENT = 64
_STEP = re.compile(r"(?P<root>.+)/steps/(?P<step>[0-9]+)/?")
_FRAMEWORKS = {"pt": "t", "torch": "t", "pytorch": "t", "np": "n", "numpy": "n"}
_THREADS_MAX = 8


def load_file(
    filename: str,
    device: str = "cpu",
    *,
    framework: str | None = None,
    mapped: bool | None = None,
    node: Node | None = None,
) -> dict[str, Any]:
    """Return all tensors of a file or step.

    Args:
        filename: `forebay://bucket/key.safetensors`, or `forebay://bucket/run/steps/1000`.
        device: Where tensors of torch go.
        framework: `"pt"` or `"np"`; torch if the program has imported it, if left out.
        mapped: Whether tensors lie where the node keeps them; by default those of numpy, which are read-only.
        node: The node to read through; `forebay.connect()` if left out.

    """
    with safe_open(filename, _framework(framework), device, mapped=mapped, node=node) as file:
        return file.get_tensors(file.keys())


def save_file(
    tensors: Mapping[str, Any],
    filename: str,
    metadata: Mapping[str, str] | None = None,
    *,
    node: Node | None = None,
) -> None:
    """Write tensors as a safetensors file, whole or not at all; return when the lake has it.

    Args:
        tensors: By name, of torch or numpy. Two that are the same memory are refused, as in the package `safetensors`.
        filename: `forebay://bucket/key.safetensors`.
        metadata: Texts to keep in the header.
        node: The node to write through; `forebay.connect()` if left out.

    """
    found: dict[str, Piece] = {}
    memory: dict[int, str] = {}
    for name, tensor in tensors.items():
        if library(tensor) not in ("t", "n"):
            raise InvalidInputError(f"{name} is no tensor but a {type(tensor).__name__}", [("tensor", name)])
        boxes = pieces(tensor, name)
        if len(boxes) != 1 or not boxes[0].is_whole:
            raise InvalidInputError("only whole tensors can be in a file; save a step instead", [("tensor", name)])
        found[name] = boxes[0]
        if boxes[0].nbytes and (other := memory.setdefault(boxes[0].address, name)) != name:
            raise InvalidInputError(f"{other} and {name} are the same memory: save only one of them, or a copy")
    order = sorted(found, key=lambda name: (-_element_bytes(found[name]), name))
    header = _header(order, found, metadata)
    with _node_of(node) as used:
        size = len(header) + sum(piece.nbytes for piece in found.values())
        with used.node.writer(filename, size=size) as target:
            target.write(header)
            for name in order:
                if found[name].nbytes:
                    target.write(_bytes_of(found[name]))


class safe_open:  # noqa: N801 - the name in the package `safetensors`
    """A file or step, opened to read some of its tensors.

    Args:
        filename: As for `load_file`.
        framework: `"pt"` or `"np"`.
        device: Where tensors of torch go.
        mapped: As for `load_file`.
        node: The node to read through; `forebay.connect()` if left out.

    """

    def __init__(
        self,
        filename: str,
        framework: str,
        device: str = "cpu",
        *,
        mapped: bool | None = None,
        node: Node | None = None,
    ) -> None:
        self._kind = _kind(framework)
        self._device = str(device)
        if self._kind == "n" and self._device != "cpu":
            raise InvalidInputError(f"arrays of numpy are on the CPU, not on {self._device}")
        self._mapped = self._kind == "n" if mapped is None else mapped
        self._used = _node_of(node)
        try:
            step = _STEP.fullmatch(filename)
            self._source: _Source = (
                _File(self._used.node, filename)
                if step is None
                else _Step(self._used.node, step["root"], int(step["step"]))
            )
        except BaseException:
            self._used.close()
            raise

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._source.tensors)

    def offset_keys(self) -> list[str]:
        """Return the names in the order in which the tensors lie."""
        return list(self._source.tensors)

    def metadata(self) -> dict[str, str] | None:
        """Return the texts that are kept with it."""
        return self._source.metadata

    def get_tensor(self, name: str) -> Any:
        """Return a tensor."""
        return self.get_tensors([name])[name]

    def get_tensors(self, names: list[str]) -> dict[str, Any]:
        """Return several tensors, read together."""
        for name in names:
            self._described(name)
        if self._mapped:
            views = self._source.views(names)
            found = {
                name: view_of(view, *self._source.tensors[name], self._kind)
                for name, view in zip(names, views, strict=True)
            }
        else:
            found = {name: empty(*self._source.tensors[name], self._kind) for name in names}
            wants = [(name, (0,) * len(tensor.shape), tensor) for name, tensor in found.items()]
            self._source.load(wants)
        return {name: self._placed(tensor) for name, tensor in found.items()}

    def get_slice(self, name: str) -> _Slice:
        """Return a tensor of which only what is then indexed is read."""
        self._described(name)
        return _Slice(self, name)

    def _described(self, name: str) -> tuple[str, tuple[int, ...]]:
        found = self._source.tensors.get(name)
        if found is None:
            raise NotFoundError("there is no such tensor", [("tensor", name)])
        return found

    def _box(self, name: str, offset: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
        tensor = empty(self._source.tensors[name][0], sizes, self._kind)
        if math.prod(sizes):
            self._source.load([(name, offset, tensor)])
        return tensor

    def _placed(self, tensor: Any) -> Any:
        return tensor if self._device == "cpu" else tensor.to(self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._used.close()


class _Slice:
    """A tensor that is read when it is indexed."""

    def __init__(self, file: safe_open, name: str) -> None:
        self._file = file
        self._name = name

    def get_shape(self) -> list[int]:
        """Return its shape."""
        return list(self._file._source.tensors[self._name][1])

    def get_dtype(self) -> str:
        """Return the type of its elements, as safetensors calls it."""
        return self._file._source.tensors[self._name][0]

    def __getitem__(self, index: Any) -> Any:
        shape = self._file._source.tensors[self._name][1]
        spans = _spans(index if isinstance(index, tuple) else (index,), shape)
        offset = tuple(span.start for span, _ in spans)
        sizes = tuple(len(range(span.start, span.stop)) for span, _ in spans)
        box = self._file._box(self._name, offset, sizes)
        rest = tuple(0 if is_one else slice(None, None, span.step) for span, is_one in spans)
        return self._file._placed(box[rest] if rest else box)


def _spans(index: tuple[Any, ...], shape: tuple[int, ...]) -> list[tuple[range, bool]]:
    """For each dimension what is wanted of it, and whether it is a single index that goes away."""
    if sum(one is Ellipsis for one in index) > 1:
        raise InvalidInputError("an index has one ellipsis at most")
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (len(shape) - len(index) + 1), *index[at + 1 :])
    if len(index) > len(shape):
        raise InvalidInputError(f"{len(index)} indices for a tensor of {len(shape)} dimensions")
    spans = []
    for one, size in zip((*index, *[slice(None)] * (len(shape) - len(index))), shape, strict=True):
        if isinstance(one, slice):
            span = range(size)[one]
            if span.step < 1:
                raise UnsupportedError("slices with a negative step cannot be read; reverse the tensor afterwards")
            spans.append((span if len(span) else range(0), False))
        elif isinstance(one, int):
            if not -size <= one < size:
                raise IndexError(f"index {one} is out of range for a dimension of {size}")
            at = one % size
            spans.append((range(at, at + 1), True))
        else:
            raise UnsupportedError(f"an index is a number, a slice or an ellipsis, not {type(one).__name__}")
    return spans


class _Source(Protocol):
    """Where tensors come from."""

    #: Type and shape by name, in the order in which they lie.
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    metadata: dict[str, str] | None

    def views(self, names: list[str]) -> list[Any]: ...

    def load(self, wants: list[tuple[str, tuple[int, ...], Any]]) -> None: ...


class _File:
    """A safetensors file; all of it of one version."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        with node.get(name, 0, 8) as front:
            self._version, size = front.version, front.object_bytes
            length = struct.unpack("<Q", bytes(front))[0] if len(front) == 8 else _HEADER_BYTES_MAX + 1
        if length > min(_HEADER_BYTES_MAX, size - 8):
            raise self._broken("its first eight bytes are not the length of a header")
        self._start = 8 + length
        try:
            header = json.loads(node.read(name, 8, length, version=self._version))
            self.metadata: dict[str, str] | None = header.pop("__metadata__", None)
            entries = {name: self._entry(one, size) for name, one in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._broken(str(error)) from error
        order = sorted(entries, key=lambda name: entries[name][2])
        self.tensors = {name: entries[name][:2] for name in order}
        self._ranges = {name: entries[name][2:] for name in order}

    def _entry(self, entry: dict[str, Any], size: int) -> tuple[str, tuple[int, ...], int, int]:
        word, shape = entry["dtype"], tuple(int(one) for one in entry["shape"])
        first, end = (int(one) for one in entry["data_offsets"])
        if word not in NAMES:
            raise UnsupportedError(f"elements of type {word} are not known", [("file", self._name)])
        if not 0 <= first <= end <= size - self._start or end - first != math.prod(shape) * _bytes_of_word(word):
            raise self._broken(f"a tensor of shape {shape} does not lie at {first}-{end}")
        return word, shape, self._start + first, self._start + end

    def _broken(self, why: str) -> CorruptError:
        return CorruptError(f"this is no safetensors file: {why}", [("file", self._name)])

    def views(self, names: list[str]) -> list[Any]:
        items = [(self._name, self._ranges[name][0], self._ranges[name][1] - self._ranges[name][0]) for name in names]
        views: list[Any] = [b""] * len(items)
        full = [index for index, (_, _, length) in enumerate(items) if length]
        for index, view in zip(full, self._node.get_batch([items[index] for index in full]), strict=True):
            self._same(view.version)
            views[index] = view
        return views

    def load(self, wants: list[tuple[str, tuple[int, ...], Any]]) -> None:
        for name, offset, tensor in wants:
            self._load(name, offset, tensor)

    def _load(self, name: str, offset: tuple[int, ...], tensor: Any) -> None:
        word, shape = self.tensors[name]
        sizes = tuple(tensor.shape)
        if math.prod(sizes) == 0:
            return
        # Whole rows of the outermost dimension are read, and the box is cut out of them.
        row = math.prod(shape[1:]) * _bytes_of_word(word)
        first = self._ranges[name][0] + (row * offset[0] if shape else 0)
        length = row * sizes[0] if shape else _bytes_of_word(word)
        with self._node.get(self._name, first, length, version=self._version) as view:
            if len(view) != length:
                raise self._broken("it is shorter than its header says")
            kind = "t" if library(tensor) == "t" else "n"
            rows = view_of(view, word, (sizes[0], *shape[1:]) if shape else (), kind)
            box = tuple(slice(at, at + size) for at, size in zip(offset[1:], sizes[1:], strict=True))
            source = rows[(slice(None), *box)] if shape else rows
            if kind == "t":
                tensor.copy_(source)
            else:
                tensor[...] = source
            del rows, source

    def _same(self, version: str) -> None:
        if version != self._version:
            raise self._broken("it was replaced while it was read; open it again")


class _Step:
    """A committed step; what is not a tensor in it is not seen."""

    def __init__(self, node: Node, root: str, step: int) -> None:
        self._step = _native.CheckpointRoot(node._client, root).step(step)
        self.tensors = self._step.tensors()
        self.metadata: dict[str, str] | None = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in json.loads(self._step.metadata()).items()
        }
        self._threads = min(_THREADS_MAX, os.cpu_count() or 1)

    def views(self, names: list[str]) -> list[Any]:
        return list(self._step.views(names, self._threads))

    def load(self, wants: list[tuple[str, tuple[int, ...], Any]]) -> None:
        asked = []
        for name, offset, tensor in wants:
            for target in targets(tensor, name):
                piece = target.piece
                asked.append((name, offset, piece.sizes, (piece.address, piece.nbytes)))
        self._step.load(asked, self._threads)


class _node_of:  # noqa: N801 - used as a function
    """A node that was given, or one that is connected to for as long as this is open."""

    def __init__(self, node: Node | None) -> None:
        self._is_own = node is None
        self.node = connect() if node is None else node

    def close(self) -> None:
        if self._is_own:
            self.node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _framework(framework: str | None) -> str:
    if framework is not None:
        return framework
    return "pt" if "torch" in sys.modules else "np"


def _kind(framework: str) -> str:
    kind = _FRAMEWORKS.get(framework)
    if kind is None:
        raise UnsupportedError(f"framework is one of {', '.join(_FRAMEWORKS)}, not {framework!r}")
    return kind


def _bytes_of_word(word: str) -> int:
    if word == "BOOL" or word.startswith("F8"):
        return 1
    return int(word.lstrip("BFIUC")) // 8


def _element_bytes(piece: Piece) -> int:
    return _bytes_of_word(piece.dtype)


def _header(order: list[str], found: dict[str, Piece], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {}
    if metadata is not None:
        entries["__metadata__"] = {str(key): str(value) for key, value in metadata.items()}
    first = 0
    for name in order:
        piece = found[name]
        end = first + piece.nbytes
        entries[name] = {"dtype": piece.dtype, "shape": list(piece.shape), "data_offsets": [first, end]}
        first = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _bytes_of(piece: Piece) -> Any:
    import ctypes

    return memoryview((ctypes.c_char * piece.nbytes).from_address(piece.address))
