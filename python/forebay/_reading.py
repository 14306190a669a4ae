"""How samples become values: as their dataset says, and in a mix each as its own dataset says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay import _fields, _rows
from forebay._batches import MISSING, DecodedBatch
from forebay._fields import Column, Decoder
from forebay.errors import InvalidInputError

if TYPE_CHECKING:
    from forebay import _native
    from forebay.dataset import Dataset

#: Decoders that go by the encoding of a field, where its format has one.
_BY_ENCODING = ("auto", "int", "float", "str")
#: The kind of a field that lies in the index of its dataset.
_LABEL = "label"


class Reading:
    """Reads batches of one dataset, or of several that are mixed."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._datasets = list(datasets)
        first = self._datasets[0]
        self._is_all = first._fields is None
        #: Fields that the native module decodes, for all datasets at once.
        self.native = first._decode()
        self._decoders: dict[str, Decoder] = first._fields or {}
        if self._is_all:
            names = sorted({name for dataset in self._datasets for name in dataset._native.fields})
            self._decoders = dict.fromkeys([_fields.KEY, *names], "auto")
        self._encodings = {name: how for dataset in self._datasets for name, how in dataset._encodings().items()}
        #: Fields that are read dataset by dataset.
        self._apart: set[str] = set()
        if len(self._datasets) > 1:
            self._compare()

    def _compare(self) -> None:
        """Find fields that the datasets of a mix have in different ways, and refuse what could not be told apart."""
        first = self._datasets[0]
        if any(dataset._fields != first._fields for dataset in self._datasets):
            raise InvalidInputError("datasets of a mix need the same fields, read the same way")
        kinds = {name: self._kinds(name, how) for name, how in self._decoders.items()}
        mixed = [
            name
            for name, how in self._decoders.items()
            if how == "auto" and name != _fields.KEY and len(kinds[name]) > 1
        ]
        if mixed or any(dataset._decode() != self.native for dataset in self._datasets):
            raise InvalidInputError(
                "datasets of a mix need fields of the same encodings; name one decoder for all of them, such as "
                f'fields={{"{mixed[0] if mixed else "name"}": "bytes"}}, int, float or str'
            )
        self._apart = {name for name, found in kinds.items() if len(found) > 1 or found == {_LABEL}}

    def _kinds(self, name: str, how: Decoder) -> set[str]:
        """The ways in which datasets have a field; those without it do not count."""
        return {
            self._kind(dataset, name, how)
            for dataset in self._datasets
            if dataset._is_about(name) or name in dataset._native.fields
        }

    def _kind(self, dataset: Dataset, name: str, how: Decoder) -> str:
        if self._is_known(dataset, name):
            return _LABEL if name == _fields.LABEL else "known"
        encoding = dataset._encodings().get(name) if how in _BY_ENCODING else None
        return "bytes" if encoding is None else f"encoded as {encoding}"

    def _is_known(self, dataset: Dataset, name: str) -> bool:
        """Whether it is known about samples, and no field of the data."""
        is_in_data = name in dataset._native.fields
        return dataset._is_about(name) and not (is_in_data and (self._is_all or name == _fields.KEY))

    def read(self, batch: _native.Batch) -> DecodedBatch:
        """Read the fields of a batch, and let its samples go through the functions of `Dataset.map`."""
        columns = {
            name: self._by_source(batch, name, how) if name in self._apart else self._together(batch, name, how)
            for name, how in self._decoders.items()
        }
        maps = [dataset._maps for dataset in self._datasets]
        return DecodedBatch(batch, columns, [maps[source] for source in batch.sources()] if any(maps) else [])

    def _together(self, batch: _native.Batch, name: str, how: Decoder) -> Column:
        """A field of all samples of a batch, which all have it in one way."""
        return self._column(self._datasets[0], batch, name, how, self._encodings)

    def _by_source(self, batch: _native.Batch, name: str, how: Decoder) -> Column:
        """A field of all samples of a batch, read dataset by dataset."""
        sources = batch.sources()
        parts = []
        for source in sorted(set(sources)):
            dataset = self._datasets[source]
            places = [at for at, one in enumerate(sources) if one == source]
            column = self._column(dataset, batch.part(places), name, how, dataset._encodings())
            parts.append((places, column))
        return _merged(parts, len(batch))

    def _column(
        self, dataset: Dataset, batch: _native.Batch, name: str, how: Decoder, encodings: dict[str, str]
    ) -> Column:
        if self._is_known(dataset, name):
            if name in _fields.ABOUT:
                return Column(_fields.about(batch, name))
            return _labels(dataset._native.column(name, batch.numbers()), how)
        column = _fields.decode(batch, name, "auto" if name == _fields.KEY else how, encodings)
        return _where_there(column, batch, name) if self._is_all else column


def _labels(values: list[Any], how: Decoder) -> Column:
    """Labels as they are, as numbers, or as a function makes them."""
    if how in ("auto", "str"):
        return Column(values)
    if callable(how):
        return Column([_fields.apply(how, value) for value in values])
    if how not in ("int", "float"):
        raise InvalidInputError(
            f"labels are text and cannot be read as {how!r}; take str, int, float or a function of the text"
        )
    numbers, _ = _rows.convert(values, False, how)
    if any(type(number) not in (int, float) for number in numbers):
        return Column(numbers)
    import numpy as np

    return Column(np.array(numbers, "int64" if how == "int" else "float64"), packed=True)


def _where_there(column: Column, batch: _native.Batch, name: str) -> Column:
    """A field that not every sample has, where no fields were asked for by name."""
    if column.packed:
        return column
    there = [name in names for names in batch.field_names()]
    if all(there):
        return column
    return Column([value if has else MISSING for value, has in zip(column.values, there, strict=True)])


def _merged(parts: list[tuple[list[int], Column]], count: int) -> Column:
    """Columns of parts of a batch as one: an array if all are arrays of one type, else a list."""
    if all(column.packed for _, column in parts) and len({column.values.dtype for _, column in parts}) == 1:
        import numpy as np

        merged = np.empty(count, parts[0][1].values.dtype)
        for places, column in parts:
            merged[places] = column.values
        return Column(merged, packed=True)
    values: list[Any] = [None] * count
    for places, column in parts:
        for at, value in zip(places, column.values.tolist() if column.packed else column.values, strict=True):
            values[at] = value
    return Column(values)
