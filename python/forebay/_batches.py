"""Batches: samples of the native module with their fields read, bad ones found, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forebay import _fields
from forebay._fields import Column

if TYPE_CHECKING:
    from forebay import _native

#: Functions that a sample goes through, one after the other.
Maps = tuple[Callable[[Any], Any], ...]

#: Stands for a field that a sample does not have, where no fields were asked for by name.
MISSING: Any = object()


class DecodedBatch:
    """A batch whose fields are read. `faults` has the exception of each bad sample.

    `maps` has the functions that each sample goes through; it is empty if none does.
    """

    def __init__(self, batch: _native.Batch, columns: dict[str, Column], maps: Sequence[Maps]) -> None:
        self.batch = batch
        self.faults: list[Exception | None] = [None] * len(batch)
        self.has_faults = False
        self._columns = columns
        self._mapped: list[Any] | None = None
        for column in columns.values():
            if not column.packed:
                self._find_faults(column.values)
        if maps:
            self._mapped = [_map(row, functions) for row, functions in zip(self._rows(), maps, strict=True)]
            self._find_faults(self._mapped)

    def _find_faults(self, values: list[Any]) -> None:
        for at, value in enumerate(values):
            if isinstance(value, Exception) and self.faults[at] is None:
                self.faults[at] = value
                self.has_faults = True

    def _rows(self) -> list[Any]:
        """One dict per sample; of a bad one its exception."""
        rows: list[Any] = []
        for at, fault in enumerate(self.faults):
            if fault is not None:
                rows.append(fault)
                continue
            row = {}
            for name, column in self._columns.items():
                value = column.values[at]
                if value is not MISSING:
                    row[name] = _plain(value) if column.packed else value
            rows.append(row)
        return rows

    def rows(self) -> list[Any]:
        """Return the samples one by one; of a bad one its exception."""
        return self._mapped if self._mapped is not None else self._rows()

    def checked_rows(self) -> list[Any]:
        """Return the samples one by one, and raise the fault of the first bad one."""
        for fault in self.faults:
            if fault is not None:
                raise fault
        return self.rows()

    def fields(self, order: list[int] | None = None) -> dict[str, Any]:
        """Return field to values, of all samples or of these."""
        if self._mapped is not None:
            rows = self._mapped if order is None else [self._mapped[at] for at in order]
            return _fields.collate(rows)
        found = {}
        for name, column in self._columns.items():
            values = column.values
            if order is not None:
                values = values[order] if column.packed else _again([values[at] for at in order], name)
            if not column.packed:
                values = [None if value is MISSING else value for value in values]
            found[name] = values
        return found


def _map(row: Any, functions: Maps) -> Any:
    for function in functions:
        row = _fields.apply(function, row)
    return row


def _plain(value: Any) -> Any:
    """A number of a packed field as Python's; a date, or a row of several, as it is."""
    return value.item() if value.ndim == 0 and value.dtype.kind not in "mM" else value


def _again(values: list[Any], name: str) -> Any:
    """Numbers that could not be packed because of a bad one among them can be now."""
    kind = type(values[0]) if values else None
    if name in _fields.ABOUT or kind not in (int, float) or any(type(value) is not kind for value in values):
        return values
    import numpy as np

    return np.array(values)
