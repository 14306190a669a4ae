"""Forebay: the storage layer between a data lake and AI accelerators.

`connect()` takes the node of this host, `open(url)` runs one inside this process; both give a `Node`.

>>> import forebay
>>> with forebay.open("memory://") as node:
...     node.create_bucket("demo")
...     receipt = node.put("demo/hello", b"hello, lake")
...     bytes(node.get("demo/hello"))
b'hello, lake'

Importing it starts nothing: no thread, no connection.
"""

from forebay._failures import CheckpointWarning
from forebay._loader import BadSample, Loader, LoaderStats
from forebay._native import VERSION as __version__
from forebay._native import View, WritableBuffer
from forebay._save import SaveHandle, SaveReport
from forebay._tensors import Shard
from forebay._verified import Verified
from forebay._writer import ObjectWriter
from forebay.checkpoints import Checkpoints
from forebay.dataset import Dataset, Mix, mix
from forebay.errors import (
    AlreadyExistsError,
    BusyError,
    CancelledError,
    ChangedError,
    ChecksumError,
    ConflictError,
    CorruptError,
    DeniedError,
    ForebayError,
    InternalError,
    InvalidInputError,
    IoError,
    NoSpaceError,
    NotFoundError,
    OutOfRangeError,
    PreconditionFailedError,
    ThrottledError,
    TimedOutError,
    UnavailableError,
    UnsupportedError,
)
from forebay.node import Node, connect, open  # noqa: A004 - `forebay.open` is what people expect
from forebay.objects import Listing, ObjectInfo, PutReceipt, Sources, Stats

__all__ = [
    "AlreadyExistsError",
    "BadSample",
    "BusyError",
    "CancelledError",
    "ChangedError",
    "CheckpointWarning",
    "Checkpoints",
    "ChecksumError",
    "ConflictError",
    "CorruptError",
    "Dataset",
    "DeniedError",
    "ForebayError",
    "InternalError",
    "InvalidInputError",
    "IoError",
    "Listing",
    "Loader",
    "LoaderStats",
    "Mix",
    "NoSpaceError",
    "Node",
    "NotFoundError",
    "ObjectInfo",
    "ObjectWriter",
    "OutOfRangeError",
    "PreconditionFailedError",
    "PutReceipt",
    "SaveHandle",
    "SaveReport",
    "Shard",
    "Sources",
    "Stats",
    "ThrottledError",
    "TimedOutError",
    "UnavailableError",
    "UnsupportedError",
    "Verified",
    "View",
    "WritableBuffer",
    "__version__",
    "connect",
    "mix",
    "open",
]
