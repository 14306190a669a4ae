"""What stands in a staged state: references to bytes that the node has already.

They carry no bytes, so that handing them to another thread or process costs nothing. The writer recognises them;
PyTorch's planners see tensors with the boxes that were staged. Both spellings of PyTorch's interface for such tensors
are here: 2.4's, which is a class to inherit from, and that of 2.5 and newer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.distributed.checkpoint import planner as _planner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Ints = tuple[int, ...]
#: What 2.4 asks for; newer versions look only for the methods.
_Checkpointable: Any = getattr(_planner, "_Checkpointable", object)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A save that was handed over to the node."""

    root: str
    step: int
    attempt: str
    #: The save of the rank that staged.
    save: str


@dataclass(frozen=True, slots=True)
class StagedObject:
    """State that is not a tensor, staged."""

    ticket: Ticket
    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of one tensor that a rank has."""

    name: str
    dtype: torch.dtype
    shape: Ints
    boxes: tuple[tuple[Ints, Ints], ...]


class StagedTensor(torch.Tensor, _Checkpointable):
    """A tensor, staged. It has no memory: every operation on it fails."""

    ticket: Ticket
    content: Boxes

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, ticket: Ticket, content: Boxes) -> Self:
        """Make one."""
        made: Self = torch.Tensor._make_wrapper_subclass(cls, content.shape, dtype=content.dtype, device="cpu")
        made.ticket, made.content = ticket, content
        return made

    def __init__(self, ticket: Ticket, content: Boxes) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse."""
        raise RuntimeError(f"a staged tensor has no memory here: {func} cannot be done")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"StagedTensor({self.content.name!r}, save={self.ticket.save!r})"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return StagedTensor, (self.ticket, self.content)

    def __deepcopy__(self, memo: Any) -> StagedTensor:
        return self

    @property
    def nbytes_staged(self) -> int:
        """Bytes of this rank's boxes."""
        elements = sum(math.prod(sizes) for _, sizes in self.content.boxes)
        return elements * int(self.content.dtype.itemsize)

    def __create_write_items__(self, fqn: str, _object: Any) -> list[WriteItem]:
        """Return what is to be written."""
        content = self.content
        is_whole = content.boxes == (((0,) * len(content.shape), content.shape),)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.TENSOR if is_whole else WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk, properties=TensorProperties(dtype=content.dtype), size=torch.Size(content.shape)
                ),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return the boxes."""
        return [
            ChunkStorageMetadata(offsets=torch.Size(offset), sizes=torch.Size(sizes))
            for offset, sizes in self.content.boxes
        ]

    def __get_tensor_shard__(self, _index: Any) -> StagedTensor:
        """Return itself, whatever the box."""
        return self

    # --- the same for 2.4 ---

    def _create_write_items(self, fqn: str, tensor: Any) -> list[WriteItem]:
        return self.__create_write_items__(fqn, tensor)

    def _create_chunk_list(self, _tensor: Any) -> list[ChunkStorageMetadata]:
        return self.__create_chunk_list__()

    def _get_tensor_shard(self, _tensor: Any, _index: Any) -> StagedTensor:
        return self
