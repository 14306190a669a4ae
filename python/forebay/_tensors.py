"""Tensors as the core takes them: a type of elements, a box of the whole tensor, and where its bytes lie.

What counts as a tensor: of torch plain ones, DTensor, ShardedTensor and everything with the fields of torch's
`CheckpointableTensor`; of numpy arrays and scalars; whatever else has `__array__`; and `Shard`. torch is never imported
to look at a state: a tensor of it can only come from a program that has it.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import InvalidInputError, UnsupportedError

#: Words of safetensors for the types of elements; torch and numpy call them the same.
WORDS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
NAMES = {word: name for name, word in WORDS.items()}
#: Bytes of one element.
ELEMENT_BYTES = {
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"], 1),
    **dict.fromkeys(["I16", "U16", "F16", "BF16"], 2),
    **dict.fromkeys(["I32", "U32", "F32"], 4),
    **dict.fromkeys(["C64", "F64", "I64", "U64"], 8),
}
#: Types that numpy has only with the package ml_dtypes.
_OF_ML_DTYPES = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory of this process that holds a box of a tensor, in C order without gaps."""

    #: Type of the elements, as safetensors calls it.
    dtype: str
    #: Shape of the whole tensor.
    shape: tuple[int, ...]
    #: Where the box begins.
    offset: tuple[int, ...]
    #: Its extent.
    sizes: tuple[int, ...]
    #: Where its bytes lie.
    address: int
    #: How many.
    nbytes: int
    #: What keeps them there.
    keep: Any
    #: Bytes that had to be copied to get them there.
    copied: int = 0
    #: For bytes that are not there yet (`address` is 0): copies a box of the piece, by where it begins in the whole and
    #: its extent.
    take: Callable[[tuple[int, ...], tuple[int, ...]], Piece] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the box is the whole tensor."""
        return self.sizes == self.shape


@dataclass(frozen=True, slots=True)
class Target:
    """A piece to be filled, and what is to be done when it is."""

    piece: Piece
    #: Brings the bytes to where the tensor is, if they could not be read there.
    finish: Callable[[], object] | None = None
    #: For memory that is not there yet (its address is 0): makes some for a box of the piece, by where it begins in the
    #: whole and its extent.
    beside: Callable[[tuple[int, ...], tuple[int, ...]], Target] | None = None


class Shard:
    """A tensor or array of this process that is a box of a larger tensor, without DTensor.

    In a state it stands where the tensor would. It can be saved and loaded into; `local` is filled in place.

    Args:
        local: A tensor of torch or an array of numpy.
        offset: Where it begins in the whole, an index for each dimension.
        shape: The shape of the whole.

    >>> import numpy
    >>> Shard(numpy.zeros((2, 3)), offset=(2, 0), shape=(4, 3))
    Shard(offset=(2, 0), sizes=(2, 3), shape=(4, 3))
    """

    def __init__(self, local: Any, *, offset: Sequence[int], shape: Sequence[int]) -> None:
        self.local = local
        self.offset = tuple(int(one) for one in offset)
        self.shape = tuple(int(one) for one in shape)
        sizes = tuple(local.shape)
        is_box = len(self.offset) == len(self.shape) == len(sizes) and all(
            at >= 0 and at + size <= whole for at, size, whole in zip(self.offset, sizes, self.shape, strict=True)
        )
        if library(local) not in ("t", "n") or not is_box:
            raise InvalidInputError(
                f"a tensor of shape {sizes} at {self.offset} is no box of a tensor of shape {self.shape}"
            )

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self.local.dtype

    def __repr__(self) -> str:
        return f"Shard(offset={self.offset}, sizes={tuple(self.local.shape)}, shape={self.shape})"


def library(value: Any) -> str | None:
    """Return whose tensor this is: `t` for torch, `n` for an array, `g` for a scalar of numpy, or nothing."""
    if isinstance(value, Shard):
        return library(value.local)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "t"
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.generic):
            return "g" if _numpy_name(value.dtype) in WORDS else None
        if isinstance(value, numpy.ndarray):
            return "n" if _numpy_name(value.dtype) in WORDS else None
    if hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape"):
        return "n" if str(value.dtype) in WORDS else None
    return None


def identity(value: Any) -> tuple[object, ...] | None:
    """Return what two names of one memory have in common; `None` if it has no memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if hasattr(value, "local_shards"):
            return None
        local = value.to_local() if hasattr(value, "to_local") else value
        if local.numel() == 0 or local.layout != torch.strided or local.device.type == "meta":
            return None
        return str(local.device), local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), tuple(value.shape)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size:
        data, _ = value.__array_interface__["data"]
        return "numpy", data, _numpy_name(value.dtype), value.shape, value.strides
    return None


def pieces(value: Any, name: str, *, later_bytes_min: int | None = None) -> list[Piece]:
    """Return the boxes of a tensor that this process has, as memory on the CPU.

    From `later_bytes_min` on, what would have to be copied is left where it is, to be copied by `Piece.take`.
    """
    found = []
    word = word_of(value, name)
    for local, shape, offset in _locals(value, name):
        sizes = tuple(local.shape)
        if math.prod(sizes) == 0 and sizes != shape:
            continue  # this rank has nothing of it
        nbytes = math.prod(sizes) * ELEMENT_BYTES[word]
        if later_bytes_min is not None and nbytes >= later_bytes_min and not _is_memory(local):
            take = _taker(word, shape, offset, local, name)
            found.append(Piece(word, shape, offset, sizes, 0, nbytes, local, 0, take))
            continue
        memory, address, nbytes, copied = _memory(local, name)
        found.append(Piece(word, shape, offset, sizes, address, nbytes, memory, copied))
    return found


def targets(value: Any, name: str, *, later_bytes_min: int | None = None) -> list[Target]:
    """Return the boxes of a tensor that this process has, as memory to be filled.

    From `later_bytes_min` on, memory for what cannot be filled where it is, is left to `Target.beside`.
    """
    found = []
    word = word_of(value, name)
    for local, shape, offset in _locals(value, name):
        sizes = tuple(local.shape)
        if math.prod(sizes) == 0:
            continue
        place, finish = local, None
        if not _is_plain(local):
            nbytes = math.prod(sizes) * ELEMENT_BYTES[word]
            if later_bytes_min is not None and nbytes >= later_bytes_min and _is_writable(local):
                piece = Piece(word, shape, offset, sizes, 0, nbytes, local)
                found.append(Target(piece, None, _besider(piece, local, name)))
                continue
            place, finish = _beside(local)
        memory, address, nbytes, _ = _memory(place, name)
        found.append(Target(Piece(word, shape, offset, sizes, address, nbytes, memory), finish))
    return found


def word_of(value: Any, name: str) -> str:
    """Return the type of its elements as safetensors calls it."""
    dtype = str(value.dtype).removeprefix("torch.") if library(value) == "t" else _numpy_name(value.dtype)
    word = WORDS.get(dtype)
    if word is None:
        message = f"elements of type {dtype} cannot be saved; convert the tensor, or take it out of the state"
        raise UnsupportedError(message, [("tensor", name)])
    return word


def empty(word: str, shape: tuple[int, ...], kind: str) -> Any:
    """Return new memory for a tensor of torch (`t`) or an array of numpy."""
    name = NAMES[word]
    if kind == "t":
        import torch

        dtype = getattr(torch, name, None)
        if dtype is None:
            raise UnsupportedError(f"this version of torch has no {name}; update torch")
        return torch.empty(shape, dtype=dtype)
    return _numpy_empty(name, shape)


def empty_like(word: str, parameter: Any) -> Any:
    """Return new memory for a tensor of torch that lies on devices and ranks as another one does."""
    import torch

    return torch.empty_like(parameter.detach(), dtype=getattr(torch, NAMES[word]))


def view_of(buffer: Any, word: str, shape: tuple[int, ...], kind: str) -> Any:
    """Return a tensor over memory that is there, without a copy."""
    name = NAMES[word]
    if kind == "t":
        import torch

        from forebay._torch import frombuffer

        return frombuffer(buffer, getattr(torch, name)).reshape(shape)
    import numpy

    return numpy.frombuffer(buffer, dtype=_numpy_dtype(name)).reshape(shape)


@functools.lru_cache(maxsize=256)
def _numpy_name(dtype: Any) -> str:
    """Its name, remembered: numpy puts it together anew each time."""
    return str(getattr(dtype, "name", dtype))


def _numpy_dtype(name: str) -> Any:
    import numpy

    if name in _OF_ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            message = f"numpy has no {name}; install torch or the package ml_dtypes to load it"
            raise UnsupportedError(message) from None
        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def _numpy_empty(name: str, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.empty(shape, dtype=_numpy_dtype(name))


def _locals(value: Any, name: str) -> list[tuple[Any, tuple[int, ...], tuple[int, ...]]]:
    """Local tensors, each with the shape of the whole and where it lies in it."""
    if isinstance(value, Shard):
        local = value.local.detach() if library(value) == "t" else value.local
        return [(local, value.shape, value.offset)]
    if hasattr(value, "local_shards"):
        shape = tuple(value.size())
        return [(shard.tensor.detach(), shape, tuple(shard.metadata.shard_offsets)) for shard in value.local_shards()]
    if hasattr(value, "device_mesh") and hasattr(value, "to_local"):
        return _of_dtensor(value, name)
    if hasattr(value, "global_shape") and hasattr(value, "local_offsets"):
        return [
            (
                value.detach()[tuple(slice(o, o + s) for o, s in zip(at, sizes, strict=True))],
                tuple(value.global_shape),
                to,
            )
            for at, sizes, to in zip(value.local_offsets, value.local_sizes, value.global_offsets, strict=True)
        ]
    if library(value) == "t":
        local = value.detach()
    else:
        import numpy

        local = value if isinstance(value, numpy.ndarray) else numpy.asarray(value)
    shape = tuple(int(size) for size in local.shape)
    return [(local, shape, (0,) * len(shape))]


def _of_dtensor(value: Any, name: str) -> list[tuple[Any, tuple[int, ...], tuple[int, ...]]]:
    from torch.distributed.checkpoint import planner_helpers

    if value.device_mesh.get_coordinate() is None:
        return []  # this rank is not in its mesh
    # The same in all versions; `__create_chunk_list__` of the tensor itself came with 2.5.
    chunks = planner_helpers._create_chunk_list(value)
    if len(chunks) != 1:
        raise UnsupportedError("a DTensor whose local tensor is not one box cannot be saved", [("tensor", name)])
    local = value.to_local().detach()
    if tuple(local.shape) != tuple(chunks[0].sizes):
        raise InvalidInputError("a DTensor's local tensor has not the shape of its chunk", [("tensor", name)])
    return [(local, tuple(value.shape), tuple(chunks[0].offsets))]


def _is_plain(local: Any) -> bool:
    """Whether bytes can be read straight into it."""
    if library(local) == "t":
        return local.device.type == "cpu" and local.is_contiguous() and not local.is_conj() and not local.is_neg()
    return bool(local.flags.c_contiguous and local.dtype.isnative and local.flags.writeable)


def _is_memory(local: Any) -> bool:
    """Whether its bytes can be read where they are."""
    if library(local) == "t":
        import torch

        # What has no plain bytes at all is refused at once.
        return local.layout != torch.strided or local.device.type == "meta" or _is_plain(local)
    return bool(local.flags.c_contiguous and local.dtype.isnative)


def _taker(
    word: str, shape: tuple[int, ...], begin: tuple[int, ...], local: Any, name: str
) -> Callable[[tuple[int, ...], tuple[int, ...]], Piece]:
    def take(offset: tuple[int, ...], sizes: tuple[int, ...]) -> Piece:
        box = tuple(slice(at - first, at - first + size) for at, first, size in zip(offset, begin, sizes, strict=True))
        memory, address, nbytes, copied = _memory(local[box], name)
        return Piece(word, shape, offset, sizes, address, nbytes, memory, copied)

    return take


def _is_writable(local: Any) -> bool:
    return library(local) == "t" or bool(local.flags.writeable)


def _besider(whole: Piece, local: Any, name: str) -> Callable[[tuple[int, ...], tuple[int, ...]], Target]:
    def beside(offset: tuple[int, ...], sizes: tuple[int, ...]) -> Target:
        box = zip(offset, whole.offset, sizes, strict=True)
        place, finish = _beside(local[tuple(slice(at - first, at - first + size) for at, first, size in box)])
        memory, address, nbytes, _ = _memory(place, name)
        return Target(Piece(whole.dtype, whole.shape, offset, sizes, address, nbytes, memory), finish)

    return beside


def _beside(local: Any) -> tuple[Any, Callable[[], object]]:
    """Memory of the same shape, and how its bytes get to where they belong."""
    if library(local) == "t":
        import torch

        place = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.device.type == "cuda")
        return place, lambda: local.copy_(place)
    import numpy

    if not local.flags.writeable:
        raise InvalidInputError("an array to load into is read-only")
    array = numpy.empty(local.shape, dtype=local.dtype.newbyteorder("="))
    return array, lambda: numpy.copyto(local, array)


def _memory(local: Any, name: str) -> tuple[Any, int, int, int]:
    """Contiguous bytes on the CPU: what keeps them, address, how many, how many of them were copied."""
    if library(local) != "t":
        import numpy

        plain = numpy.ascontiguousarray(local, dtype=local.dtype.newbyteorder("<")).reshape(local.shape)
        copied = 0 if numpy.shares_memory(plain, local) or not plain.size else plain.nbytes
        return plain, plain.__array_interface__["data"][0], plain.nbytes, copied
    import torch

    if local.layout != torch.strided or local.device.type == "meta":
        message = (
            f"a tensor on {local.device} with layout {local.layout} has no plain bytes; convert it, or take it out"
        )
        raise UnsupportedError(message, [("tensor", name)])
    plain = local.cpu().resolve_conj().resolve_neg().contiguous()
    nbytes = plain.numel() * plain.element_size()
    copied = nbytes if nbytes and plain.data_ptr() != local.data_ptr() else 0
    return plain, plain.data_ptr(), nbytes, copied
