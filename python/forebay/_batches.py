"""Batches: samples of the native module with their fields read, bad ones found, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay import _fields
from forebay._fields import Column

if TYPE_CHECKING:
    from forebay import _native
    from forebay.dataset import Dataset

#: Stands for a field that a sample does not have, where no fields were asked for by name.
_MISSING: Any = object()


class DecodedBatch:
    """A batch whose fields are read. `faults` has the exception of each bad sample."""

    def __init__(self, batch: _native.Batch, columns: dict[str, Column], dataset: Dataset) -> None:
        self.batch = batch
        self.faults: list[Exception | None] = [None] * len(batch)
        self.has_faults = False
        self._columns = columns
        self._maps = dataset._maps
        self._mapped: list[Any] | None = None
        for column in columns.values():
            if not column.packed:
                self._find_faults(column.values)
        if self._maps:
            self._mapped = [self._map(row) for row in self._rows()]
            self._find_faults(self._mapped)

    def _find_faults(self, values: list[Any]) -> None:
        for at, value in enumerate(values):
            if isinstance(value, Exception) and self.faults[at] is None:
                self.faults[at] = value
                self.has_faults = True

    def _map(self, row: Any) -> Any:
        for function in self._maps:
            row = _fields.apply(function, row)
        return row

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
                if value is not _MISSING:
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
                values = [None if value is _MISSING else value for value in values]
            found[name] = values
        return found


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


def decode_batch(batch: _native.Batch, dataset: Dataset) -> DecodedBatch:
    """Read the fields of a batch as its dataset says."""
    opened = dataset._native
    encodings = dataset._encodings()
    columns: dict[str, Column] = {}
    if dataset._fields is None:
        columns[_fields.KEY] = Column(batch.keys())
        there = batch.field_names()
        for name in opened.fields:
            columns[name] = _where_there(_fields.decode(batch, name, "auto", encodings), [name in one for one in there])
        return DecodedBatch(batch, columns, dataset)
    for name, how in dataset._fields.items():
        if name == _fields.KEY and name in opened.fields:
            columns[name] = _fields.decode(batch, name, "auto", encodings)
        elif name in _fields.ABOUT:
            columns[name] = Column(_fields.about(batch, name))
        elif dataset._is_about(name):
            columns[name] = Column(opened.column(name, batch.numbers()))
        else:
            columns[name] = _fields.decode(batch, name, how, encodings)
    return DecodedBatch(batch, columns, dataset)


def _where_there(column: Column, there: list[bool]) -> Column:
    if column.packed or all(there):
        return column
    return Column([value if has else _MISSING for value, has in zip(column.values, there, strict=True)])
