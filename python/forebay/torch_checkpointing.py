"""A storage of `torch_checkpointing` (meta-pytorch): its renaming of a folder is one create-only commit here.

```python
from forebay.torch_checkpointing import ForebayStorageConfig

storage = ForebayStorageConfig("forebay://lake/run-7")
manager = CheckpointManager(CheckpointManager.Config(items=..., storage_config=storage))
manager.save("step-100", {"model": model})
```

Ids are paths below the root, not URLs. Files are in its own formats; each block of them is proved when it is read.
"""

from __future__ import annotations

import errno
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig

from forebay._folders import FileReader, Folders
from forebay.node import connect


@dataclass
class ForebayStorageConfig(StorageConfig):
    """Where checkpoints go: `forebay://bucket/run`, through this node (by default that of this host)."""

    root: str
    node: str | None = None

    def create_storage(self) -> ForebayStorage:
        """Connect."""
        return ForebayStorage(self)


class ForebayStorage(Storage):
    """Files and folders of a run; what a rename makes visible is whole."""

    def __init__(self, config: ForebayStorageConfig) -> None:
        self.config = config
        self.folders = Folders(connect(config.node), config.root)
        #: Folders that were made, and have nothing in them yet: a lake has no such thing.
        self._made: set[str] = set()

    # --- reading ---

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> Any:
        """Return a file to be read; each block is proved on the way."""
        return FileReader(self.folders, _path(path))

    def ls(self, path: Path) -> list[str]:
        """List a folder."""
        return self.folders.names(_path(path))

    def exists(self, path: Path) -> bool:
        """Whether there is such a file or folder."""
        name = _path(path)
        return name in self._made or self.folders.is_file(name) or self.folders.is_folder(name)

    def isdir(self, path: Path) -> bool:
        """Whether there is such a folder."""
        name = _path(path)
        return name in self._made or (not self.folders.is_file(name) and self.folders.is_folder(name))

    def getsize(self, path: Path) -> int:
        """Return how long a file is."""
        return self.folders.find(_path(path)).bytes

    def remap_path(self, path: Path) -> str:
        """Return the URL of a path."""
        return f"forebay://{self.folders.root}/{_path(path)}"

    # --- writing ---

    def stream_write(self, path: Path) -> io.IOBase:
        """Return a file to be written; it is there when it is closed."""
        return self.folders.create(_path(path))

    def write(self, path: Path, data: Any) -> None:
        """Write a file."""
        with self.folders.create(_path(path)) as file:
            file.write(data)

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Folders need no making."""
        self._made.add(_path(path))

    def rename(
        self, src_path: Path, dst_path: Path, is_directory: bool = False, background_cleanup: bool = False
    ) -> None:
        """Commit: what is at one path appears at the other, whole, if nothing is there."""
        source, target = _path(src_path), _path(dst_path)
        if not self.folders.is_file(source):
            self.folders.rename_folder(source, target)
            self._made.discard(source)
        elif self.isdir(dst_path):
            raise IsADirectoryError(errno.EISDIR, "a folder is there", target)
        else:
            self.folders.rename_file(source, target)

    # --- removing ---

    def delete(self, path: Path) -> None:
        """Remove a file that was not committed."""
        self.folders.remove_file(_path(path))

    def rmdir(self, path: Path) -> None:
        """Remove a folder with all that is in it."""
        self._made.discard(_path(path))
        self.folders.remove_folder(_path(path))


def _path(path: Path) -> str:
    """A path below the root, as lakes have them."""
    parts = [part for part in Path(path).parts if part not in ("/", ".")]
    if ".." in parts:
        raise ValueError(f"a path of a checkpoint has no '..': {path}")
    return "/".join(parts)
