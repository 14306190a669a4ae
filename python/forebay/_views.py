"""Views that came from another process."""

from __future__ import annotations

from forebay import _native
from forebay.node import TIMEOUT_SECONDS

#: One client for each node whose views this process was sent. A forked child may use them: they are safe under fork.
_clients: dict[str, _native.Client] = {}


def open_handle(address: str, handle: bytes, start: int = 0, length: int | None = None) -> _native.View:
    """Return the view behind a pickled one, or a part of it: the same memory, or the same version read again."""
    client = _clients.get(address)
    if client is None:
        client = _clients[address] = _native.Client(address, TIMEOUT_SECONDS, None, None, None)
    view = client.open_handle(handle)
    return view if length is None else view.part(start, length)
