"""Which epoch a sample is asked for in, where torch decides on the order: what random steps of decoders depend on.

Torch hands a map-style dataset numbers and nothing else. The epoch is known where the sampler says it
(`EpochSampler`), where every epoch has workers of its own, and where the program has called `set_epoch`. Everywhere
else random steps are refused: they would be the same in every epoch, and nobody would notice.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Self

import torch.utils.data

from forebay._epochs import Epochs
from forebay.errors import InvalidInputError

#: An epoch, and how many times the sample came in it before.
Occasion = tuple[int, int]
#: Batches of samples that come again in one epoch, at most, before it is taken for another: samplers fill up with some.
_BATCHES_AGAIN_MAX = 2


class EpochNumber(int):
    """The number of a sample that knows the epoch it is asked for in, and how many times it came in that before."""

    epoch: int
    time: int

    def __new__(cls, number: int, epoch: int, time: int) -> Self:
        """Make one."""
        made = super().__new__(cls, number)
        made.epoch, made.time = epoch, time
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochNumber, (int(self), self.epoch, self.time)


class EpochSampler(torch.utils.data.Sampler[int]):
    """Another sampler, whose numbers know their epoch. Made by `MapSamples.sampler`.

    Each iteration is the next epoch; `set_epoch` chooses another, also for the sampler inside.
    """

    def __init__(self, sampler: Any, samples: Sized, epoch: int = 0) -> None:
        self.inner = sampler
        self._samples = samples
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        times = array.array("L", bytes(array.array("L").itemsize * len(self._samples)))
        for number in self.inner:
            yield EpochNumber(int(number), epoch, times[int(number)])
            times[int(number)] += 1

    def __len__(self) -> int:
        return len(self.inner)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch."""
        self.epoch = epoch
        if hasattr(self.inner, "set_epoch"):
            self.inner.set_epoch(epoch)


class SampleEpochs:
    """The epochs of the samples that torch asks one dataset for."""

    def __init__(self, random_fields: Sequence[str]) -> None:
        self._random_fields = list(random_fields)
        self._epochs = Epochs()
        #: The epoch of this worker, if it lives for one.
        self._of_worker: int | None = None
        self._seen = _Seen()

    def set_epoch(self, epoch: int) -> None:
        """Let samples be of this epoch from now on, also in workers that live on."""
        self._epochs.set_next(epoch)

    def of(self, numbers: Sequence[int], samples: int) -> list[Occasion] | None:
        """Return the occasion of each number, of so many samples; `None` if nothing depends on it."""
        if not self._random_fields:
            return None
        occasions = [(number.epoch, number.time) for number in numbers if isinstance(number, EpochNumber)]
        if len(occasions) == len(numbers):
            return occasions
        worker = torch.utils.data.get_worker_info()
        if worker is not None and not _lives_on():
            if self._of_worker is None:
                self._of_worker = self._epochs.begin(worker, 0)
            return [(self._of_worker, 0)] * len(numbers)
        chosen = self._epochs.chosen(worker)
        if chosen is None:
            raise self._unknown("is not known: torch tells a dataset nothing of epochs")
        if self._seen.comes_again(chosen, numbers, samples):
            raise self._unknown(f"seems to be over: samples of epoch {chosen} come a second time")
        return [(chosen, 0)] * len(numbers)

    def _unknown(self, why: str) -> InvalidInputError:
        fields = ", ".join(self._random_fields)
        return InvalidInputError(
            f"random steps (of {fields}) differ from epoch to epoch, and the epoch {why}. Take "
            "DataLoader(samples, sampler=samples.sampler(shuffle=True), ...), which knows it; or call "
            "samples.set_epoch(epoch) before each epoch; or take ds.torch(iterable=True, ...)"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_worker": None, "_seen": _Seen()}


class _Seen:
    """The samples of one epoch that this process was asked for."""

    def __init__(self) -> None:
        self._epoch = -1
        self._bits = bytearray()
        self._again = self._largest = 0

    def comes_again(self, epoch: int, numbers: Sequence[int], samples: int) -> bool:
        """Count samples, and return whether more came again than samplers fill up with."""
        if epoch != self._epoch:
            self._epoch, self._bits = epoch, bytearray(samples // 8 + 1)
            self._again = self._largest = 0
        self._largest = max(self._largest, len(numbers))
        for number in numbers:
            at, bit = number // 8, 1 << number % 8
            self._again += bool(self._bits[at] & bit)
            self._bits[at] |= bit
        return self._again > _BATCHES_AGAIN_MAX * self._largest


def _lives_on() -> bool:
    """Whether this worker serves several epochs, which torch tells only the loop that it runs in."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop":
            return bool(frame.f_locals.get("persistent_workers", True))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return True
