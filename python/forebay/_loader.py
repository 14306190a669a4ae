"""`Loader`: batches of an epoch in order, on any number of ranks, resumed exactly, with the reason for every wait."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypedDict, TypeVar

from forebay import _native
from forebay._batches import DecodedBatch
from forebay._data_ranks import DataRanks
from forebay._reading import Reading
from forebay.errors import CorruptError, InvalidInputError

if TYPE_CHECKING:
    from forebay.dataset import Dataset

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger("forebay")

#: Bad samples that are kept word by word; further ones are only counted.
BAD_KEPT_MAX = 1000


class LoaderOptions(TypedDict, total=False):
    """Options of a loader, by name, for those who pass them on."""

    shuffle: Literal["window", "global"] | None
    window: int | str | None
    seed: int
    take: float | int | None
    rank: int | None
    world_size: int | None
    mesh: Any
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
    As in torch, `iter(loader)` begins an epoch: always the next one, however the last loop ended (by its end, by
    `break`, by `islice`). `set_epoch` chooses another. Only a state that was loaded goes on in the middle of one. An
    iteration that was overtaken by another is refused. Threads read ahead from the first batch on, and end with
    `close()` or the loader.

    Args:
        sources: Datasets and weights.
        batch_size: Samples of a batch of this rank.
        stop: When an epoch of a mix ends.
        shuffle: `"window"` mixes inside of windows, which are read in long stretches; `"global"` everything; `None`
            nothing.
        window: Samples (`10_000`) or bytes (`"512MiB"`) of a window; 128 MiB by default.
        seed: Another seed, another order.
        take: A fraction (`0.1`) or a number of samples of an epoch, others in each.
        rank: Which rank this is; by default torch.distributed's if it is initialised, else `RANK`, else 0, looked up
            when an iteration begins.
        world_size: How many ranks; likewise, `WORLD_SIZE`, 1.
        mesh: Instead of both: a `DeviceMesh` of torch. Ranks along data dimensions (`dp`, `dp_shard`, `fsdp` …) read
            different batches, those along `tp`, `pp`, `cp` … the same. A mesh of one dimension is that of the data.
        tail: Samples at the end that do not fill a step of all ranks are dropped (`"drop"`), or the step is filled up
            with the first ones of the epoch (`"pad"`).
        on_error: A sample that is damaged or cannot be decoded raises (`"raise"`), is left out of its batch (`"skip"`),
            or is replaced by another one (`"substitute"`).
        prefetch: `"auto"`, `"off"`, or bytes to read ahead of the consumer.
        epoch: The first epoch.
        threads: Threads that read batches.
        batches_ahead: Batches that are ready or under way, at most.
        decode_threads: Threads that decode images and JSON; by default as many as there are cores for this rank.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Dataset, float]],
        *,
        batch_size: int = 1,
        stop: str | None = None,
        shuffle: Literal["window", "global"] | None = None,
        window: int | str | None = None,
        seed: int = 0,
        take: float | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        tail: Literal["drop", "pad"] = "drop",
        on_error: Literal["raise", "skip", "substitute"] = "raise",
        prefetch: int | str = "auto",
        epoch: int = 0,
        threads: int | None = None,
        batches_ahead: int | None = None,
        decode_threads: int | None = None,
    ) -> None:
        if not sources:
            raise InvalidInputError("a mix needs at least one dataset")
        self._ranks = DataRanks(rank, world_size, mesh)
        self._sources = list(sources)
        self._on_error = on_error
        self._reading = Reading([dataset for dataset, _ in sources])
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "stop": stop,
            "shuffle": shuffle,
            "window": window,
            "seed": seed,
            "take": take,
            "rank": self._ranks.rank,
            "world_size": self._ranks.world_size,
            "tail": tail,
            "on_error": on_error,
            "prefetch": prefetch,
            "epoch": epoch,
            "decode": self._reading.native,
            "threads": threads,
            "batches_ahead": batches_ahead,
            "decode_threads": decode_threads or decode_threads_default(),
        }
        self._maps: list[Callable[[Any], Any]] = []
        self._bad: list[BadSample] = []
        self._bad_count = 0
        #: Samples of batches that were read and not handed over, because Python found them bad.
        self._left_out = 0
        self._python_seconds = 0.0
        #: How many iterations began; only the last one may go on.
        self._iteration = 0
        #: The process that took batches of this epoch, if no state was loaded since. A copy of the loader in another
        #: process, by fork or pickle, goes on where the loader stood.
        self._taken_by: int | None = None
        self._loader = self._native_loader()
        #: As they were when this epoch began.
        self._epoch_stats = self.stats()

    def _native_loader(self) -> _native.Loader:
        return _native.Loader([(dataset._native, weight) for dataset, weight in self._sources], **self._options)

    def _look_up_ranks(self) -> None:
        """Become the rank that this process is by now. A state is of all ranks, so nothing is lost."""
        if not self._ranks.look():
            return
        state = self._loader.state()
        self._loader.close()
        self._options.update(rank=self._ranks.rank, world_size=self._ranks.world_size)
        self._loader = self._native_loader()
        self._loader.resume(state)
        self._epoch_stats = self.stats()

    # --- batches ---

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._look_up_ranks()
        self._begin_epoch()
        return _Batches(self, self._iteration)

    def _begin_epoch(self) -> None:
        """Go to where the next iteration begins: a new epoch, unless a state was loaded or nothing was taken yet."""
        self._iteration += 1
        if self._taken_by != os.getpid():
            return
        self._taken_by = None
        if self.steps_left == 0:
            # All batches were taken, but not the end: what is read ahead of the next epoch stays.
            if self._loader.next() is None:
                self._end_epoch()
        else:
            self._loader.set_epoch(self._loader.epoch() + 1)
            self._epoch_stats = self.stats()

    def _next(self) -> dict[str, Any] | None:
        """Return the next batch of this epoch; `None` at its end."""
        found = self._loader.next()
        if found is None:
            self._taken_by = None
            self._end_epoch()
            return None
        started = time.perf_counter()
        batch, (epoch, _, _, bad) = found
        for one in bad:
            _warn_of(BadSample(*one))
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
        self._taken_by = os.getpid()
        return decoded  # type: ignore[no-any-return]

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
        if not good and self._on_error == "skip":
            raise CorruptError(
                "every sample of a batch is bad, and an empty batch would break loops and ranks that step together; "
                "take a larger batch, or mend the data",
                [("epoch", str(epoch))],
            ) from decoded.faults[bad[0]]
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
        batch = decoded.batch
        numbers, shards, keys, sources = batch.numbers(), batch.shards(), batch.keys(), batch.sources()
        self._bad_count += len(bad)
        self._left_out += len(batch) - len(order)
        for at in bad:
            substitute = numbers[order[at]] if self._on_error == "substitute" else None
            one = BadSample(epoch, sources[at], numbers[at], shards[at], keys[at], str(decoded.faults[at]), substitute)
            _warn_of(one)
            if len(self._bad) < BAD_KEPT_MAX:
                self._bad.append(one)

    # --- where it stands ---

    def __len__(self) -> int:
        self._look_up_ranks()
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
        """Let the next iteration begin this epoch."""
        self._loader.set_epoch(epoch)
        self._taken_by = None

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
        `ChangedError` if the data is not the same any more. The next iteration goes on there.
        """
        self._loader.resume(json.dumps(state))
        self._taken_by = None

    # --- looking ---

    def stats(self) -> LoaderStats:
        """Return what was read, and what the consumer waited for."""
        found = self._loader.stats()
        counts = {field.name: getattr(found, field.name) for field in fields(LoaderStats) if hasattr(found, field.name)}
        bad = [BadSample(*one) for one in found.bad]
        counts["bad_samples"] += self._bad_count
        # The native module has counted what it handed to Python.
        counts["samples"] -= self._left_out
        # What the native module takes for the consumer's time is partly ours.
        counts["user_seconds"] = max(0.0, found.user_seconds - self._python_seconds)
        counts["python_seconds"] = self._python_seconds
        return LoaderStats(**{**counts, "bad": (bad + self._bad)[:BAD_KEPT_MAX]})

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
        self._loader = self._native_loader()
        self._loader.resume(state["_loader"])
        self._taken_by = None


class _Batches(Iterator[dict[str, Any]]):
    """One iteration of a loader. After an error it may go on: the batch that failed is tried again."""

    def __init__(self, loader: Loader, iteration: int) -> None:
        self._loader = loader
        self._iteration = iteration
        self._is_done = False

    def __next__(self) -> dict[str, Any]:
        if self._is_done:
            raise StopIteration
        if self._loader._iteration != self._iteration:
            raise InvalidInputError(
                "another iteration of this loader has begun, and a loader has one at a time: make a loader for each"
            )
        batch = self._loader._next()
        if batch is None:
            self._is_done = True
            raise StopIteration
        return batch


def _warn_of(bad: BadSample) -> None:
    instead = "left out" if bad.substitute is None else f"sample {bad.substitute} in its place"
    _log.warning("bad sample %s of %s, %s: %s", bad.key or bad.number, bad.shard, instead, bad.reason)


def decode_threads_default() -> int:
    """Return as many threads as there are cores for this process, at most 16; ranks of one host share them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(16, cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))))


def takes_loader_options(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a method that passes `**options` on to a loader show them in `help`, and refuse others by name."""
    own = list(inspect.signature(method).parameters.values())
    of_loader = inspect.signature(Loader).parameters
    options = [of_loader[name] for name in LoaderOptions.__annotations__]

    @functools.wraps(method)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        unknown = sorted(set(kwargs) - set(LoaderOptions.__annotations__) - {one.name for one in own})
        if unknown:
            known = ", ".join(sorted(LoaderOptions.__annotations__))
            raise InvalidInputError(f"a loader has no option {', '.join(unknown)}; there are {known}")
        return method(*args, **kwargs)

    shown = inspect.Signature([*own[:-1], *options], return_annotation=Loader)
    checked.__signature__ = shown  # type: ignore[attr-defined]
    return checked
