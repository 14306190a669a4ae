"""Fields of samples: how their bytes become values, and what happens to those that cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay import _native, _rows
from forebay.errors import CorruptError, InvalidInputError

#: How a field is read: a name such as `"bytes"`, one of `str`, `int`, `float`, or a function of its view.
Decoder = str | type | Callable[[Any], Any]
#: What a dataset is told about its fields.
Fields = Mapping[str, Decoder] | Sequence[str]

#: What every sample has besides its fields.
KEY, SHARD, NUMBER, SOURCE = "__key__", "__shard__", "__number__", "__source__"
ABOUT = (KEY, SHARD, NUMBER, SOURCE)
#: The label of a raw file, if the dataset was told where labels come from.
LABEL = "label"

_TYPES: dict[Any, str] = {bytes: "bytes", str: "str", int: "int", float: "float"}
_NAMES = (
    "auto",
    "bytes",
    "str",
    "int",
    "float",
    "json",
    "npy",
    "image",
    "rgb",
    "gray",
    "pil",
    "example",
    "sequence_example",
    "tokens:…",
)
_TOKENS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: What the native module decodes, on threads of its own and without the interpreter.
_NATIVE = ("str", "int", "float", "json", "npy")
#: Images that it decodes; steps may follow: `"rgb:short=256,crop=224"`.
_IMAGES = ("image", "rgb", "gray")


def parse(fields: Fields | None) -> dict[str, Decoder] | None:
    """Return field names and decoders with types as their names; `None` means all fields as they are."""
    if fields is None:
        return None
    if isinstance(fields, str):
        raise InvalidInputError(f"fields are a dict or a list of names: fields=[{fields!r}]")
    given = fields if isinstance(fields, Mapping) else dict.fromkeys(fields, "auto")
    return {str(name): _parse_one(name, how) for name, how in given.items()}


def _parse_one(name: str, how: Decoder) -> Decoder:
    if isinstance(how, type) and how in _TYPES:
        return _TYPES[how]
    if callable(how):
        return how
    if isinstance(how, str) and (how in _NAMES[:-1] or (how.startswith("tokens:") and how[7:] in _TOKENS)):
        return how
    if isinstance(how, str) and how.partition(":")[0] in _IMAGES:
        _native.check_decoder(how)
        return how
    raise InvalidInputError(
        f"no such decoder for field {name!r}: {how!r}; there are {', '.join(_NAMES)}, the types str, int and float, "
        "and functions of the bytes"
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One field of all samples of a batch: their values, exceptions in the place of those that have none."""

    #: A list, or one array for all if it is packed.
    values: Any
    #: Whether `values` is an array.
    packed: bool = False


def native(fields: Mapping[str, Decoder] | None, encodings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the fields that the native module decodes, with its names for how."""
    given: Mapping[str, Decoder] = dict.fromkeys(encodings, "auto") if fields is None else fields
    found = []
    for name, how in given.items():
        if name in ABOUT or not isinstance(how, str):
            continue
        encoding = encodings.get(name)
        if how == "auto" and name == "tokens" and encoding in _TOKENS:
            found.append((name, f"tokens:{encoding}"))
        is_row = encoding is not None and encoding.startswith(_rows.PREFIX) and how in ("int", "float", "str")
        if not is_row and (how in _NATIVE or how.partition(":")[0] in (*_IMAGES, "tokens")):
            found.append((name, how))
    return found


def _decoded(found: tuple[bool, Any], how: Decoder) -> Column:
    """A field as the native module has decoded it."""
    is_packed, values = found
    if is_packed:
        return Column(_array(*values), packed=True)
    if how in ("str", "int", "float"):
        return Column(values)
    if how == "json":
        return Column([apply(_json, value[0]) if type(value) is tuple else value for value in values])
    for at, value in enumerate(values):
        if type(value) is tuple:
            values[at] = _array(*value) if len(value) > 1 else apply(_npy, value[0])
    return Column(values)


def _need_pillow() -> None:
    """Say that Pillow is missing, which is no fault of a sample."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as missing:
        raise InvalidInputError('the decoder "pil" needs Pillow: pip install pillow') from missing


def _array(memory: Any, dtype: str, shape: tuple[int, ...], is_fortran: bool = False) -> Any:
    """An array over memory, without a copy."""
    import numpy as np

    if 0 in shape:
        return np.empty(shape, dtype)
    return np.frombuffer(memory, dtype=dtype).reshape(shape, order="F" if is_fortran else "C")


def decode(batch: _native.Batch, field: str, how: Decoder, encodings: Mapping[str, str]) -> Column:
    """Return a field of all samples of a batch."""
    found = batch.decoded(field)
    if found is not None:
        return _decoded(found, how)
    encoding = encodings.get(field)
    if encoding is not None and encoding.startswith(_rows.PREFIX) and how in ("auto", "int", "float", "str"):
        values, packed = _rows.decode(batch, field, encoding)
        return Column(*((values, packed) if how == "auto" else _rows.convert(values, packed, str(how))))
    if how == "auto":
        return _auto(batch, field, encodings.get(field))
    if how == "bytes":
        return Column(batch.views(field))
    if how == "example":
        return Column(batch.examples(field))
    if how == "sequence_example":
        return Column(batch.sequence_examples(field))
    if how == "pil":
        _need_pillow()
    function = _FUNCTIONS[how] if isinstance(how, str) else how
    return Column([apply(function, view) for view in batch.views(field)])


def apply(function: Callable[[Any], Any], value: Any) -> Any:
    """Return what a function makes of a value, or the exception that it or the value is.

    A module that is missing is no fault of the sample, and raised.
    """
    if value is None or isinstance(value, Exception):
        return value
    try:
        return function(value)
    except ImportError:
        raise
    except Exception as fault:  # a bad sample, which the loader treats as it was told
        return fault


def _auto(batch: _native.Batch, field: str, encoding: str | None) -> Column:
    if encoding is None:
        return Column(batch.views(field))
    return Column(batch.mds(field, encoding))


def _json(view: Any) -> Any:
    return json.loads(bytes(view))


def npy_header(view: Any) -> tuple[tuple[int, ...], bool, Any, int]:
    """Return shape, whether it is in Fortran's order, type, and where the values begin."""
    import io

    import numpy as np

    class Reader(io.RawIOBase):
        """The header of the view as a file; numpy reads no more of it."""

        def __init__(self) -> None:
            self.at = 0

        def read(self, size: int = -1) -> bytes:
            memory = memoryview(view)
            end = len(memory) if size < 0 else min(len(memory), self.at + size)
            found = bytes(memory[self.at : end])
            self.at = end
            return found

    file = Reader()
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    return shape, fortran, dtype, file.at


def _npy(view: Any) -> Any:
    """Return an array over the view, without a copy; pickles are refused."""
    import numpy as np

    shape, fortran, dtype, start = npy_header(view)
    if dtype.hasobject:
        raise CorruptError(
            "the array holds Python objects, which are pickles: they can run any code and are not loaded"
        )
    count = int(np.prod(shape, dtype=np.int64))
    flat = np.frombuffer(view, dtype=dtype, count=count, offset=start) if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _image(view: Any) -> Any:
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(view))
    image.load()
    return image


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"pil": _image}


def about(batch: _native.Batch, name: str) -> list[Any]:
    """Return what is known about the samples of a batch."""
    if name == KEY:
        return batch.keys()
    if name == SHARD:
        return batch.shards()
    if name == NUMBER:
        return batch.numbers()
    return batch.sources()


def collate(samples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return samples as one batch: field to list, or to an array where all values are numbers."""
    rows = list(samples)
    if not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInputError(
            "a function of `Dataset.map` returns a dict of fields; `Loader.map` takes batches, and may return anything"
        )
    names = dict.fromkeys(name for row in rows for name in row)
    batch: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if values and (all(type(value) is int for value in values) or all(type(value) is float for value in values)):
            import numpy as np

            batch[name] = np.array(values)
        else:
            batch[name] = values
    return batch
