"""`Loader`: batches of an epoch in order, on any number of ranks, resumed exactly, with the reason for every wait."""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from forebay import _native
from forebay._batches import DecodedBatch
from forebay._reading import Reading
from forebay.errors import CorruptError, InvalidInputError

if TYPE_CHECKING:
    from forebay.dataset import Dataset

_log = logging.getLogger("forebay")

#: Bad samples that are kept word by word; further ones are only counted.
BAD_KEPT_MAX = 1000


class LoaderOptions(TypedDict, total=False):
    """Options of a loader, by name."""

    shuffle: Literal["window", "global"] | None
    window: int | str | None
    seed: int
    take: float | int | None
    rank: int | None
    world_size: int | None
    tail: Literal["drop", "pad"]
    on_error: Literal["raise", "skip", "substitute"]
    prefetch: int | str
    epoch: int
    threads: int | None
    batches_ahead: int | None
    decode_threads: int | None


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be used."""

    #: The epoch.
    epoch: int
    #: Which dataset of a mix.
    source: int
    #: Its number there.
    number: int
    #: Its shard.
    shard: str
    #: Its key, if it has one.
    key: str | None
    #: What was wrong.
    reason: str
    #: The sample that came in its place.
    substitute: int | None = None


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader did so far, and what its consumer waited for."""

    #: Batches handed over.
    batches: int
    #: Samples in them.
    samples: int
    #: Their bytes.
    bytes: int
    #: Bytes that the node had in memory.
    bytes_ram: int
    #: Bytes that the node had on NVMe.
    bytes_nvme: int
    #: Bytes that this loader made the node read from the lake.
    bytes_lake: int
    #: Seconds waited for reads that needed the lake.
    wait_lake_seconds: float
    #: Seconds waited for reads of what the node had.
    wait_cache_seconds: float
    #: Seconds waited for checksums and putting together.
    wait_check_seconds: float
    #: Seconds waited for decoding on the threads of the loader.
    wait_decode_seconds: float
    #: Seconds of handing over batches that were ready.
    hand_over_seconds: float
    #: Seconds that Python itself took: for fields that only it can read, and for functions of `map`.
    python_seconds: float
    #: Seconds that the consumer itself took between batches.
    user_seconds: float
    #: How many samples could not be used.
    bad_samples: int
    #: The first thousand of them.
    bad: list[BadSample]

    def since(self, before: LoaderStats) -> LoaderStats:
        """Return what was done after other statistics of the same loader were taken."""
        names = [field.name for field in fields(self) if field.name != "bad"]
        differences = {name: getattr(self, name) - getattr(before, name) for name in names}
        known = set(before.bad)
        return LoaderStats(**differences, bad=[one for one in self.bad if one not in known])

    def summary(self) -> str:
        """Return one line: what was read, and where the time went."""
        times = [
            ("lake", self.wait_lake_seconds),
            ("cache", self.wait_cache_seconds),
            ("check", self.wait_check_seconds),
            ("decode", self.wait_decode_seconds),
            ("hand-over", self.hand_over_seconds),
            ("python", self.python_seconds),
            ("user", self.user_seconds),
        ]
        total = sum(seconds for _, seconds in times) or 1.0
        shares = ", ".join(f"{name} {seconds:.2f} s ({100 * seconds / total:.0f} %)" for name, seconds in times)
        read = f"{self.batches} batches, {self.samples} samples, {self.bytes / 1e6:.1f} MB"
        return f"{read}: {shares}; {self.bad_samples} bad"


class Loader:
    """Batches of a dataset or of a mix. Made by `Dataset.loader` and `Mix.loader`.

    Iterating gives the batches of one epoch as dicts, field to values: an array for numbers and tokens, else a list.
    The next `for` loop gives the next epoch. A loop that was left in the middle is taken up by the next one, so nothing
    is lost or comes twice; `set_epoch` starts over. Threads read ahead from the first batch on, and end with `close()`
    or the loader.

    Args:
        sources: Datasets and weights.
        batch_size: Samples of a batch of this rank.
        stop: When an epoch of a mix ends.
        options: See below.

    Options:
        shuffle: `"window"` mixes inside of windows, which are read in long stretches; `"global"` everything; `None`
            nothing.
        window: Samples (`10_000`) or bytes (`"512MiB"`) of a window; 128 MiB by default.
        seed: Another seed, another order.
        take: A fraction (`0.1`) or a number of samples of an epoch, others in each.
        rank: Which rank this is; by default torch.distributed's if it is initialised, else `RANK`, else 0.
        world_size: How many ranks; likewise, `WORLD_SIZE`, 1.
        tail: Samples at the end that do not fill a step of all ranks are dropped (`"drop"`), or the step is filled up
            with the first ones of the epoch (`"pad"`).
        on_error: A sample that is damaged or cannot be decoded raises (`"raise"`), is left out of its batch (`"skip"`),
            or is replaced by another one (`"substitute"`).
        prefetch: `"auto"`, `"off"`, or bytes to read ahead of the consumer.
        epoch: The first epoch.
        threads: Threads that read batches.
        batches_ahead: Batches that are ready or under way, at most.
        decode_threads: Threads that decode pictures and JSON; by default as many as there are cores for this rank.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Dataset, float]],
        *,
        batch_size: int = 1,
        stop: str | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        if not sources:
            raise InvalidInputError("a mix needs at least one dataset")
        unknown = sorted(set(options) - set(LoaderOptions.__annotations__))
        if unknown:
            known = ", ".join(sorted(LoaderOptions.__annotations__))
            raise InvalidInputError(f"a loader has no option {', '.join(unknown)}; there are {known}")
        self._sources = list(sources)
        self._on_error = options.get("on_error", "raise")
        native_options = _native_options(batch_size, stop, options)
        self._reading = Reading([dataset for dataset, _ in sources])
        self._options = {**native_options, "decode": self._reading.native}
        self._maps: list[Callable[[Any], Any]] = []
        self._bad: list[BadSample] = []
        self._bad_count = 0
        self._python_seconds = 0.0
        self._loader = _native.Loader([(dataset._native, weight) for dataset, weight in sources], self._options)
        #: As they were when this epoch began.
        self._epoch_stats = self.stats()

    # --- batches ---

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            found = self._loader.next()
            if found is None:
                self._end_epoch()
                return
            started = time.perf_counter()
            batch, (epoch, _, _) = found
            try:
                decoded: Any = self._settled(batch, epoch)
                for function in self._maps:
                    decoded = function(decoded)
            except BaseException:
                # As if it had never been asked for: a state that is taken now comes back to this batch.
                self._loader.give_back()
                raise
            finally:
                self._python_seconds += time.perf_counter() - started
            yield decoded

    def _end_epoch(self) -> None:
        stats, epoch = self.stats(), self.epoch - 1
        mixing = self._loader.mixing(epoch) if _log.isEnabledFor(logging.INFO) else None
        mixed = "" if mixing is None else f"; mixing {mixing:.2f}"
        if len(self) == 0:
            _log.warning(
                "epoch %d had no batch: its samples do not fill one on every rank; take a smaller one, or tail='pad'",
                epoch,
            )
        _log.info("epoch %d ended: %s%s", epoch, stats.since(self._epoch_stats).summary(), mixed)
        self._epoch_stats = stats

    def map(self, function: Callable[[dict[str, Any]], Any]) -> Self:
        """Let every batch go through a function; returns the loader."""
        self._maps.append(function)
        return self

    def _settled(self, batch: _native.Batch, epoch: int) -> dict[str, Any]:
        """Fields of a batch, with bad samples treated as the options say."""
        decoded = self._reading.read(batch)
        if not decoded.has_faults:
            return decoded.fields()
        bad = [at for at, fault in enumerate(decoded.faults) if fault is not None]
        if self._on_error == "raise":
            fault = decoded.faults[bad[0]]
            assert fault is not None
            raise fault
        good = [at for at in range(len(batch)) if decoded.faults[at] is None]
        order = good
        if self._on_error == "substitute":
            if not good:
                raise CorruptError("no sample of the batch can take the place of the bad ones") from decoded.faults[
                    bad[0]
                ]
            # The next good one of the batch, which every run finds alike.
            order = [min(good, key=lambda one: (one - at) % len(batch)) for at in range(len(batch))]
        self._record(decoded, bad, order, epoch)
        return decoded.fields(order)

    def _record(self, decoded: DecodedBatch, bad: list[int], order: list[int], epoch: int) -> None:
        numbers, shards = decoded.batch.numbers(), decoded.batch.shards()
        keys, sources = decoded.batch.keys(), decoded.batch.sources()
        self._bad_count += len(bad)
        for at in bad:
            substitute = numbers[order[at]] if self._on_error == "substitute" else None
            one = BadSample(epoch, sources[at], numbers[at], shards[at], keys[at], str(decoded.faults[at]), substitute)
            _log.warning("bad sample %s of %s: %s", one.key or one.number, one.shard, one.reason)
            if len(self._bad) < BAD_KEPT_MAX:
                self._bad.append(one)

    # --- where it stands ---

    def __len__(self) -> int:
        steps = self._loader.steps()[0]
        if steps is None:
            raise TypeError("the epoch of this mix never ends, so it has no length")
        return steps

    @property
    def steps_left(self) -> int | None:
        """Steps that are left of this epoch; `None` if it never ends."""
        return self._loader.steps()[1]

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._loader.epoch()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._loader.set_epoch(epoch)

    @property
    def dropped_and_padded(self) -> tuple[int, int]:
        """Samples of this epoch that no rank sees, and those that come twice, so that all ranks have equal steps."""
        return self._loader.dropped_and_padded()

    @property
    def mixing(self) -> float | None:
        """How well this epoch is mixed: 1 is perfect, 0 is the order of the data; `None` for fewer than 100 samples.

        It is the median distance of samples that follow each other, as a part of what perfect shuffling gives; of
        several datasets that of the worst.
        """
        return self._loader.mixing(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where all ranks stand after the batches handed over: a few numbers. One rank's is enough for all.

        It may be loaded with another number of ranks and another batch size: the samples that are left come, each once.
        """
        state: dict[str, Any] = json.loads(self._loader.state())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken, in the order that it was taken in.

        Seed, shuffling and how much an epoch takes are those of the state, whatever this loader was told.
        `ChangedError` if the data is not the same any more.
        """
        self._loader.resume(json.dumps(state))

    # --- looking ---

    def stats(self) -> LoaderStats:
        """Return what was read, and what the consumer waited for."""
        found = self._loader.stats()
        bad = [BadSample(*one) for one in found.pop("bad")]
        found["bad_samples"] += self._bad_count
        # What the native module takes for the consumer's time is partly ours.
        found["user_seconds"] = max(0.0, found["user_seconds"] - self._python_seconds)
        return LoaderStats(**found, python_seconds=self._python_seconds, bad=(bad + self._bad)[:BAD_KEPT_MAX])

    # --- life ---

    def close(self) -> None:
        """End its threads. Batches stay valid."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_loader"] = self._loader.state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._loader = _native.Loader([(dataset._native, weight) for dataset, weight in self._sources], self._options)
        self._loader.resume(state["_loader"])


def _native_options(batch_size: int, stop: str | None, options: LoaderOptions) -> dict[str, Any]:
    """Options as the native module takes them."""
    _check(batch_size, options)
    rank, world_size = ranks(options.get("rank"), options.get("world_size"))
    window, take = options.get("window"), options.get("take")
    return {
        "batch_size": batch_size,
        "stop": stop,
        "shuffle": options.get("shuffle"),
        "window_bytes" if isinstance(window, str) else "window": window,
        "seed": options.get("seed", 0),
        "take_samples" if isinstance(take, int) else "take": take,
        "rank": rank,
        "world_size": world_size,
        "tail": options.get("tail", "drop"),
        "on_error": options.get("on_error", "raise"),
        "prefetch": str(options.get("prefetch", "auto")),
        "epoch": options.get("epoch", 0),
        "threads": options.get("threads"),
        "decode_threads": options.get("decode_threads") or decode_threads(),
        "batches_ahead": options.get("batches_ahead"),
    }


def _check(batch_size: int, options: LoaderOptions) -> None:
    """Say which option is wrong, where the native module would only say that a number is."""
    given = {"batch_size": batch_size, **options}
    for name in ("batch_size", "seed", "epoch", "rank", "world_size", "threads", "batches_ahead", "decode_threads"):
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidInputError(f"{name} is a whole number, not {value!r}")
        if not 0 <= operator.index(value) < 2**64:
            raise InvalidInputError(f"{name} is between 0 and 2^64 - 1, not {value!r}")
    shuffle = given.get("shuffle")
    if shuffle is not None and not isinstance(shuffle, str):
        raise InvalidInputError(f'shuffle is "window", "global" or None, not {shuffle!r}')
    window = given.get("window")
    if not (window is None or isinstance(window, str) or (hasattr(window, "__index__") and operator.index(window) > 0)):
        raise InvalidInputError(f'window is a number of samples above 0, or bytes as "512MiB", not {window!r}')


def decode_threads() -> int:
    """Return as many threads as there are cores for this process, at most 16; ranks of one host share them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(16, cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))))


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, of torch.distributed, of the environment, or 0 and 1."""
    if (rank is None) != (world_size is None):
        raise InvalidInputError("rank and world_size go together: give both, or none")
    if rank is not None and world_size is not None:
        return rank, world_size
    # Only if somebody uses it: torch is not imported for this.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
