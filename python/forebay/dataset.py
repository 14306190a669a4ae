"""`Dataset`: samples of shards in a lake, by number, without conversion."""

from __future__ import annotations

import datetime
import logging
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from forebay import _fields, _native
from forebay._fields import Fields
from forebay._loader import Loader, LoaderOptions, takes_loader_options
from forebay._reading import Reading
from forebay.errors import ChangedError, InvalidInputError
from forebay.node import Node, connect

if TYPE_CHECKING:
    from forebay._torch_data import IterableSamples, MapSamples

_log = logging.getLogger("forebay")

#: Bytes of a file of numpy's that certainly hold its header.
NPY_HEADER_BYTES = 64 << 10
#: A condition: column, operator, value; a list of values for `in` and `not in`.
Condition = tuple[str, str, Any]
#: Conditions of which all must hold, or lists of them of which one must.
Filter = Sequence[Condition] | Sequence[Sequence[Condition]]
#: Told how far the building of an index is: bytes done, bytes in all, shards done, shards in all.
Progress = Callable[[int, int, int, int], None]


class Dataset:
    """Samples of tar, TFRecord, MDS, Parquet, JSONL, token or raw files in a lake. Nothing is read before it is used.

    The first use looks for the shards and their index; where there is none, every shard is read once to build it, and
    it is stored beside the data (`.forebay/`). The dataset then is what it was at that moment: a shard that is replaced
    later raises `ChangedError`, and never gives other bytes.

    Threads may share one. It is safe under fork, and pickles as its name and options, so that workers open the same
    data.

    Args:
        names: `forebay://bucket/dir/{0000..1023}.tar`; unions with `::`; a folder that ends in `/`; or a list of these.
        fields: How fields are read: `{"jpg": "bytes", "cls": int}`; others are not. If left out: all, as they are.
        node: The node; `forebay.connect()` if left out.
        format: `tar`, `tfrecord`, `mds`, `raw`, `npy`, `bin`, `jsonl`, `parquet`; by default as the names suggest.
        tokens: For `npy` and `bin`: `(length, stride, type)` of token windows; of `npy` the type may be `None`.
        labels: For raw files: `"folder"`, the text of a manifest (`"path,label"` lines, or JSON lines), or its path as
            a `pathlib.Path`.
        index: `"changed"` builds what is missing, `"never"` refuses, `"always"` builds all of it.
        borrow_index: Whether places are taken from the `.idx` files that DALI's tools leave beside tar and TFRecord
            shards, instead of reading the shards: it starts at once, and samples have no checksums.
        shards_outside: Whether a wids index may name shards outside of its own folder (`forebay://bucket/…`). Such an
            index decides what else is read, so trust who wrote it.
        store_index: Whether a built index is stored beside the data.
        verify: `True` refuses files that are not what the `SHA256SUMS` in their folder says; a public key (PEM, or the
            path of one), or several, refuses also what none of them has signed. Of several folders each needs its
            own, or those of a bucket share one in the folder that they have in common. Every process that opens the
            dataset then reads all of it first; no stored index is believed.
        progress: Called while an index is built; `True` prints lines to the terminal.
        filter: Only samples for which it holds: `[("label", "==", 3), ("id", "in", [1, 2])]`, of which all must hold,
            or a list of such lists, of which one must (as pyarrow's `filters`). Columns are those of Parquet, or of the
            index, such as `label` of raw files. Decimals are compared exactly; a float means the digits that Python
            shows for it. Numbers of samples then count those that are left.
        part: Only these samples: the path of a list that `forebay dataset split` has written, or their numbers. A list
            of other data raises `ChangedError`. Numbers of samples then count those that are left.
        on_error: A damaged shard raises `CorruptError` when the dataset is opened (`"raise"`), or is left out whole
            (`"skip"`): it is warned of, `damaged_shards` names it, and the index is not stored. What happens to single
            bad samples is the loader's `on_error`.

    >>> import forebay, io, tarfile
    >>> node = forebay.open("memory://")
    >>> node.create_bucket("demo")
    >>> shard = io.BytesIO()
    >>> with tarfile.open(fileobj=shard, mode="w") as tar:
    ...     for number in range(3):
    ...         member = tarfile.TarInfo(f"{number:04}.cls")
    ...         member.size = 1
    ...         tar.addfile(member, io.BytesIO(b"%d" % number))
    >>> _ = node.put("demo/data/0.tar", shard.getvalue())
    >>> ds = forebay.Dataset("demo/data/{0..0}.tar", fields={"cls": int}, node=node)
    >>> len(ds), ds[2]
    (3, {'cls': 2})
    >>> [batch["cls"].tolist() for batch in ds.loader(batch_size=2, tail="pad")]
    [[0, 1], [2, 0]]
    >>> node.close()
    """

    def __init__(
        self,
        names: str | Sequence[str],
        fields: Fields | None = None,
        node: Node | None = None,
        *,
        format: str | None = None,  # noqa: A002 - the word that people know
        tokens: tuple[int, int, str | None] | int | None = None,
        labels: str | os.PathLike[str] | None = None,
        index: Literal["changed", "never", "always"] = "changed",
        store_index: bool = True,
        borrow_index: bool = False,
        shards_outside: bool = False,
        verify: bool | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = False,
        progress: Progress | bool | None = None,
        filter: Filter | None = None,  # noqa: A002 - the word that people know
        part: str | os.PathLike[str] | Sequence[int] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self._names = [names] if isinstance(names, str) else list(names)
        self._fields = _fields.parse(fields)
        self._given_node = node
        self._options: dict[str, Any] = {
            "format": format,
            "rebuild": index,
            "store": store_index,
            "borrow": borrow_index,
            "shards_outside": shards_outside,
            "verify": _keys(verify),
            "tokens": (tokens, tokens, None) if isinstance(tokens, int) else tokens,
            "labels": _labels(labels),
            "filter": _conditions(filter),
            "part": _part(part),
            "on_error": on_error,
        }
        self._progress = progress
        self._maps: tuple[Callable[[Any], Any], ...] = ()
        self._opened: _native.Dataset | None = None
        self._fingerprint: str | None = None
        self._known_encodings: dict[str, str] | None = None

    # --- opening ---

    def index(
        self, *, rebuild: Literal["changed", "never", "always"] | None = None, progress: Progress | bool | None = None
    ) -> Self:
        """Open the dataset now, and build its index if that is needed. Otherwise the first use does it.

        Args:
            rebuild: What is built; as the dataset was told if left out.
            progress: Called while the index is built; `True` prints lines.

        """
        if self._opened is None or rebuild == "always":
            self._open(rebuild, progress if progress is not None else self._progress)
        return self

    def _open(self, rebuild: str | None, progress: Progress | bool | None) -> None:
        fields = None
        if self._fields is not None:
            # Where the data has a field of keys (MDS, Parquet), that is read; else the keys that the format has.
            fields = [name for name in self._fields if name == _fields.KEY or not self._is_about(name)]
        tell = _print_progress if progress is True else progress or None
        options = {**self._options, "rebuild": rebuild or self._options["rebuild"]}
        opened = _native.Dataset(self.node._client, self._names, fields=fields, progress=tell, **options)
        if self._fingerprint is not None and opened.fingerprint != self._fingerprint:
            raise ChangedError(
                "the dataset is not the one that this process was sent: a shard was replaced; open it again everywhere",
                [("dataset", self._names[0])],
            )
        self._opened = opened
        self._fingerprint = opened.fingerprint
        for shard, reason in opened.damaged_shards:
            _log.warning("damaged shard %s is left out: %s", shard, reason)

    def _is_about(self, name: str) -> bool:
        return name in _fields.ABOUT or (name == _fields.LABEL and self._options["labels"] is not None)

    @property
    def _native(self) -> _native.Dataset:
        if self._opened is None:
            self.index()
        assert self._opened is not None
        return self._opened

    @property
    def node(self) -> Node:
        """The node that it reads through."""
        if self._given_node is None:
            self._given_node = connect()
        return self._given_node

    # --- what it is ---

    def __len__(self) -> int:
        return len(self._native)

    @property
    def fields(self) -> list[str]:
        """Names of all fields that occur in the data, sorted."""
        return self._native.fields

    @property
    def encodings(self) -> dict[str, str]:
        """How fields are encoded, where the format says so (MDS, tokens)."""
        return dict(self._encodings())

    def _encodings(self) -> dict[str, str]:
        """How fields are encoded, with the type of tokens: as it was given, or as the first file says."""
        if self._known_encodings is None:
            found = dict(self._native.encodings)
            windows = self._options["tokens"]
            if windows is not None and windows[2] is not None:
                found["tokens"] = windows[2]
            elif windows is not None and len(self):
                with self.node.get(self._native.samples([0], []).shards()[0], 0, NPY_HEADER_BYTES) as header:
                    found["tokens"] = _fields.npy_header(header)[2].name
            self._known_encodings = found
        return self._known_encodings

    def _decode(self) -> list[tuple[str, str]]:
        """Fields that the native module decodes."""
        fields = {name: how for name, how in (self._fields or {}).items() if not self._is_about(name)}
        return _fields.native(None if self._fields is None else fields, self._encodings())

    @property
    def index_origin(self) -> str:
        """Where the index came from: `stored`, `built` now, or `memory` (built, but not stored)."""
        return self._native.origin

    @property
    def shards(self) -> list[tuple[str, int, int]]:
        """Name, samples and bytes of every shard."""
        return self._native.shards()

    @property
    def damaged_shards(self) -> list[tuple[str, str]]:
        """Name and reason of every shard that was left out because it is damaged (`on_error="skip"`)."""
        return self._native.damaged_shards

    def find(self, key: str) -> int:
        """Return the number of the sample with this key; `NotFoundError` if there is none."""
        return self._native.find(key)

    # --- samples ---

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return self.samples(range(*number.indices(len(self))))
        if isinstance(number, str):
            raise TypeError(f"samples are taken by number; the one with a key is ds[ds.find({number!r})]")
        return self.samples([operator.index(number)])[0]

    def samples(self, numbers: Sequence[int]) -> list[Any]:
        """Return samples by their numbers, with one request. Negative numbers count from the end."""
        count = len(self._native)
        wanted = [number + count if number < 0 else number for number in numbers]
        for number, given in zip(wanted, numbers, strict=True):
            if not 0 <= number < count:
                raise IndexError(f"sample {given} of {count}")
        return self._read(wanted)

    def _read(
        self, numbers: Sequence[int], *, seed: int = 0, epochs: Sequence[tuple[int, int]] | None = None
    ) -> list[Any]:
        """Read samples; random steps of decoders are those of a seed and of the epoch of each, if there is one."""
        reading = Reading([self])
        found = self._native.samples(list(numbers), reading.native, seed=seed, epochs=epochs)
        return reading.read(found).checked_rows()

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self), 64):
            yield from self.samples(range(first, min(len(self), first + 64)))

    def map(self, function: Callable[[Any], Any]) -> Dataset:
        """Return the same dataset with a function that every sample goes through, after its fields were read.

        The function takes and returns a dict of fields. Several are applied one after the other.
        """
        mapped = Dataset.__new__(Dataset)
        mapped.__setstate__(self._state())
        mapped._opened, mapped._given_node = self._opened, self._given_node
        mapped._maps = (*self._maps, function)
        return mapped

    @takes_loader_options
    def loader(self, batch_size: int = 1, **options: Unpack[LoaderOptions]) -> Loader:
        """Return a loader: batch after batch, epoch after epoch. The options are those of `forebay.Loader`."""
        return Loader([(self, 1.0)], batch_size=batch_size, **options)

    def torch(self, *, iterable: bool = False, **options: Any) -> MapSamples | IterableSamples:
        """Return the dataset for torch's `DataLoader`.

        Args:
            iterable: `False`: by number, for torch's samplers. `True`: in the order of a loader, split over ranks and
                workers, with the `state_dict` that torchdata's `StatefulDataLoader` saves.
            options: By number: `seed` of random steps. For the iterable form: those of `loader`. With `batch_size` it
                gives whole batches (`DataLoader(…, batch_size=None)`), without it single samples, in runs of 32: what
                does not fill the last run of every rank is dropped, or filled up with `tail="pad"`.

        """
        from forebay import _torch_data

        if iterable:
            return _torch_data.IterableSamples(self, **options)
        others = sorted(set(options) - {"seed"})
        if others:
            raise InvalidInputError(f"the form by number takes no option but seed, and got {', '.join(others)}")
        return _torch_data.MapSamples(self, **options)

    def tf(self, output_signature: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Return a `tf.data.Dataset` of samples, or of batches if `batch_size` is given. Needs TensorFlow.

        Args:
            output_signature: What a sample or batch is, as `tf.data.Dataset.from_generator` wants it.
            batch_size: Samples of a batch. Single samples come in runs of 32: what does not fill the last run of every
                rank is dropped, or filled up with `tail="pad"`.
            options: Those of `loader`.

        """
        import tensorflow as tf

        from forebay._tf import generator

        return tf.data.Dataset.from_generator(generator(self, batch_size, options), output_signature=output_signature)

    # --- other processes ---

    def _state(self) -> dict[str, Any]:
        kept = ("_names", "_fields", "_given_node", "_options", "_progress", "_maps", "_fingerprint")
        return {name: getattr(self, name) for name in kept}

    def __getstate__(self) -> dict[str, Any]:
        # Whoever gets it must look at the same data: that is known once it is open.
        self.index()
        return {**self._state(), "_given_node": self.node}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = self._known_encodings = None

    def __repr__(self) -> str:
        size = f", {len(self._opened)} samples" if self._opened is not None else ""
        return f"<forebay.Dataset {'::'.join(self._names)}{size}>"


class Mix:
    """Several datasets as one, by weights. Made by `forebay.mix`."""

    def __init__(self, sources: Sequence[tuple[Dataset, float]], seed: int, stop: str) -> None:
        self._sources = list(sources)
        self._seed = seed
        self._stop = stop

    @takes_loader_options
    def loader(self, batch_size: int = 1, **options: Unpack[LoaderOptions]) -> Loader:
        """Return a loader over all of them. The options are those of `forebay.Loader`."""
        options.setdefault("seed", self._seed)
        return Loader(self._sources, batch_size=batch_size, stop=self._stop, **options)


def mix(
    sources: Sequence[tuple[Dataset, float]], *, seed: int = 0, stop: Literal["first", "all", "never"] = "first"
) -> Mix:
    """Mix datasets by weights, the same way in every run; a small one starts again as often as its weight asks for it.

    Args:
        sources: Datasets and their weights, of which only the proportions matter.
        seed: Another seed, another mixture.
        stop: An epoch ends before the `first` dataset would start again, when `all` came whole once, or `never`.

    """
    return Mix(sources, seed, stop)


def _conditions(given: Filter | None) -> list[list[tuple[str, str, list[Any]]]] | None:
    """A filter as the native module takes it: values are lists, dates and times text."""
    if given is None:
        return None
    groups = [given] if given and isinstance(given[0], tuple) else given

    def value(one: Any) -> Any:
        return one.isoformat() if isinstance(one, (datetime.date, datetime.datetime)) else one

    def condition(one: Any) -> tuple[str, str, list[Any]]:
        if not isinstance(one, tuple) or len(one) != 3:
            raise InvalidInputError(f"a condition of a filter is (column, operator, value), not {one!r}")
        column, operator, values = one
        if operator not in ("in", "not in"):
            values = [values]
        return column, operator, [value(each) for each in values]

    return [[condition(one) for one in group] for group in groups]


def _keys(verify: bool | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str] | None:
    """Public keys as PEM; none if the manifest is enough, `None` if nothing is verified."""
    if isinstance(verify, bool):
        return [] if verify else None
    given = [verify] if isinstance(verify, str | os.PathLike) else list(verify)
    if not given:
        raise InvalidInputError("no key is trusted, so no data could be; give a public key, or verify=True")
    read = [key if str(key).lstrip().startswith("-----BEGIN") else Path(key).read_text() for key in given]
    return [str(key) for key in read]


def _part(part: str | os.PathLike[str] | Sequence[int] | None) -> str | list[int] | None:
    """A part as the native module takes it: the text of a list, or numbers."""
    if part is None:
        return None
    if isinstance(part, str | os.PathLike):
        return Path(part).read_text(encoding="utf-8")
    return [int(number) for number in part]


def _labels(given: str | os.PathLike[str] | None) -> tuple[str, str] | None:
    if given is None:
        return None
    text = given if isinstance(given, str) else Path(given).read_text(encoding="utf-8")
    if text == "folder":
        return "folder", ""
    if text and "\n" not in text and "," not in text and not text.lstrip().startswith("{"):
        raise InvalidInputError(
            f'labels are "folder", the text of a list, or its path as a pathlib.Path: labels=pathlib.Path({text!r})'
        )
    return ("jsonl" if text.lstrip().startswith("{") else "csv"), text


def _print_progress(bytes_done: int, bytes_total: int, shards_done: int, shards_total: int) -> None:
    line = (
        f"forebay: indexed {bytes_done / 1e6:.0f} of {bytes_total / 1e6:.0f} MB, {shards_done} of {shards_total} shards"
    )
    end = "\n" if shards_done == shards_total or not sys.stderr.isatty() else "\r"
    print(line, end=end, file=sys.stderr, flush=True)
