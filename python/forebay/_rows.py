"""Columns of Parquet: one array for all samples where their values have one width, a list otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.errors import CorruptError

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
    """Return the values as `str`, `int` or `float`; what cannot be one is the exception of its sample."""
    if packed and (how == "float" or (how == "int" and _fits_int64(values))):
        return values.astype("int64" if how == "int" else "float64"), True
    to = {"int": int, "float": float, "str": str}[how]

    def one(value: Any) -> Any:
        if value is None or isinstance(value, Exception):
            return value
        try:
            return to(value)
        except (TypeError, ValueError, OverflowError) as fault:
            return CorruptError(f"the value cannot be read as {how}: {fault}")

    return [one(value) for value in (values.tolist() if packed else values)], False


def _fits_int64(values: Any) -> bool:
    """Whether all numbers of an array are whole ones of 64 bits: others would become such without a word."""
    if values.dtype.kind == "f":
        return bool((abs(values) < 2.0**63).all())
    return values.dtype != "uint64" or not len(values) or bool(values.max() < 2**63)
