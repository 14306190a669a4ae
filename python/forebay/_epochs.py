"""`Epochs`: which epoch an iteration of torch's `DataLoader` is, agreed by its workers.

Torch tells a dataset nothing of epochs: workers are forked anew for each, or live on and are asked for another
iterator. So the number lies in a small file that the workers of one process share, under a lock. The first worker that
begins an iteration takes the next epoch, and the others of the same iteration find it there. What an iteration is, all
its workers know: the base seed that torch gave them, and the how-manieth iterator of their process it is.

A file belongs to one process that iterates (a rank) and its workers. Ranks that got the dataset by fork or pickle count
for themselves.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import tempfile
import weakref
from typing import Any, Self


class Epochs:
    """The epochs of one dataset in this process and its workers."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._make_folder()

    def _make_folder(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="forebay-epochs-")
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def next(self, worker: Any) -> int:
        """Return the epoch that the next iteration will be; for `worker` see `begin`."""
        with _Record(self._path(is_worker=worker is not None)) as record:
            return int(record.content.get("next", self._first))

    def set_next(self, epoch: int) -> None:
        """Let the next iteration be this epoch. Workers that live on see it too."""
        with _Record(self._path(is_worker=False)) as record:
            record.content = {"next": epoch, "chosen": epoch}

    def chosen(self, worker: Any) -> int | None:
        """Return the epoch that `set_next` was last given, or `None`; for `worker` see `begin`."""
        with _Record(self._path(is_worker=worker is not None)) as record:
            found = record.content.get("chosen")
        return None if found is None else int(found)

    def begin(self, worker: Any, ordinal: int, resumed: int | None = None) -> int:
        """Begin an iteration and return its epoch.

        Args:
            worker: Torch's worker info; `None` in a process without workers.
            ordinal: How many iterations this process had begun before.
            resumed: The epoch of a state that the iteration goes on with.

        """
        number = -1 if worker is None else worker.id
        iteration = None if worker is None else [worker.seed - worker.id, ordinal]
        with _Record(self._path(is_worker=worker is not None)) as record:
            known = record.content
            begun = known.get("begun", [])
            if iteration is None or known.get("iteration") != iteration or number in begun:
                # A worker cannot begin one iteration twice, so this is another one with the same seed.
                known["epoch"] = known.get("next", self._first)
                known["iteration"], begun = iteration, []
            if resumed is not None:
                known["epoch"] = resumed
            known["begun"], known["next"] = [*begun, number], known["epoch"] + 1
            return int(known["epoch"])

    def _path(self, *, is_worker: bool) -> str:
        parent = multiprocessing.parent_process() if is_worker else None
        owner = os.getpid() if parent is None else parent.pid
        return os.path.join(self._folder, str(owner))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not os.path.isdir(self._folder):
            # On another host, or after the process that made it has ended.
            self._make_folder()


class _Record:
    """The file, locked while it is looked at; what is in it is written back."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.content: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        data = os.read(self._file, 1 << 20)
        self.content = json.loads(data) if data else {}
        return self

    def __exit__(self, *_: object) -> None:
        data = json.dumps(self.content).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))
        os.close(self._file)


def _remove(folder: str, owner: int) -> None:
    """Remove the folder, in the process that made it alone: others may have it by fork."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
