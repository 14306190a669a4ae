"""`Node`: what a program does with a node, whether it runs beside it, far away, or inside the same process."""

from __future__ import annotations

import atexit
import os
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from forebay import _native
from forebay._torch import as_buffer
from forebay._writer import ObjectWriter
from forebay.errors import (
    AlreadyExistsError,
    ForebayError,
    InvalidInputError,
    NotFoundError,
    PreconditionFailedError,
    UnsupportedError,
)
from forebay.objects import InfoRow, Listing, ObjectInfo, PutReceipt, Stats

if TYPE_CHECKING:
    from forebay._native import View, WritableBuffer
    from forebay.aio import AsyncNode

#: What one call may take unless told otherwise.
TIMEOUT_SECONDS = 600.0
#: Bytes of a file that one step of `put` copies.
COPY_BYTES = 4 << 20

#: What can be asked for in a batch: a whole object, `(name, offset, length)`, or `(shard, member)`.
Item = str | tuple[str, int, int] | tuple[str, str]


class Node:
    """A node, as a program sees it. Made by `connect` and `open`.

    Many threads may share one. It is safe under fork: a forked child talks to the same node over connections of its
    own. It pickles as its address, so that spawned processes find the same node.

    Names are `bucket/key`, or `forebay://bucket/key`.

    >>> import forebay
    >>> node = forebay.open("memory://")
    >>> node.create_bucket("demo")
    >>> node.put("demo/hello", b"hello, lake").bytes
    11
    >>> bytes(node.get("demo/hello"))
    b'hello, lake'
    >>> node.close()
    """

    def __init__(self, client: _native.Client, embedded: _native.EmbeddedNode | None = None) -> None:
        self._client = client
        self._embedded = embedded
        self._aio: AsyncNode | None = None
        #: Those with saves on their way, which end with an embedded node.
        self._before_close: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def address(self) -> str:
        """Where the node is: the path of its socket, or an `http://` or `https://` address."""
        return self._client.address

    @property
    def aio(self) -> AsyncNode:
        """The same calls for asyncio."""
        if self._aio is None:
            from forebay.aio import AsyncNode

            self._aio = AsyncNode(self)
        return self._aio

    # --- reading ---

    def get(
        self,
        name: str,
        offset: int = 0,
        length: int | None = None,
        *,
        member: str | None = None,
        version: str | None = None,
    ) -> View:
        """Return the bytes of an object, or of a range or tar member of it, as a read-only buffer.

        On the host of the node nothing is copied: the view is the node's own memory. It keeps that memory until it is
        released, by `release()`, by leaving a `with` block, or with the last buffer made from it.

        Args:
            name: `bucket/key`.
            offset: First byte. A negative one counts from the end, and then `length` must be left out.
            length: How many bytes; up to the end if left out. Cut at the end of the object.
            member: Return this member of a tar file instead.
            version: The version it must have; else `PreconditionFailedError`.

        >>> import forebay
        >>> with forebay.open("memory://") as node:
        ...     node.create_bucket("demo")
        ...     _ = node.put("demo/digits", b"0123456789")
        ...     with node.get("demo/digits", 3, 4) as view:
        ...         print(len(view), bytes(view))
        4 b'3456'

        """
        return self._client.get(name, offset, _length(length), member, version)

    @overload
    def get_batch(self, items: Iterable[Item], *, errors: Literal["raise"] = "raise") -> list[View]: ...

    @overload
    def get_batch(self, items: Iterable[Item], *, errors: Literal["return"]) -> list[View | ForebayError]: ...

    def get_batch(self, items: Iterable[Item], *, errors: Literal["raise", "return"] = "raise") -> Sequence[Any]:
        """Return many views with one request, in the order of the items, however cold they are.

        Args:
            items: Each a name, `(name, offset, length)`, or `(shard, member)` for a file in a tar shard.
            errors: `"raise"` raises the first failure; `"return"` puts the exception in the place of its view.

        >>> import forebay
        >>> with forebay.open("memory://") as node:
        ...     node.create_bucket("demo")
        ...     _ = node.put("demo/digits", b"0123456789")
        ...     views = node.get_batch(["demo/digits", ("demo/digits", 8, 2), "demo/none"], errors="return")
        ...     [bytes(view) for view in views[:2]], views[2].kind
        ([b'0123456789', b'89'], 'not_found')

        """
        found = self._client.get_batch(items if isinstance(items, list) else list(items))
        if errors == "raise":
            for one in found:
                if isinstance(one, ForebayError):
                    raise one
        elif errors != "return":
            raise ValueError(f'errors is "raise" or "return", not {errors!r}')
        return found

    def read_into(self, name: str, target: Any, offset: int = 0) -> int:
        """Copy bytes of an object into memory of the caller, once, and return how many.

        Args:
            name: `bucket/key`.
            target: Writable contiguous memory, such as a `bytearray`, numpy array or CPU tensor. It is filled
                unless the object ends before.
            offset: First byte of the object.

        >>> import forebay
        >>> target = bytearray(4)
        >>> with forebay.open("memory://") as node:
        ...     node.create_bucket("demo")
        ...     _ = node.put("demo/digits", b"0123456789")
        ...     node.read_into("demo/digits", target, offset=6)
        4
        >>> target
        bytearray(b'6789')

        """
        return self._client.read_into(name, as_buffer(target), offset)

    def read(self, name: str, offset: int = 0, length: int | None = None, *, version: str | None = None) -> bytes:
        """Return bytes of an object as `bytes`, copied once. Fewer than `length` if the object ends before."""
        return self._client.read(name, offset, _length(length), version)

    # --- writing ---

    def put(
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
        """Write an object, whole or not at all, and return when the lake has it. It may be larger than any memory.

        Args:
            name: `bucket/key`.
            data: Contiguous memory, which is copied once; a buffer of `alloc`, which is not copied and is used up; or
                an open binary file, which is read to its end, piece by piece.
            durability: When the call returns; `"lake"` is when the lake has the object.
            content_type: Its content type.
            metadata: User metadata.
            if_absent: Only if there is no such object yet; else `AlreadyExistsError`.
            if_version: Only if it has this version now; else `PreconditionFailedError`.

        """
        if durability != "lake":
            raise UnsupportedError(f'durability is "lake", not {durability!r}')
        if hasattr(data, "readinto"):
            with self.writer(
                name, content_type=content_type, metadata=metadata, if_absent=if_absent, if_version=if_version
            ) as target:
                shutil.copyfileobj(data, target, COPY_BYTES)
            assert target.receipt is not None  # closed without an error
            return target.receipt
        pairs = [(str(key), str(value)) for key, value in (metadata or {}).items()]
        try:
            version, size = self._client.put(name, as_buffer(data), content_type, pairs, if_absent, if_version)
        except PreconditionFailedError as refused:
            if if_absent:
                raise AlreadyExistsError("there is such an object already", [("object", name)]) from refused
            raise
        return PutReceipt(version, size)

    def writer(
        self,
        name: str,
        *,
        size: int | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = False,
        if_version: str | None = None,
    ) -> ObjectWriter:
        """Return a file to write an object to, piece by piece; the object is there when the file is closed.

        Nothing of it is kept in this process but the last few MiB, so it may be larger than memory. The arguments are
        those of `put`; `size` is the exact size of the object, if it is known.

        >>> import forebay
        >>> with forebay.open("memory://") as node:
        ...     node.create_bucket("demo")
        ...     with node.writer("demo/log") as file:
        ...         for line in (b"one", b"two"):
        ...             _ = file.write(line)
        ...     bytes(node.get("demo/log"))
        b'onetwo'
        """
        pairs = [(str(key), str(value)) for key, value in (metadata or {}).items()]
        writer = self._client.writer(name, size, content_type, pairs, if_absent, if_version)
        return ObjectWriter(writer, name, if_absent=if_absent)

    def alloc(self, size: int) -> WritableBuffer:
        """Return writable memory of the node, to build an object in; `put` of it copies nothing.

        >>> import forebay
        >>> with forebay.open("memory://") as node:
        ...     node.create_bucket("demo")
        ...     buffer = node.alloc(4)
        ...     with memoryview(buffer) as memory:
        ...         memory[:] = b"abcd"
        ...     _ = node.put("demo/built", buffer)
        ...     bytes(node.get("demo/built"))
        b'abcd'
        """
        if size < 0:
            raise InvalidInputError(f"the size of a buffer is 0 or more bytes, not {size}")
        return self._client.alloc(size)

    def delete(self, name: str) -> None:
        """Remove an object; fine if it is not there."""
        self._client.delete(name)

    # --- looking ---

    def stat(self, name: str) -> ObjectInfo:
        """Return what is known about an object; `NotFoundError` if there is none."""
        return _info(self._client.stat(name))

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        try:
            self._client.stat(name)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Iterate over all objects whose name starts with `prefix` (`bucket/` or `bucket/some/start`), by name.

        >>> import forebay
        >>> with forebay.open("memory://") as node:
        ...     node.create_bucket("demo")
        ...     for name in ["demo/a/1", "demo/a/2", "demo/b"]:
        ...         _ = node.put(name, b"")
        ...     print([info.name for info in node.list("demo/a/")])
        ['demo/a/1', 'demo/a/2']
        """
        listing = self._client.list(*_bucket_and_prefix(prefix), None)
        while True:
            objects, _ = listing.next()
            if not objects:
                return
            yield from (_info(one) for one in objects)

    def list_level(self, prefix: str, delimiter: str = "/") -> Listing:
        """Return one level of a bucket: what lies directly under `prefix`, and the prefixes of what lies deeper."""
        level = Listing([], [])
        listing = self._client.list(*_bucket_and_prefix(prefix), delimiter)
        while True:
            objects, prefixes = listing.next()
            if not objects and not prefixes:
                return level
            level.objects.extend(_info(one) for one in objects)
            level.prefixes.extend(prefixes)

    def buckets(self) -> Sequence[str]:
        """Return the names of all buckets."""
        return self._client.buckets()

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket; fine if it is there."""
        self._client.create_bucket(name)

    def ping(self) -> None:
        """Return if the node is there and ready; else `UnavailableError`."""
        self._client.ping()

    def stats(self) -> Stats:
        """Return what this client has done: bytes by source, waits."""
        return Stats(**self._client.stats())

    # --- life ---

    def close(self) -> None:
        """Give the connections back, and stop the node if it is embedded. Views stay valid.

        Saves of `Checkpoints` that an embedded node has on their way are waited for.
        """
        for one in list(self._before_close):
            one._end()
        if self._aio is not None:
            self._aio._close()
        self._client.close()
        if self._embedded is not None and self._embedded.pid == os.getpid():
            self._embedded.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _connect_again, (self.address, *self._client.tls)

    def __repr__(self) -> str:
        kind = "embedded node" if self._embedded is not None else "node"
        return f"<forebay {kind} at {self.address}>"


def _length(length: int | None) -> int | None:
    """Check how many bytes are asked for: only an offset may be negative."""
    if length is not None and length < 0:
        raise InvalidInputError(f"a length is 0 or more bytes, or None for all, not {length}")
    return length


def _info(row: InfoRow) -> ObjectInfo:
    name, size, version, modified, content_type, metadata = row
    return ObjectInfo(name, size, version, modified, content_type, dict(metadata))


def _bucket_and_prefix(name: str) -> tuple[str, str]:
    bucket, _, prefix = name.removeprefix("forebay://").partition("/")
    return bucket, prefix


def connect(
    address: str | None = None,
    *,
    timeout: float = TIMEOUT_SECONDS,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> Node:
    """Connect to a node.

    Args:
        address: The path of its socket, or an `http://` or `https://` address. By default what `FOREBAY_NODE` says,
            else the socket of this user's node on this host.
        timeout: Seconds that one call may take, with what the node waits for a lake that throttles or is away.
        ca: PEM file of the authorities that an `https://` node's certificate may be signed by. By default what
            `FOREBAY_CA` says, else those that this machine trusts.
        cert: PEM file of a client certificate, for a node that asks for one. By default what `FOREBAY_CLIENT_CERT`
            says.
        key: PEM file of its private key. By default what `FOREBAY_CLIENT_KEY` says.

    """
    return _connect_again(address, _path(ca), _path(cert), _path(key), timeout)


def _connect_again(
    address: str | None, ca: str | None, cert: str | None, key: str | None, timeout: float = TIMEOUT_SECONDS
) -> Node:
    return Node(_native.Client(address, timeout, ca, cert, key))


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


#: Embedded nodes that are stopped when the process ends.
_embedded: weakref.WeakSet[Node] = weakref.WeakSet()


def open(  # noqa: A001 - the name that people expect in `forebay.open`
    url: str,
    *,
    ram: str | int | None = None,
    nvme: str | int | None = None,
    data: str | os.PathLike[str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Node:
    """Start a node inside this process, in front of a lake, and connect to it. No server is needed.

    It listens on a private socket, so forked and spawned processes that get the `Node` become clients of it, and share
    its memory. It ends with `close()` or with the process.

    Args:
        url: The lake: a folder, `file:///path`, `s3://bucket`, `gs://…`, `az://…`, or `memory://`.
        ram: Budget of the RAM tier, such as `"4GiB"`.
        nvme: Budget of the NVMe tier, which lies in `data`; off by default.
        data: Folder for what outlives the process; a temporary one if left out.
        timeout: Seconds that one call may take, with what the node waits for a lake that throttles or is away.

    """
    embedded = _native.EmbeddedNode(
        url,
        None if ram is None else str(ram),
        None if nvme is None else str(nvme),
        _path(data),
    )
    try:
        client = _native.Client(embedded.socket, timeout, None, None, None)
    except BaseException:
        embedded.shutdown()
        raise
    node = Node(client, embedded)
    if not _embedded:
        atexit.register(_close_embedded)
    _embedded.add(node)
    return node


def _close_embedded() -> None:
    for node in list(_embedded):
        node.close()
