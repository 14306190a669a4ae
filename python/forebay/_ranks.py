"""Who saves together: which rank this process is, of how many, and how ranks tell each other something.

With torch.distributed initialized its processes are the ranks, and they talk through a gloo group of it, on any number
of hosts. Without it ranks are what `RANK` and `WORLD_SIZE` say, or what the caller says, and they talk through the
node, which all of them have to share: one host.

Every all-gather is made by all ranks in the same order, as with any collective of torch.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import sys
import zlib
from typing import TYPE_CHECKING, Any

from forebay.errors import ConflictError, ForebayError, InvalidInputError, TimedOutError, from_failure

if TYPE_CHECKING:
    from forebay._native import CheckpointRoot

#: What launchers tell all processes of one run, and no other.
_RUN_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT")
#: Runs of one launcher that the node may remember.
_MEETINGS_MAX = 1000


class Ranks:
    """The ranks of a job, seen by one of them."""

    def __init__(self, rank: int, size: int, root: CheckpointRoot, run: str | None, group: Any = None) -> None:
        if not 0 <= rank < size:
            raise InvalidInputError(f"rank is {rank}, which is not one of {size} ranks")
        self.rank = rank
        self.size = size
        self._root = root
        self._run = run
        #: A group of torch.distributed, or nothing.
        self._group = group
        self._rounds = 0
        #: What all ranks of this run, and no others, know; found in the first all-gather.
        self._session = ""

    def all_gather(self, about: str, mine: Any, timeout: float) -> list[Any]:
        """Give something that JSON can have to all ranks; return what each of them gave, in order of ranks.

        Whoever gives an exception raises it, and so do the others, with the rank that gave it.
        """
        self._rounds += 1
        failure = mine if isinstance(mine, ForebayError) else None
        said = _of_error(failure) if failure is not None else {"said": mine}
        if self.size == 1:
            found = [said]
        else:
            payload = zlib.compress(json.dumps(said).encode(), 1)
            found = [json.loads(zlib.decompress(one)) for one in self._all(about, payload, timeout)]
        if failure is not None:
            raise failure
        for rank, one in enumerate(found):
            if "failed" in one:
                kind, message, context = one["failed"]
                raise from_failure(kind, f"rank {rank} failed: {message}", [*context, ("rank", str(rank))])
        return [one["said"] for one in found]

    def _all(self, about: str, payload: bytes, timeout: float) -> list[bytes]:
        if self._group is None:
            if not self._session:
                self._session = self._meet(timeout)
            key = f"{self._session} {self._rounds} {about}"
            return self._root.all_gather(key, self.rank, self.size, payload, timeout)
        import torch.distributed as dist

        try:
            # Names the ranks that do not come, which an all-gather would not.
            patience = datetime.timedelta(seconds=timeout)
            dist.monitored_barrier(self._group, timeout=patience, wait_all_ranks=True)
            found: list[Any] = [None] * self.size
            dist.all_gather_object(found, payload, group=self._group)
        except RuntimeError as error:
            raise TimedOutError(f"the ranks did not come together: {error}") from error
        return found

    def _meet(self, timeout: float) -> str:
        """Agree on a name that no run before had.

        The node remembers all-gathers for a while. A run that was started again by the same launcher may find those of
        the run before: then what this rank gives is not what is there, and all ranks go on to the next name.
        """
        mine = secrets.token_bytes(8)
        for number in range(_MEETINGS_MAX):
            key = f"{self._root.url} {self._run} {self.size} {number}"
            try:
                found = self._root.all_gather(key, self.rank, self.size, mine, timeout)
            except ConflictError:
                continue
            return hashlib.blake2b(b"".join(found), digest_size=16).hexdigest()
        raise InvalidInputError("this run cannot be told apart from others: give it a name with job=")


def check_ranks(rank: int | None, world_size: int | None) -> None:
    """Refuse one without the other."""
    if (rank is None) != (world_size is None):
        raise InvalidInputError("rank and world_size belong together: give both or none")


class UnknownRankError(InvalidInputError):
    """The environment says how many ranks there are, but not which one this is."""


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, of torch.distributed, of the environment, or 0 and 1."""
    check_ranks(rank, world_size)
    if rank is not None and world_size is not None:
        return rank, world_size
    return said_ranks() or (0, 1)


def said_ranks() -> tuple[int, int] | None:
    """Return rank and world size as torch.distributed or the environment say them now; `None` if neither does."""
    dist = _torch_distributed()
    if dist is not None:
        return int(dist.get_rank()), int(dist.get_world_size())
    if not os.environ.get("RANK") and not os.environ.get("WORLD_SIZE"):
        return None
    size = _number("WORLD_SIZE", 1)
    if size > 1 and not os.environ.get("RANK"):
        raise UnknownRankError(
            f"WORLD_SIZE is {size}, but RANK is not set and torch.distributed is not initialised: initialise it first, "
            "set RANK, or give rank= and world_size="
        )
    return _number("RANK", 0), size


def ranks_of(root: CheckpointRoot, rank: int | None, size: int | None, run: str | None) -> Ranks:
    """Find out who this process is among which ranks."""
    rank, size = rank_and_world_size(rank, size)
    dist = _torch_distributed()
    group = _gloo(dist) if dist is not None and size > 1 and size == dist.get_world_size() else None
    return Ranks(rank, size, root, run or _run(), group)


def _torch_distributed() -> Any:
    """torch.distributed, if the program uses it."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _gloo(dist: Any) -> Any:
    """A group on the CPU that nobody else uses: the job's own may be in the middle of something."""
    return dist.new_group(backend="gloo")


def _run() -> str:
    """What all processes of this run have in common: what the launcher says, and the launcher itself."""
    said = [f"{name}={os.environ[name]}" for name in _RUN_VARIABLES if name in os.environ]
    return " ".join([f"of={os.getppid()}", *said])


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal():
        raise InvalidInputError(f"{variable} is {text!r}, which is no number")
    return int(text)


def _of_error(error: ForebayError) -> dict[str, Any]:
    return {"failed": (error.kind, error.message, error.context)}
