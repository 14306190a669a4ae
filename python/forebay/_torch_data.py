"""Datasets for torch's `DataLoader`: by number, and in the order of a loader. Imported by those who use torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from forebay import _native
from forebay._epochs import Epochs
from forebay._loader import Loader, LoaderOptions, decode_threads_default
from forebay._ranks import rank_and_world_size
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
    """Samples by number, for torch's samplers. Workers read many with one request."""

    def __init__(self, dataset: Dataset) -> None:
        _teach_collate()
        self.dataset = dataset.index()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        return self.dataset[int(number)]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return many samples, as torch's fetcher asks for them."""
        return self.dataset.samples([int(number) for number in numbers])

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
        rank, world_size = rank_and_world_size(options.get("rank"), options.get("world_size"))
        self.options = LoaderOptions(**{**options, "rank": rank, "world_size": world_size})
        self._epochs = Epochs(int(options.get("epoch", 0)))
        #: How many iterations began in this process.
        self._iterations = 0
        self._walk: _Walk | None = None
        self._resume: dict[str, Any] | None = None
        # A fault in the options is said here, and not by a worker.
        self._loader(0, 1).close()

    def _loader(self, worker: int, workers: int) -> Loader:
        """The part of one worker.

        Its batches are those of rank `worker x world + rank` among `workers x world` ranks: the same slices of the same
        steps. Where these steps end is counted here, because that many ranks would drop or pad more at the end.
        """
        world, rank = self.options["world_size"] or 1, self.options["rank"] or 0
        options = LoaderOptions(**{**self.options, "rank": worker * world + rank, "world_size": workers * world})
        if workers > 1:
            options["tail"] = "pad"
            options.setdefault("decode_threads", max(1, decode_threads_default() // workers))
        return self.dataset.loader(self.batch_size or CHUNK_SAMPLES, **options)

    def _shape(self) -> list[int]:
        """Samples of a batch and number of ranks: what a step is made of."""
        return [self.batch_size or CHUNK_SAMPLES, self.options["world_size"] or 1]

    def _steps(self, samples: int) -> int:
        """Steps of this rank in an epoch of so many samples."""
        batch_size, world_size = self._shape()
        step = batch_size * world_size
        return -(-samples // step) if self.options.get("tail") == "pad" else samples // step

    def __len__(self) -> int:
        steps = self._steps(self._epoch_samples())
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
        return {**self.__dict__, "_walk": None, "_iterations": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _teach_collate()
        self.__dict__.update(state)


class _Walk:
    """One worker's way through one epoch."""

    def __init__(self, samples: IterableSamples, worker: int, workers: int, epoch: int) -> None:
        self.samples, self.worker, self.workers = samples, worker, workers
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
        steps = self.samples._steps(samples)
        return max(0, -(-(steps - self.worker) // self.workers))

    def resume(self, state: dict[str, Any]) -> None:
        shape = self.samples._shape()
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
            "shape": self.samples._shape(),
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
