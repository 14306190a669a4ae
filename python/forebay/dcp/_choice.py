"""`forebay://` ids where PyTorch chooses the writer or reader by itself.

PyTorch has no list to register with: for an id with a scheme it takes its fsspec classes, which work over
`forebay://`, too, file by file. Importing `forebay.dcp` puts a function before that choice which answers for our ids
and hands all others on.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from forebay.dcp._reader import ALLOW_PICKLE_VARIABLE, StorageReader, pickle_is_allowed
from forebay.dcp._where import SCHEME
from forebay.dcp._writer import StorageWriter
from forebay.errors import NotFoundError, UnsupportedError

#: Where PyTorch uses its choice.
_USERS = ("_storage_utils", "state_dict_saver", "state_dict_loader")


def install() -> None:
    """Answer for `forebay://` ids from now on."""
    import importlib

    for name in _USERS:
        module = importlib.import_module(f"torch.distributed.checkpoint.{name}")
        choose = getattr(module, "_storage_setup", None)
        if choose is not None and not hasattr(choose, "_of_forebay"):
            module._storage_setup = _before(choose)  # type: ignore[attr-defined]


def _before(choose: Any) -> Any:
    @functools.wraps(choose)
    def chosen(storage: Any, checkpoint_id: Any, reader: bool = False) -> Any:
        if storage or not str(checkpoint_id or "").startswith(SCHEME):
            return choose(storage, checkpoint_id, reader=reader)
        if not reader:
            return StorageWriter(checkpoint_id)
        return _reader(checkpoint_id) or choose(storage, checkpoint_id, reader=reader)

    chosen._of_forebay = True  # type: ignore[attr-defined]
    return chosen


def _reader(checkpoint_id: str | os.PathLike[str]) -> StorageReader | None:
    """Our reader, or nothing if PyTorch's own files lie at the id and their pickles may be loaded."""
    reader = StorageReader(checkpoint_id)
    try:
        _ = reader.step
    except NotFoundError:
        name = f"{os.fspath(checkpoint_id).removeprefix(SCHEME).rstrip('/')}/.metadata"
        if not reader.link.node.exists(name):
            raise
        if not pickle_is_allowed():
            message = (
                "PyTorch itself wrote this checkpoint, and its .metadata is a pickle, which can run any code: set "
                f"{ALLOW_PICKLE_VARIABLE}=1 if you trust who wrote it, or give storage_reader=FsspecReader(id)"
            )
            raise UnsupportedError(message, [("object", name)]) from None
        return None
    return reader
