"""Datasets for torch's `DataLoader`: by number, and in the order of a loader. Imported by those who use torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from forebay import _native
from forebay._data_ranks import DataRanks, outer_sharding
from forebay._epochs import Epochs
from forebay._loader import Loader, LoaderOptions, decode_threads_default
from forebay._sample_epochs import EpochSampler, SampleEpochs
from forebay.errors import InvalidInputError

if TYPE_CHECKING:
    from forebay.dataset import Dataset

#: Samples that are read with one request where they are handed out one by one.
CHUNK_SAMPLES = 32


def _as_list(batch: list[Any], **_: Any) -> list[Any]:
    return batch


def _teach_collate() -> None:
    """Let torch's default collate keep views as they are, in a list, as it does with strings."""
    default_collate_fn_map.setdefault(_native.View, _as_list)


class MapSamples(torch.utils.data.Dataset[Any]):
    """Samples by number, for torch's samplers. Workers read many with one request.

    Random steps of decoders depend on the seed, the epoch and the sample. The epoch is known by `sampler`, by workers
    that are started for each, or by `set_epoch`; where it is not, samples with random steps are refused.
    """

    def __init__(self, dataset: Dataset, seed: int = 0) -> None:
        _teach_collate()
        self.dataset = dataset.index()
        self.seed = seed
        self._epochs = SampleEpochs([name for name, how in dataset._decode() if "random_" in how])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return many samples, as torch's fetcher asks for them."""
        count = len(self.dataset)
        plain = [int(number) + count if number < 0 else int(number) for number in numbers]
        occasions = self._epochs.of(numbers, count)
        return self.dataset._read(plain, seed=self.seed, epochs=occasions)

    def sampler(self, sampler: Any = None, *, shuffle: bool = True, epoch: int = 0) -> EpochSampler:
        """Return a sampler that tells random steps which epoch it is: the next one with each iteration.

        Args:
            sampler: The sampler that says which samples come, such as torch's `DistributedSampler`; if left out, all.
            shuffle: Whether they come in random order, if no sampler is given.
            epoch: The first epoch.

        """
        if sampler is None:
            kind = torch.utils.data.RandomSampler if shuffle else torch.utils.data.SequentialSampler
            sampler = kind(self)
        return EpochSampler(sampler, self, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let random steps be those of this epoch from now on."""
        self._epochs.set_epoch(epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _teach_collate()
        self.__dict__.update(state)


class IterableSamples(torch.utils.data.IterableDataset[Any]):
    """Samples or batches in the order of a loader, split over ranks and then over the workers of a `DataLoader`.

    A worker takes every n-th batch, so that the `DataLoader` hands them out in the order of the epoch. Without
    `batch_size` single samples come, in runs of 32 per worker. Each iteration of the `DataLoader` is the next epoch,
    whether its workers live on or not; `set_epoch` chooses another. `state_dict` and `load_state_dict` are those of
    torchdata's `StatefulDataLoader`, which must have as many workers as when the state was taken. With none or one, and
    between batches, other ranks and batch sizes may go on with it, as with `Loader`.
    """

    def __init__(self, dataset: Dataset, batch_size: int | None = None, **options: Unpack[LoaderOptions]) -> None:
        _teach_collate()
        self.dataset = dataset.index()
        self.batch_size = batch_size
        self._ranks = DataRanks(options.pop("rank", None), options.pop("world_size", None), options.pop("mesh", None))
        self.options = options
        #: Who shards what this dataset gives in the process that sent it here.
        self._outer: str | None = None
        self._epochs = Epochs(int(options.get("epoch", 0)))
        #: How many iterations began in this process.
        self._iterations = 0
        self._walk: _Walk | None = None
        self._resume: dict[str, Any] | None = None
        # A fault in the options is said here, and not by a worker; which rank this is may not be known yet.
        own = LoaderOptions(**{**options, "rank": self._ranks.rank, "world_size": self._ranks.world_size})
        self.dataset.loader(batch_size or CHUNK_SAMPLES, **own).close()

    def _loader(self, worker: int, workers: int) -> Loader:
        """The part of one worker.

        Its batches are those of rank `worker x world + rank` among `workers x world` ranks: the same slices of the same
        steps. Where these steps end is counted here, because that many ranks would drop or pad more at the end.
        """
        rank, world = self._rank_and_world()
        options = LoaderOptions(**{**self.options, "rank": worker * world + rank, "world_size": workers * world})
        if workers > 1:
            options["tail"] = "pad"
            options.setdefault("decode_threads", max(1, decode_threads_default() // workers))
        return self.dataset.loader(self.batch_size or CHUNK_SAMPLES, **options)

    def _rank_and_world(self) -> tuple[int, int]:
        """Which part of the data is given: this rank's, or all of it where somebody else gives each rank its part."""
        outer = outer_sharding() or (self._outer if torch.utils.data.get_worker_info() is not None else None)
        if outer is None:
            self._ranks.look()
            return self._ranks.rank, self._ranks.world_size
        if self._ranks.is_given:
            raise InvalidInputError(
                f"{outer} gives each rank its part of this dataset, which was told to give only that of rank "
                f"{self._ranks.rank} of {self._ranks.world_size}: leave rank, world_size and mesh out, or do not "
                f"prepare the DataLoader with {outer}"
            )
        return 0, 1

    def _shape(self) -> list[int]:
        """Samples of a batch and number of ranks: what a step is made of."""
        return [self.batch_size or CHUNK_SAMPLES, self._rank_and_world()[1]]

    def _steps(self, samples: int, shape: list[int]) -> int:
        """Steps of this rank in an epoch of so many samples."""
        batch_size, world_size = shape
        step = batch_size * world_size
        return -(-samples // step) if self.options.get("tail") == "pad" else samples // step

    def __len__(self) -> int:
        steps = self._steps(self._epoch_samples(), self._shape())
        return steps if self.batch_size is not None else steps * CHUNK_SAMPLES

    def _epoch_samples(self) -> int:
        with self._loader(0, 1) as loader:
            return int(loader.state_dict()["sources"][0]["epoch_samples"])

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch, also in workers that live on."""
        self._epochs.set_next(epoch)
        self._resume = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is."""
        if self._resume is not None:
            return int(self._resume["epoch"])
        return self._epochs.next(torch.utils.data.get_worker_info())

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        state, self._resume = self._resume, None
        epoch = self._epochs.begin(info, self._iterations, None if state is None else int(state["epoch"]))
        self._iterations += 1
        self._walk = walk = _Walk(self, worker, workers, epoch)
        if state is not None:
            walk.resume(state)
        yield from walk

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands."""
        if self._walk is not None:
            return self._walk.state_dict()
        return self._resume or {"epoch": self.epoch, "shape": self._shape()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin where a worker of this number stood."""
        self._resume, self._walk = state, None

    def __getstate__(self) -> dict[str, Any]:
        # Workers that are spawned have another stack, and know nothing of torch.distributed.
        outer = outer_sharding()
        if outer is None:
            self._ranks.look()
        return {**self.__dict__, "_walk": None, "_iterations": 0, "_outer": outer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _teach_collate()
        self.__dict__.update(state)


class _Walk:
    """One worker's way through one epoch."""

    def __init__(self, samples: IterableSamples, worker: int, workers: int, epoch: int) -> None:
        self.samples, self.worker, self.workers = samples, worker, workers
        #: As it was when the iteration began.
        self.shape = samples._shape()
        self.loader = samples._loader(worker, workers)
        self.epoch = epoch
        self.loader.set_epoch(self.epoch)
        #: Batches handed over since the start of the epoch.
        self.done = 0
        #: Of the batch whose samples are handed over one by one: how many were, and the state before it.
        self.taken = 0
        self.before: dict[str, Any] | None = None
        self.steps = self._own_steps()

    def _own_steps(self) -> int:
        samples = int(self.loader.state_dict()["sources"][0]["epoch_samples"])
        steps = self.samples._steps(samples, self.shape)
        return max(0, -(-(steps - self.worker) // self.workers))

    def resume(self, state: dict[str, Any]) -> None:
        shape = self.shape
        if state["shape"] != shape and (self.workers > 1 or state.get("taken")):
            # Each worker knows only its own place, and so does each rank in the middle of a run of single samples. That
            # a worker has not begun says nothing of the others.
            raise InvalidInputError(
                f"this state is of batches of {state['shape'][0]} on {state['shape'][1]} ranks, and these are of "
                f"{shape[0]} on {shape[1]}: resume with the same, or with `Dataset.loader`, whose state fits any"
            )
        if "loader" not in state:
            self.epoch = int(state["epoch"])
            self.loader.set_epoch(self.epoch)
            return
        if (state["worker"], state["workers"]) != (self.worker, self.workers):
            raise InvalidInputError(
                f"this state is of worker {state['worker']} of {state['workers']}, and this is worker {self.worker} of "
                f"{self.workers}: resume with as many workers as before, or with `Dataset.loader`, which needs none"
            )
        self.loader.load_state_dict(json.loads(state["loader"]))
        self.epoch, self.done, self.taken = int(state["epoch"]), int(state["done"]), int(state["taken"])
        # Of one worker the loader knows what is left, whoever came how far in which steps before.
        left = self.loader.steps_left if self.workers == 1 else None
        self.steps = self._own_steps() if left is None else self.done + left

    def state_dict(self) -> dict[str, Any]:
        loader = self.before if self.before is not None else self.loader.state_dict()
        return {
            "epoch": self.epoch,
            "worker": self.worker,
            "workers": self.workers,
            "done": self.done,
            "taken": self.taken,
            "shape": self.shape,
            "loader": json.dumps(loader),
        }

    def __iter__(self) -> Iterator[Any]:
        try:
            batches = iter(self.loader)
            while self.done < self.steps:
                if self.samples.batch_size is not None:
                    batch = next(batches, None)
                    if batch is None:
                        return
                    self.done += 1
                    yield batch
                else:
                    yield from self._single(batches)
        finally:
            # A state may be asked for after the end.
            self.before = self.before if self.before is not None else self.loader.state_dict()
            self.loader.close()

    def _single(self, batches: Iterator[dict[str, Any]]) -> Iterator[Any]:
        self.before = self.loader.state_dict()
        batch = next(batches, None)
        if batch is None:
            self.done = self.steps
            return
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        while self.taken < len(rows):
            self.taken += 1
            yield rows[self.taken - 1]
        self.done, self.taken, self.before = self.done + 1, 0, None
