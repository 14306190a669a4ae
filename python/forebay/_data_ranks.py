"""Who reads which part of the data: the ranks of a loader, found out when it is used and not when it is made.

Loaders are often made before there are ranks: at the top of a script that Lightning starts once more for every device,
or in the driver of Ray Train, which sends them to its workers. So a loader that was not told its rank asks again at the
beginning of every iteration. Ranks that share data (tensor, pipeline and context parallelism) are told apart by a
device mesh.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from forebay._ranks import UnknownRankError, check_ranks, said_ranks
from forebay.errors import InvalidInputError

#: Dimensions of a device mesh whose ranks read different data …
_DATA_DIMS = ("dp", "ddp", "fsdp", "hsdp", "data", "batch", "replicate", "shard")
#: … and those whose ranks read the same.
_MODEL_DIMS = ("tp", "pp", "cp", "sp", "ep", "etp", "tensor", "pipeline", "context", "sequence", "expert", "model")
#: Classes that take every n-th part of what a dataset gives, by module.
_SHARDING = {
    "accelerate.data_loader": ("IterableDatasetShard", "DataLoaderDispatcher"),
    "transformers.trainer_pt_utils": ("IterableDatasetShard",),
}


class DataRanks:
    """Which part of the data this process reads. Pickles, and is looked up anew where it arrives."""

    def __init__(self, rank: int | None, world_size: int | None, mesh: Any = None) -> None:
        check_ranks(rank, world_size)
        if mesh is not None and rank is not None:
            raise InvalidInputError("mesh= says rank and world_size: give it, or the two of them")
        #: Whether somebody said which rank this is.
        self.is_given = mesh is not None or rank is not None
        self.rank, self.world_size = rank or 0, world_size or 1
        #: Whether the two above are more than what holds for a process alone.
        self._is_known = self.is_given
        if mesh is not None:
            self.rank, self.world_size = ranks_of_mesh(mesh)
        # It may be initialised by the time that the data is read.
        with contextlib.suppress(UnknownRankError):
            self.look()

    def look(self) -> bool:
        """Look up who this process is now, and return whether that is another one than before."""
        if self.is_given:
            return False
        try:
            said = said_ranks()
        except UnknownRankError:
            # A worker of a process that knew it.
            if self._is_known:
                return False
            raise
        if said is None:
            return False
        self._is_known = True
        has_changed = said != (self.rank, self.world_size)
        self.rank, self.world_size = said
        return has_changed


def ranks_of_mesh(mesh: Any) -> tuple[int, int]:
    """Return rank and number of ranks that read different data, by a `DeviceMesh` of torch.

    A mesh of one dimension is that of the data. Of several dimensions the names say which ones are.
    """
    place = mesh.get_coordinate()
    if place is None:
        raise InvalidInputError("this process is not in the device mesh: give the mesh of a rank that reads data")
    names = mesh.mesh_dim_names
    if len(place) == 1 and (names is None or names[0] not in _MODEL_DIMS):
        return int(place[0]), int(mesh.size())
    rank, size = 0, 1
    for dimension, at in enumerate(place):
        if _reads_own_data(names, dimension):
            rank, size = rank * mesh.size(dimension) + at, size * mesh.size(dimension)
    return int(rank), int(size)


def _reads_own_data(names: tuple[str, ...] | None, dimension: int) -> bool:
    name = names[dimension] if names else None
    if name in _MODEL_DIMS:
        return False
    if name is not None and (name in _DATA_DIMS or name.startswith(("dp_", "data_"))):
        return True
    raise InvalidInputError(
        f"whether ranks along dimension {name or dimension!r} of the mesh read different data is not known: give the "
        'mesh of those that do, such as mesh=mesh["dp"]; ranks along all others get the same batches'
    )


def outer_sharding() -> str | None:
    """Return who takes every n-th part of what this call gives, if anybody does: the module of accelerate's wrappers.

    They leave no mark on a dataset, but stand on the stack when they ask it for something, also in a forked worker.
    """
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module in _SHARDING and type(frame.f_locals.get("self")).__name__ in _SHARDING[module]:
            return str(module).partition(".")[0]
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
