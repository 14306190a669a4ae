"""Samples and batches as a generator for `tf.data`. TensorFlow itself is imported by `Dataset.tf`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from forebay import _native

if TYPE_CHECKING:
    from forebay.dataset import Dataset


def generator(dataset: Dataset, batch_size: int | None, options: dict[str, Any]) -> Callable[[], Iterator[Any]]:
    """Return a function that gives the samples or batches of the next epoch each time it is called.

    Whoever leaves an epoch in the middle, or iterates twice at a time (`tf.data.Dataset.zip`), has taken an epoch all
    the same. A loader that is done serves the next epoch, so that it can read ahead; others get one of their own.
    """
    first = dataset.loader(batch_size or 32, **options)
    idle = [first]
    epochs = itertools.count(first.epoch)

    def batches() -> Iterator[Any]:
        epoch = next(epochs)
        loader = idle.pop() if idle else dataset.loader(batch_size or 32, **options)
        if loader.epoch != epoch or loader.steps_left != len(loader):
            loader.set_epoch(epoch)
        try:
            for batch in loader:
                plain = {name: _plain(values) for name, values in batch.items()}
                if batch_size is not None:
                    yield plain
                else:
                    yield from (dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True))
        except BaseException:
            loader.close()
            raise
        idle.append(loader)

    return batches


def _plain(values: Any) -> Any:
    """Views as bytes: TensorFlow copies strings in any case."""
    if isinstance(values, list):
        return [bytes(value) if isinstance(value, _native.View) else value for value in values]
    return values
