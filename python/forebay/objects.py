"""What is known about an object, and what a client has done: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

#: An object as the native module tells it: name, bytes, version, modified, content type, metadata.
InfoRow = tuple[str, int, str, int, str | None, list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What `stat` and `list` tell about an object.

    >>> info = ObjectInfo("demo/a", 3, "abc", 0)
    >>> info.bucket, info.key
    ('demo', 'a')
    >>> info.modified_at.year
    1970
    """

    #: `bucket/key`.
    name: str
    #: Size in bytes.
    bytes: int
    #: Version (the ETag).
    version: str
    #: Seconds since 1970.
    modified: int
    #: Content type; `None` in listings.
    content_type: str | None = None
    #: User metadata; empty in listings.
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def bucket(self) -> str:
        """The part before the first slash."""
        return self.name.partition("/")[0]

    @property
    def key(self) -> str:
        """The part behind the first slash."""
        return self.name.partition("/")[2]

    @property
    def modified_at(self) -> datetime:
        """The time of the last change, in UTC."""
        return datetime.fromtimestamp(self.modified, UTC)


@dataclass(frozen=True, slots=True)
class Listing:
    """One level of a bucket: objects, and what lies deeper as prefixes that end with the delimiter."""

    #: Objects, by name.
    objects: list[ObjectInfo]
    #: `bucket/prefix/` of what lies deeper.
    prefixes: list[str]


@dataclass(frozen=True, slots=True)
class PutReceipt:
    """What a write gives back once the lake has it."""

    #: The new version (ETag).
    version: str
    #: Its size.
    bytes: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the bytes of a view came from."""

    #: The RAM tier.
    ram: int
    #: The NVMe tier.
    nvme: int
    #: The lake.
    lake: int
    #: Of all these, bytes that had to be copied to be one flat buffer or because no memory could be leased.
    copied: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What a client has done since it was made: where its bytes came from, and how long it waited.

    A job that waits much and takes its bytes from the lake waits for the lake; one that copies much reads objects that
    lie scattered, or holds more views than the node leases to one process.
    """

    #: Requests to the node.
    requests: int
    #: Seconds spent waiting for its answers, of all threads together.
    wait_seconds: float
    #: Connections that had to be made again.
    reconnects: int
    #: Bytes given out as views without a copy.
    bytes_mapped: int
    #: Bytes copied, by the node or by the client.
    bytes_copied: int
    #: Bytes that were in the RAM tier.
    bytes_ram: int
    #: Bytes that were in the NVMe tier.
    bytes_nvme: int
    #: Bytes that came from the lake.
    bytes_lake: int
    #: Bytes written.
    bytes_written: int

    @property
    def hit_ratio(self) -> float:
        """The part of the bytes read that did not have to come from the lake; 1.0 if nothing was read."""
        total = self.bytes_ram + self.bytes_nvme + self.bytes_lake
        return 1.0 if total == 0 else 1.0 - self.bytes_lake / total
