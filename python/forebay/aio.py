"""`node.aio`: the calls of a `Node` for asyncio.

Each call runs on a thread of a small pool, because the client underneath waits on a socket or copies memory with the
interpreter let go. A cancelled task stops the wait of its thread within a fraction of a second.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from forebay import _native
from forebay.node import _bucket_and_prefix, _info
from forebay.objects import Listing, ObjectInfo, PutReceipt

if TYPE_CHECKING:
    from forebay._native import View, WritableBuffer
    from forebay.node import Item, Node

P = ParamSpec("P")
T = TypeVar("T")

#: Calls of one node that may wait at the same time; more wait for a thread.
THREADS_MAX = 32


class AsyncNode:
    """The calls of a node as coroutines; what they mean is told at `Node`.

    >>> import asyncio, forebay
    >>> async def main():
    ...     with forebay.open("memory://") as node:
    ...         await node.aio.create_bucket("demo")
    ...         await node.aio.put("demo/a", b"abc")
    ...         return bytes(await node.aio.get("demo/a"))
    >>> asyncio.run(main())
    b'abc'
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def get(
        self,
        name: str,
        offset: int = 0,
        length: int | None = None,
        *,
        member: str | None = None,
        version: str | None = None,
    ) -> View:
        """See `Node.get`."""
        return await self._call(self._node.get, name, offset, length, member=member, version=version)

    async def get_batch(self, items: Iterable[Item], *, errors: Literal["raise", "return"] = "raise") -> Sequence[Any]:
        """See `Node.get_batch`."""
        call: Callable[..., Sequence[Any]] = self._node.get_batch
        return await self._call(call, items, errors=errors)

    async def read_into(self, name: str, target: Any, offset: int = 0) -> int:
        """See `Node.read_into`. After a cancellation the target may still be written to for a moment."""
        return await self._call(self._node.read_into, name, target, offset)

    async def read(self, name: str, offset: int = 0, length: int | None = None, *, version: str | None = None) -> bytes:
        """See `Node.read`."""
        return await self._call(self._node.read, name, offset, length, version=version)

    async def put(
        self,
        name: str,
        data: Any,
        *,
        durability: Literal["lake"] = "lake",
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_version: str | None = None,
    ) -> PutReceipt:
        """See `Node.put`. A cancelled write may or may not happen."""
        return await self._call(
            self._node.put,
            name,
            data,
            durability=durability,
            content_type=content_type,
            metadata=metadata,
            if_absent=if_absent,
            if_version=if_version,
        )

    async def alloc(self, size: int) -> WritableBuffer:
        """See `Node.alloc`."""
        return await self._call(self._node.alloc, size)

    async def delete(self, name: str) -> None:
        """See `Node.delete`."""
        await self._call(self._node.delete, name)

    async def stat(self, name: str) -> ObjectInfo:
        """See `Node.stat`."""
        return await self._call(self._node.stat, name)

    async def exists(self, name: str) -> bool:
        """See `Node.exists`."""
        return await self._call(self._node.exists, name)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See `Node.list`; an asynchronous iterator."""
        listing = self._node._client.list(*_bucket_and_prefix(prefix), None)
        while True:
            objects, _ = await self._call(listing.next)
            if not objects:
                return
            for one in objects:
                yield _info(one)

    async def list_level(self, prefix: str, delimiter: str = "/") -> Listing:
        """See `Node.list_level`."""
        return await self._call(self._node.list_level, prefix, delimiter)

    async def buckets(self) -> Sequence[str]:
        """See `Node.buckets`."""
        return await self._call(self._node.buckets)

    async def create_bucket(self, name: str) -> None:
        """See `Node.create_bucket`."""
        await self._call(self._node.create_bucket, name)

    async def ping(self) -> None:
        """See `Node.ping`."""
        await self._call(self._node.ping)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        cancellation = _native.Cancellation()
        future = self._threads().submit(cancellation.run, function, *args, **kwargs)
        try:
            result: T = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
        return result

    def _threads(self) -> ThreadPoolExecutor:
        # The threads of a pool do not come along into a forked child; it makes its own.
        if self._pool is None or self._pid != os.getpid():
            self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="forebay-aio")
            self._pid = os.getpid()
        return self._pool

    def _close(self) -> None:
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
