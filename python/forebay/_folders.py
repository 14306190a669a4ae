"""Folders that appear whole: files are written where nobody looks, then one create-only manifest shows them.

Format: `docs/formats/folder.md`. The bytes of a file lie under a name of their own and never change. A file that was
not committed is a small document at its path that points to them; renaming a folder writes one manifest with all that
its documents say, if nothing is at the target. Every block of a file has a CRC-32, checked by each read.
"""

from __future__ import annotations

import errno
import io
import json
import secrets
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.errors import AlreadyExistsError, ChecksumError, CorruptError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from forebay._writer import ObjectWriter
    from forebay.node import Node

#: Bytes that have one checksum.
BLOCK_BYTES = 1 << 20
#: Where the commit of a folder lies, below it.
MANIFEST = ".forebay/folder.json"
#: Where bytes of files lie, below the root.
DATA = ".forebay/files"
_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """A file: where its bytes are, below the root, how many, and the CRC-32 of each block."""

    data: str
    bytes: int
    crc32: list[int] = field(repr=False)


class Folders:
    """Files and folders below a root, `bucket/folder`."""

    def __init__(self, node: Node, root: str) -> None:
        self.node = node
        self.root = root.removeprefix("forebay://").rstrip("/")
        #: Commits do not change, so they are read once.
        self._committed: dict[str, dict[str, Entry]] = {}

    def _key(self, path: str) -> str:
        return f"{self.root}/{path}"

    # --- looking ---

    def find(self, path: str) -> Entry:
        """Return a file."""
        for folder in _folders_of(path):
            found = self._manifest(folder)
            if found is not None:
                entry = found.get(path[len(folder) :].lstrip("/"))
                if entry is not None:
                    return entry
        try:
            document = self.node.read(self._key(path))
        except NotFoundError:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path) from None
        return _entry(_document(document, "forebay-file", path), path)

    def is_file(self, path: str) -> bool:
        """Whether there is such a file."""
        try:
            self.find(path)
        except FileNotFoundError:
            return False
        return True

    def is_folder(self, path: str) -> bool:
        """Whether something lies below a path."""
        return bool(self.names(path))

    def names(self, path: str) -> list[str]:
        """Return what lies directly in a folder."""
        level = self.node.list_level(f"{self._key(path)}/" if path else f"{self.root}/")
        start = len(self.root) + len(path) + (2 if path else 1)
        found = {info.name[start:] for info in level.objects} | {name[start:].rstrip("/") for name in level.prefixes}
        found.discard(".forebay")
        for folder in [*_folders_of(path), path]:
            below = path[len(folder) :].lstrip("/")
            for name in self._manifest(folder) or {}:
                if not below or name.startswith(f"{below}/"):
                    found.add(name[len(below) :].lstrip("/").split("/")[0])
        found.discard("")
        return sorted(found)

    def _manifest(self, folder: str) -> dict[str, Entry] | None:
        if folder not in self._committed:
            try:
                text = self.node.read(self._key(f"{folder}/{MANIFEST}"))
            except NotFoundError:
                return None
            files = _document(text, "forebay-folder", folder).get("files")
            if not isinstance(files, dict):
                raise CorruptError("the commit of a folder has no list of files", [("folder", folder)])
            self._committed[folder] = {name: _entry(one, f"{folder}/{name}") for name, one in files.items()}
        return self._committed[folder]

    # --- writing ---

    def create(self, path: str) -> FileWriter:
        """Return a file to be written; it is there when it is closed."""
        data = f"{DATA}/{secrets.token_hex(8)}/{path.rpartition('/')[2]}"
        return FileWriter(self, path, data, self.node.writer(self._key(data), if_absent=True))

    def publish(self, path: str, entry: Entry) -> None:
        """Let a file be found at a path, in the place of what is there."""
        document = {"format": "forebay-file", "version": _VERSION, **asdict(entry)}
        self.node.put(self._key(path), json.dumps(document).encode(), content_type="application/json")

    def rename_folder(self, source: str, target: str) -> None:
        """Let what is below one path appear below another, whole, by one create-only write."""
        files = self._below(source)
        if not files:
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", source)
        if self.is_file(target) or self.is_folder(target):
            raise FileExistsError(errno.ENOTEMPTY, "something is there already; remove it first", target)
        document = {
            "format": "forebay-folder",
            "version": _VERSION,
            "files": {name: asdict(entry) for name, entry in sorted(files.items())},
        }
        document["crc32"] = zlib.crc32(json.dumps(document["files"], sort_keys=True).encode())
        try:
            key = self._key(f"{target}/{MANIFEST}")
            self.node.put(key, json.dumps(document).encode(), content_type="application/json", if_absent=True)
        except AlreadyExistsError:
            raise FileExistsError(errno.ENOTEMPTY, "another was faster", target) from None
        self._forget(source)

    def rename_file(self, source: str, target: str) -> None:
        """Move a file that was not committed, in the place of what is there."""
        entry = self.find(source)
        if self.is_folder(target):
            raise IsADirectoryError(errno.EISDIR, "a folder is there", target)
        self.publish(target, entry)
        self.node.delete(self._key(source))

    def _below(self, folder: str) -> dict[str, Entry]:
        committed = self._manifest(folder)
        if committed is not None:
            return dict(committed)
        start = f"{self._key(folder)}/"
        names = [info.name for info in self.node.list(start) if "/.forebay/" not in info.name]
        return {name[len(start) :]: self.find(name[len(self.root) + 1 :]) for name in names}

    # --- removing ---

    def remove_file(self, path: str) -> None:
        """Remove a file that was not committed."""
        entry = self.find(path)
        if not self.node.exists(self._key(path)):
            raise UnsupportedError("a file of a committed folder goes with the folder", [("file", path)])
        self.node.delete(self._key(path))
        self.node.delete(self._key(entry.data))

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it; the commit goes first, so that nobody sees half of it."""
        files = self._below(folder)
        self._forget(folder)
        for entry in files.values():
            self.node.delete(self._key(entry.data))

    def _forget(self, folder: str) -> None:
        """Remove the documents of a folder, not the bytes that they point to."""
        self.node.delete(self._key(f"{folder}/{MANIFEST}"))
        self._committed.pop(folder, None)
        for info in list(self.node.list(f"{self._key(folder)}/")):
            self.node.delete(info.name)


class FileWriter(io.RawIOBase):
    """A file that is being written. Leaving a `with` block by an exception gives it up."""

    def __init__(self, folders: Folders, path: str, data: str, target: ObjectWriter) -> None:
        super().__init__()
        self._folders, self._path, self._data, self._target = folders, path, data, target
        self._crcs: list[int] = []
        self._bytes = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """How much was written."""
        return self._bytes

    def write(self, data: Any) -> int:
        """Add bytes at the end."""
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            within = self._bytes % BLOCK_BYTES
            piece = view[start : start + BLOCK_BYTES - within]
            if within == 0:
                self._crcs.append(0)
            self._crcs[-1] = zlib.crc32(piece, self._crcs[-1])
            self._bytes += len(piece)
            start += len(piece)
        if len(view):
            self._target.write(view)
        return len(view)

    def close(self) -> None:
        """Let the file be found."""
        if self.closed:
            return
        try:
            self._target.close()
            self._folders.publish(self._path, Entry(self._data, self._bytes, self._crcs))
        finally:
            super().close()

    def abort(self) -> None:
        """Give the file up."""
        if not self.closed:
            self._target.abort()
            super().close()

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class FileReader(io.RawIOBase):
    """A file that is read, every block proved."""

    def __init__(self, folders: Folders, path: str) -> None:
        super().__init__()
        self._entry = folders.find(path)
        self._node, self._name, self._path = folders.node, folders._key(self._entry.data), path
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.bytes}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, target: Any) -> int:
        """Fill memory with the bytes from here on."""
        # Views end here, whatever happens: an error that kept one would keep the caller from giving memory back.
        with memoryview(target) as raw, raw.cast("B") as view:
            count = max(min(len(view), self._entry.bytes - self._at), 0)
            done = 0
            while done < count:
                with view[done:count] as rest:
                    done += self._part(rest)
        return done

    def _part(self, target: memoryview) -> int:
        """Fill memory up to the end of a block."""
        block, skip = divmod(self._at, BLOCK_BYTES)
        size = min(BLOCK_BYTES, self._entry.bytes - block * BLOCK_BYTES)
        some = min(size - skip, len(target))
        with target[:some] as piece:
            if some == size:
                self._block(block, piece)
            else:
                whole = bytearray(size)
                self._block(block, memoryview(whole))
                piece[:] = whole[skip : skip + some]
        self._at += some
        return some

    def _block(self, block: int, target: memoryview) -> None:
        count = self._node.read_into(self._name, target, block * BLOCK_BYTES)
        if count != len(target) or zlib.crc32(target) != self._entry.crc32[block]:
            message = "bytes of a file are not those that were written"
            raise ChecksumError(message, [("file", self._path), ("object", self._name), ("block", str(block))])


def _folders_of(path: str) -> list[str]:
    """The folders that a path lies in, the nearest first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _document(text: bytes, kind: str, path: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != kind:
        raise CorruptError(f"this is no {kind} document", [("path", path)])
    if found.get("version") != _VERSION:
        raise UnsupportedError("written by a newer forebay; update forebay to read it", [("path", path)])
    if kind == "forebay-folder":
        crc32 = zlib.crc32(json.dumps(found.get("files"), sort_keys=True).encode())
        if crc32 != found.get("crc32"):
            raise ChecksumError("the commit of a folder is damaged", [("folder", path)])
    return found


def _entry(found: Any, path: str) -> Entry:
    try:
        entry = Entry(str(found["data"]), int(found["bytes"]), [int(crc32) for crc32 in found["crc32"]])
    except (KeyError, TypeError, ValueError):
        raise CorruptError("what is said of a file is damaged", [("path", path)]) from None
    if len(entry.crc32) != -(-entry.bytes // BLOCK_BYTES) or not entry.data.startswith(f"{DATA}/"):
        raise CorruptError("what is said of a file is damaged", [("path", path)])
    return entry
