"""Samples and batches as a generator for `tf.data`. TensorFlow itself is imported by `Dataset.tf`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from forebay import _native

if TYPE_CHECKING:
    from forebay.dataset import Dataset


def generator(dataset: Dataset, batch_size: int | None, options: dict[str, Any]) -> Callable[[], Iterator[Any]]:
    """Return a function that gives the samples or batches of the next epoch each time it is called."""
    loader = dataset.loader(batch_size or 32, **options)

    def batches() -> Iterator[Any]:
        for batch in loader:
            plain = {name: _plain(values) for name, values in batch.items()}
            if batch_size is not None:
                yield plain
            else:
                yield from (dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True))

    return batches


def _plain(values: Any) -> Any:
    """Views as bytes: TensorFlow copies strings in any case."""
    if isinstance(values, list):
        return [bytes(value) if isinstance(value, _native.View) else value for value in values]
    return values
