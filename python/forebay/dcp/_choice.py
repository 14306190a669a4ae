"""`forebay://` ids where PyTorch chooses the writer or reader by itself.

PyTorch has no list to register with: for an id with a scheme it takes its fsspec classes, which work over
`forebay://`, too, file by file. Importing `forebay.dcp` puts a function before that choice which answers for our ids
and hands all others on.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from forebay.dcp._reader import StorageReader
from forebay.dcp._where import SCHEME
from forebay.dcp._writer import StorageWriter
from forebay.errors import NotFoundError

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
    """Our reader, or nothing if PyTorch's own files lie at the id, from before."""
    reader = StorageReader(checkpoint_id)
    try:
        _ = reader.step
    except NotFoundError:
        name = f"{os.fspath(checkpoint_id).removeprefix(SCHEME).rstrip('/')}/.metadata"
        if reader.link.node.exists(name):
            return None
        raise
    return reader
