"""Where a checkpoint is: what PyTorch calls its id, as a run and a step, and the node that leads there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay import _native
from forebay.errors import InvalidInputError
from forebay.node import Node, connect

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEME = "forebay://"
#: Threads that copy and read, unless told otherwise.
THREADS_MAX = 8
#: The last part of an id that is a step of the run before it.
_STEP = re.compile(r"(?:step[-_]?)?(\d{1,15})")


@dataclass(frozen=True, slots=True)
class Where:
    """A step of a run.

    >>> Where.of("forebay://lake/run-7/step-100")
    Where(root='forebay://lake/run-7', step=100)
    >>> Where.of("forebay://lake/run-7/steps/100") == Where.of("forebay://lake/run-7/100")
    True
    >>> Where.of("forebay://lake/run-7/final")
    Where(root='forebay://lake/run-7/final', step=0)
    """

    root: str
    step: int

    @classmethod
    def of(cls, checkpoint_id: str | os.PathLike[str], step: int | None = None) -> Where:
        """Read an id: `<root>/<step>`, `<root>/step-<step>`, or any other name, which is a run with the one step 0.

        Args:
            checkpoint_id: `forebay://bucket/…`.
            step: The step, if the id is only the run.

        """
        text = os.fspath(checkpoint_id)
        if not text.startswith(SCHEME):
            raise InvalidInputError(f"an id of a checkpoint begins with {SCHEME}", [("checkpoint_id", text)])
        root = text.rstrip("/")
        if step is None:
            before, _, last = root.removeprefix(SCHEME).rpartition("/")
            found = _STEP.fullmatch(last)
            if not before or found is None:
                return cls(root, 0)
            before = before.removesuffix("/steps") if last.isdigit() else before
            return cls(SCHEME + before, int(found[1]))
        return cls(root, step)

    def __str__(self) -> str:
        return f"{self.root}/{self.step}"


class Link:
    """A node, connected when it is first needed. Pickles as its address."""

    def __init__(self, node: Node | str | None) -> None:
        self._node = node if isinstance(node, Node) else None
        self._address = node if isinstance(node, str) else None

    @property
    def node(self) -> Node:
        """The node."""
        if self._node is None:
            self._node = connect(self._address)
        return self._node

    @property
    def client(self) -> _native.Client:
        """The connection."""
        return self.node._client

    @property
    def address(self) -> str | None:
        """Where the node is, if that is known."""
        return self._node.address if self._node is not None else self._address

    def run(self, where: Where) -> _native.CheckpointRoot:
        """Return the run of a step."""
        return _native.CheckpointRoot(self.client, where.root)

    def __reduce__(self) -> tuple[Callable[[str | None], Link], tuple[str | None]]:
        return Link, (self.address,)


def threads_for(given: int | None) -> int:
    """Return how many threads copy or read: as told, or one for each core up to a limit."""
    return given if given is not None else max(1, min(THREADS_MAX, len(os.sched_getaffinity(0))))
