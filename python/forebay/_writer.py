"""Objects that are written piece by piece: what `Node.writer` returns."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from forebay._torch import as_buffer
from forebay.errors import AlreadyExistsError, PreconditionFailedError
from forebay.objects import PutReceipt

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

    from forebay import _native


class ObjectWriter(io.RawIOBase):
    """An object that is being written: a file that can only be written to, in order.

    Nobody sees the object before `close`, which returns when the lake has it; `receipt` then says which version that
    is.
    Leaving a `with` block by an exception gives it up, as does `abort`, and as does the death of this process.
    """

    mode = "wb"
    #: What was written; there after `close`.
    receipt: PutReceipt | None = None

    def __init__(self, writer: _native.ObjectWriter, name: str, *, if_absent: bool) -> None:
        super().__init__()
        self.name = name
        self._writer = writer
        self._if_absent = if_absent
        self._bytes = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """How much was written."""
        return self._bytes

    def write(self, data: Buffer) -> int:
        """Add bytes at the end; waits while the node or the lake is slower."""
        if self.closed:
            raise ValueError("I/O operation on a closed file")
        try:
            count = self._writer.write(as_buffer(data))
        except PreconditionFailedError as refused:
            self._explain(refused)
            raise
        self._bytes += count
        return count

    def close(self) -> None:
        """Make the object visible; nothing if it was closed or given up before."""
        if self.closed:
            return
        try:
            self.receipt = PutReceipt(*self._writer.finish())
        except PreconditionFailedError as refused:
            self._explain(refused)
            raise
        finally:
            super().close()

    def abort(self) -> None:
        """Give the object up; returns when nothing is left of it."""
        if not self.closed:
            try:
                self._writer.abort()
            finally:
                super().close()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # What nobody closed was not finished: the base class would close it, and so write half an object.
        if not self.closed:
            super().close()

    def _explain(self, refused: PreconditionFailedError) -> None:
        if self._if_absent:
            raise AlreadyExistsError("there is such an object already", [("object", self.name)]) from refused
