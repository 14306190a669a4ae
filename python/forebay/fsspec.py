"""`forebay://bucket/key` wherever fsspec goes: pandas, pyarrow, polars, zarr, Hugging Face datasets and so on.

Found by its entry point; nobody has to import it. Folders are prefixes of keys, as in every object store: they exist as
long as something lies in them.

>>> import forebay
>>> from forebay.fsspec import ForebayFileSystem
>>> with forebay.open("memory://") as node:
...     fs = ForebayFileSystem(node=node, skip_instance_cache=True)
...     fs.mkdir("demo")
...     with fs.open("demo/a/hello.txt", "w") as file:
...         _ = file.write("hello")
...     print(fs.ls("demo", detail=False), fs.cat("forebay://demo/a/hello.txt"))
['demo/a'] b'hello'
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import has_magic
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path, tokenize

from forebay._file import WINDOW_BYTES_MAX, ReadFile, WriteFile, check_absent
from forebay.errors import ForebayError, NotFoundError, UnsupportedError
from forebay.node import TIMEOUT_SECONDS, Item, Node, connect
from forebay.objects import ObjectInfo

Info = dict[str, Any]


class ForebayFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A file system over the buckets of a node.

    Args:
        address: The node, as in `forebay.connect`; by default the node of this host.
        node: A node that is connected already.
        timeout: Seconds that one call may take.
        ca: PEM file of the authorities of an `https://` node, as in `forebay.connect`.
        cert: PEM file of a client certificate.
        key: PEM file of its private key.
        storage_options: What every fsspec file system takes.

    """

    protocol: ClassVar[str] = "forebay"
    root_marker: ClassVar[str] = ""
    blocksize: ClassVar[int] = WINDOW_BYTES_MAX

    def __init__(
        self,
        address: str | None = None,
        node: Node | None = None,
        timeout: float = TIMEOUT_SECONDS,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(address=address, node=node, timeout=timeout, ca=ca, cert=cert, key=key, **storage_options)
        self._address, self._timeout = address, timeout
        self._tls = {"ca": ca, "cert": cert, "key": key}
        self._connected = node

    @property
    def node(self) -> Node:
        """The node, connected when it is first needed."""
        if self._connected is None:
            self._connected = connect(self._address, timeout=self._timeout, **self._tls)
        return self._connected

    @property
    def fsid(self) -> str:
        """What tells this file system from others."""
        return f"forebay_{self.node.address}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return stringify_path(path).removeprefix("forebay://").strip("/")

    # --- looking ---

    def info(self, path: Any, **_kwargs: Any) -> Info:
        """Return what is known about a file or folder."""
        path = self._strip_protocol(path)
        if not path:
            return _folder("")
        if "/" in path:
            try:
                return _file(self.node.stat(path))
            except NotFoundError:
                pass
        prefix = f"{path}/"
        if next(iter(self.node.list(prefix)), None) is not None or path in self.node.buckets():
            return _folder(path)
        raise NotFoundError("there is no such file or folder", [("object", path)])

    def exists(self, path: Any, **kwargs: Any) -> bool:
        """Whether there is such a file or folder; a node that does not answer is an error, not a `False`."""
        try:
            self.info(path, **kwargs)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: Any, detail: bool = True, **_kwargs: Any) -> list[Any]:
        """List one level."""
        path = self._strip_protocol(path)
        if not path:
            entries = [_folder(name) for name in self.node.buckets()]
        else:
            entries = self._level(path)
            if not entries:
                info = self.info(path)
                entries = [info] if info["type"] == "file" else []
        entries.sort(key=lambda entry: str(entry["name"]))
        return entries if detail else [entry["name"] for entry in entries]

    def _level(self, path: str) -> list[Info]:
        level = self.node.list_level(f"{path}/")
        files = [_file(info) for info in level.objects if info.name != f"{path}/"]
        return files + [_folder(prefix.rstrip("/")) for prefix in level.prefixes]

    def find(
        self, path: Any, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """List everything below a folder, with one listing."""
        path = self._strip_protocol(path)
        if not path or maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        found: dict[str, Info] = {}
        for info in self.node.list(f"{path}/"):
            if not info.name.endswith("/"):
                found[info.name] = _file(info)
        if withdirs:
            found |= {name: _folder(name) for name in _folders(found, path)}
            if found or self.isdir(path):
                found[path] = _folder(path)
        if not found and self.isfile(path):
            found[path] = self.info(path)
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def modified(self, path: Any) -> datetime:
        """Return the time of the last change."""
        return _modified(self.info(path))

    def created(self, path: Any) -> datetime:
        """Return the time at which this version was written, which is also its last change."""
        return self.modified(path)

    def ukey(self, path: Any) -> str:
        """Return what changes with the content: the version."""
        return str(self.info(path).get("version", ""))

    def checksum(self, path: Any) -> int:
        """Return a number that changes with the content."""
        return int(tokenize(self._strip_protocol(path), self.ukey(path)), 16)

    # --- reading ---

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_kwargs: Any,
    ) -> ReadFile | WriteFile:
        if mode == "rb":
            return ReadFile(self, path, self.node.stat(path))
        if mode == "wb":
            return WriteFile(self, path, autocommit=autocommit)
        if mode == "xb":
            check_absent(self, path)
            return WriteFile(self, path, if_absent=True, autocommit=autocommit)
        if mode == "ab":
            start = self.node.read(path) if self.node.exists(path) else b""
            return WriteFile(self, path, start=start, autocommit=autocommit)
        raise UnsupportedError(f"files are opened to read (rb), write (wb, xb) or append (ab), not {mode!r}")

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_kwargs: Any) -> bytes:
        """Return the bytes of a file, or a part; negative places count from the end."""
        path = self._strip_protocol(path)
        if (start is not None and start < 0) or (end is not None and end < 0):
            size = self.node.stat(path).bytes
            start, end = _from_end(start, size), _from_end(end, size)
        start = start or 0
        length = None if end is None else max(end - start, 0)
        return b"" if length == 0 else self.node.read(path, start, length)

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **_kwargs: Any
    ) -> list[Any]:
        """Return parts of many files, fetched with one request."""
        if not isinstance(paths, list):
            raise TypeError("paths is a list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("as many starts and ends as paths")
        names = self._strip_protocol(paths)
        plain = all(
            (start or 0) >= 0 and (end is None or end > (start or 0)) for start, end in zip(starts, ends, strict=True)
        )
        if not plain:
            result: list[Any] = super().cat_ranges(paths, starts, ends, on_error=on_error)
            return result
        items = [
            (name, start or 0, None if end is None else end - (start or 0))
            for name, start, end in zip(names, starts, ends, strict=True)
        ]
        return self._batch(items, on_error)

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """Return the content of one file as bytes, or of many as a dict, fetched with one request."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0], **kwargs)
        files = [one for one in paths if not recursive or self.isfile(one)]
        found = zip(files, self._batch(list(files), "return"), strict=True)
        out: dict[str, Any] = {}
        for name, one in found:
            if isinstance(one, ForebayError) and on_error == "raise":
                raise one
            if isinstance(one, ForebayError) and on_error == "omit":
                continue
            out[name] = one
        return out

    def _batch(self, items: list[Any], on_error: str) -> list[Any]:
        out: list[Any] = []
        # In windows, so that a long list does not hold all of its memory at once.
        for start in range(0, len(items), 256):
            part: list[Item] = items[start : start + 256]
            for view in self.node.get_batch(part, errors="return"):
                if isinstance(view, ForebayError):
                    # Behind the end of a file there is nothing, as for every file.
                    view_bytes: Any = b"" if view.kind == "out_of_range" else view
                    if view_bytes is view and on_error == "raise":
                        raise view
                    out.append(view_bytes)
                else:
                    with view:
                        out.append(bytes(view))
        return out

    # --- writing ---

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **_kwargs: Any) -> None:
        """Write a file from memory."""
        self.node.put(self._strip_protocol(path), value, if_absent=mode == "create")

    def put_file(
        self, lpath: Any, rpath: Any, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_kwargs: Any
    ) -> None:
        """Write a file from a local one, piece by piece, so that it may be larger than memory."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        rpath = self._strip_protocol(rpath)
        with open(lpath, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            callback.set_size(size)
            with self.node.writer(rpath, size=size, if_absent=mode == "create") as target:
                while piece := file.read(WINDOW_BYTES_MAX):
                    target.write(piece)
                    callback.relative_update(len(piece))

    def cp_file(self, path1: Any, path2: Any, **_kwargs: Any) -> None:
        """Copy a file within the node's buckets."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.info(path1)["type"] == "directory":
            self.makedirs(path2, exist_ok=True)
            return
        stat = self.node.stat(path1)
        with self.node.get(path1, version=stat.version) as view:
            self.node.put(path2, view, content_type=stat.content_type, metadata=stat.metadata)

    def touch(self, path: Any, truncate: bool = True, **_kwargs: Any) -> None:
        """Make an empty file."""
        path = self._strip_protocol(path)
        if not truncate and self.node.exists(path):
            raise UnsupportedError("an object store cannot change the time of an object; write it again")
        self.node.put(path, b"")

    def mkdir(self, path: Any, create_parents: bool = True, **_kwargs: Any) -> None:
        """Make a bucket; a folder within one needs no making."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        if not bucket:
            return
        if not key or (create_parents and bucket not in self.node.buckets()):
            self.node.create_bucket(bucket)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Make a bucket; a folder within one needs no making."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self.mkdir(path)

    def rmdir(self, path: Any) -> None:
        """Folders go by themselves when they are empty; buckets stay."""
        if "/" not in self._strip_protocol(path):
            raise UnsupportedError("a bucket cannot be removed through a node; remove it at the lake")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with `recursive` all that is in folders."""
        if isinstance(path, str) and not has_magic(path):
            self.info(path)
        super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def rm_file(self, path: Any) -> None:
        """Remove a file."""
        path = self._strip_protocol(path)
        if "/" in path:
            self.node.delete(path)

    def _rm(self, path: Any) -> None:
        self.rm_file(path)


def _file(info: ObjectInfo) -> Info:
    return {
        "name": info.name,
        "size": info.bytes,
        "type": "file",
        "version": info.version,
        "ETag": info.version,
        "mtime": info.modified,
        "LastModified": info.modified_at,
        "ContentType": info.content_type,
        "metadata": info.metadata,
    }


def _folder(name: str) -> Info:
    return {"name": name, "size": 0, "type": "directory"}


def _modified(info: Info) -> datetime:
    if info["type"] != "file":
        raise NotFoundError("a folder has no time of its own", [("object", str(info["name"]))])
    modified: datetime = info["LastModified"]
    return modified


def _folders(names: Iterable[str], root: str) -> set[str]:
    """All folders between `root` and these names."""
    found: set[str] = set()
    for name in names:
        parent = name.rpartition("/")[0]
        while len(parent) > len(root) and parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return found


def _from_end(place: int | None, size: int) -> int | None:
    return max(size + place, 0) if place is not None and place < 0 else place
