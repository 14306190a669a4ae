"""Columns of Parquet: one array for all samples where their values have one width, a list otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay import _native

#: What an encoding of a column starts with.
PREFIX = "parquet:"
#: How the memory of values of one width is read, and as what it is handed over.
_TYPES: dict[str, tuple[str, str | None]] = {
    "bool": ("bool", None),
    "date": ("int32", "datetime64[D]"),
    **{f"timestamp[{unit}]": (f"datetime64[{unit}]", None) for unit in ("ms", "us", "ns")},
    **{f"{sign}int{bits}": (f"{sign}int{bits}", None) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (f"float{bits}", None) for bits in (16, 32, 64)},
}


def decode(batch: _native.Batch, field: str, encoding: str) -> tuple[Any, bool]:
    """Return the values of a column, and whether they are one array. With nulls among them they are a list."""
    types = _TYPES.get(encoding.removeprefix(PREFIX))
    packed = batch.packed(field) if types is not None else None
    if types is None or packed is None:
        return batch.rows(field, encoding), False
    import numpy as np

    stored, wanted = types
    values = np.frombuffer(packed[0], dtype=np.dtype(stored).newbyteorder("<"))
    return (values if wanted is None else values.astype(wanted)), True


def convert(values: Any, packed: bool, how: str) -> tuple[Any, bool]:
    """Return the values as `str`, `int` or `float`."""
    if packed and how in ("int", "float"):
        return values.astype("int64" if how == "int" else "float64"), True
    to = {"int": int, "float": float, "str": str}[how]
    values = values.tolist() if packed else values
    return [value if value is None or isinstance(value, Exception) else to(value) for value in values], False
