"""Files for those who read and write with `read`, `seek` and `write`: what `ForebayFileSystem.open` returns.

There is no cache here: the node has one, and its memory is read in place. A large read is copied once, straight to the
caller. Small reads are taken from a window: a view of a piece of the object, which grows from what was asked for to
`WINDOW_BYTES_MAX` while the reading goes on in order, so that lines and records do not cost a request each, and jumping
about fetches no more than was asked for.
"""

from __future__ import annotations

import io
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from forebay._writer import ObjectWriter
from forebay.errors import AlreadyExistsError

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

    from forebay._native import View
    from forebay.fsspec import ForebayFileSystem
    from forebay.node import Node
    from forebay.objects import ObjectInfo

#: The largest piece of an object that small reads keep.
WINDOW_BYTES_MAX = 4 << 20
#: Where it starts to grow from, once reading goes on in order.
WINDOW_BYTES_MIN = 64 << 10
#: Reads from this size on are not taken from the window.
DIRECT_BYTES_MIN = 1 << 20
#: A file that is written in a transaction stays in memory up to this size and goes to a temporary file beyond.
SPOOL_BYTES_MAX = 64 << 20
#: Files of this process that are sent to the node while they are written, at most; a node has a limit for all of them.
STREAMS_MAX = 8


#: Files that are sent while they are written.
_streams: weakref.WeakSet[WriteFile] = weakref.WeakSet()


class ReadFile(io.RawIOBase):
    """An object, open for reading, in the version that it had when it was opened."""

    mode = "rb"
    blocksize = WINDOW_BYTES_MAX

    def __init__(self, fs: ForebayFileSystem, path: str, info: ObjectInfo) -> None:
        super().__init__()
        self.fs = fs
        self.path = self.name = path
        self.size = info.bytes
        self._node: Node = fs.node
        self._version = info.version
        self._position = 0
        self._view: View | None = None
        self._window = memoryview(b"")
        self._window_start = 0
        self._window_bytes_next = 0

    @property
    def details(self) -> dict[str, Any]:
        """What `fs.info` says."""
        return self.fs.info(self.path)

    def info(self) -> dict[str, Any]:
        """What `fs.info` says."""
        return self.details

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place."""
        self._check_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}.get(whence)
        if start is None:
            raise ValueError(f"invalid whence: {whence}")
        if start + offset < 0:
            raise ValueError("seek before the start of the file")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, all that is left if no size is given."""
        self._check_open()
        left = max(self.size - self._position, 0)
        size = left if size is None or size < 0 else min(size, left)
        if size >= DIRECT_BYTES_MIN:
            data = self._node.read(self.path, self._position, size, version=self._version)
        else:
            data = bytes(self._small(size))
        self._position += len(data)
        return data

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes; the same as `read`."""
        return self.read(size)

    def readall(self) -> bytes:
        """Return everything that is left."""
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        """Fill memory of the caller; return how many bytes there were."""
        self._check_open()
        with memoryview(buffer) as target, target.cast("B") as flat:
            size = min(len(flat), max(self.size - self._position, 0))
            if size >= DIRECT_BYTES_MIN:
                with self._node.get(self.path, self._position, size, version=self._version) as view:
                    flat[:size] = view
            else:
                flat[:size] = self._small(size)
        self._position += size
        return size

    readinto1 = readinto

    def readline(self, size: int | None = -1) -> bytes:
        """Return the bytes up to and with the next line feed."""
        self._check_open()
        limit = self.size if size is None or size < 0 else size
        pieces: list[bytes] = []
        while limit > 0 and self._position < self.size:
            piece = bytes(self._small(min(limit, WINDOW_BYTES_MIN, self.size - self._position)))
            end = piece.find(b"\n") + 1
            piece = piece[:end] if end else piece
            pieces.append(piece)
            self._position += len(piece)
            limit -= len(piece)
            if end:
                break
        return b"".join(pieces)

    def close(self) -> None:
        """Give the window's memory back."""
        self._forget_window()
        super().close()

    def _small(self, size: int) -> memoryview:
        """A small piece from here on, out of the window, which is moved if it does not cover it."""
        if size == 0:
            return memoryview(b"")
        start = self._position - self._window_start
        if not 0 <= start <= start + size <= len(self._window):
            self._move_window(size)
            start = self._position - self._window_start
        return self._window[start : start + size]

    def _move_window(self, size: int) -> None:
        # In order: the new window starts inside the old one, or right behind it.
        in_order = 0 <= self._position - self._window_start <= len(self._window)
        wanted = max(self._window_bytes_next, size) if in_order and self._window_bytes_next else size
        doubled = max(2 * self._window_bytes_next, WINDOW_BYTES_MIN)
        self._forget_window()
        self._window_bytes_next = min(doubled, WINDOW_BYTES_MAX) if in_order else WINDOW_BYTES_MIN
        self._view = self._node.get(self.path, self._position, wanted, version=self._version)
        self._window = memoryview(self._view)
        self._window_start = self._position

    def _forget_window(self) -> None:
        self._window.release()
        self._window = memoryview(b"")
        if self._view is not None:
            self._view.release()
            self._view = None

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed file")

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.fs, self.path, self._version, self._position)


def _reopen(fs: ForebayFileSystem, path: str, version: str, position: int) -> ReadFile:
    file = cast(ReadFile, fs.open(path, "rb"))
    file._version = version
    file.seek(position)
    return file


class WriteFile(io.RawIOBase):
    """An object that is being written. Nobody sees it before `close`, which returns when the lake has it.

    What is written goes on to the node part by part, so that the file may be larger than memory. Only where that cannot
    be, it waits in a temporary file: in a transaction, which decides later, and when this process has many files open.
    """

    mode = "wb"

    def __init__(
        self, fs: ForebayFileSystem, path: str, *, start: bytes = b"", if_absent: bool = False, autocommit: bool = True
    ) -> None:
        super().__init__()
        self.fs = fs
        self.path = self.name = path
        self._if_absent = if_absent
        self._autocommit = autocommit
        self._target: BinaryIO
        if autocommit and len(_streams) < STREAMS_MAX:
            self._target = cast(BinaryIO, fs.node.writer(path, if_absent=if_absent))
            _streams.add(self)
        else:
            self._target = cast(BinaryIO, tempfile.SpooledTemporaryFile(SPOOL_BYTES_MAX))  # noqa: SIM115 - see commit
        self._target.write(start)

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """How much was written."""
        return self._target.tell()

    def write(self, data: Buffer) -> int:
        """Add bytes at the end."""
        if self.closed:
            raise ValueError("I/O operation on a closed file")
        with memoryview(data) as memory:
            self._target.write(memory)
            return memory.nbytes

    def close(self) -> None:
        """Write the object, unless a transaction does so later."""
        if self.closed:
            return
        try:
            if self._autocommit:
                self.commit()
        finally:
            super().close()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is not None:
            # What was written so far is not what the caller wanted to write.
            self._autocommit = False
            self.discard()
        self.close()

    def __del__(self) -> None:
        # What nobody closed was not finished: the base class would close it, and so write half an object.
        if not self.closed:
            self._autocommit = False
            self.discard()
            super().close()

    def commit(self) -> None:
        """Make the object visible."""
        _streams.discard(self)
        if not isinstance(self._target, ObjectWriter):
            self._target.seek(0)
            self.fs.node.put(self.path, self._target, if_absent=self._if_absent)
        self._target.close()

    def discard(self) -> None:
        """Forget what was written."""
        _streams.discard(self)
        if isinstance(self._target, ObjectWriter):
            self._target.abort()
        else:
            self._target.close()


def check_absent(fs: ForebayFileSystem, path: str) -> None:
    """Raise if there is such an object, so that an exclusive `open` fails at once and not only at the end."""
    if fs.node.exists(path):
        raise AlreadyExistsError("there is such an object already", [("object", path)])
