"""What a step was like when it was saved: figures to compare a resumed run with, and the data that it was trained on.

Both lie in the metadata of the step, under a name of our own, so that every tool that reads manifests sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay.errors import InvalidInputError

if TYPE_CHECKING:
    from forebay._loader import Loader

#: The entry of the metadata.
OWN = "forebay"
#: How many times larger or smaller a figure may be than when the step was saved.
FACTOR_MAX = 10.0


def with_own(
    metadata: Mapping[str, Any] | None, reference: Mapping[str, float] | None, loaders: Loader | Sequence[Loader] | None
) -> dict[str, Any]:
    """Return metadata with figures and data beside what the caller wants to remember."""
    given = {} if metadata is None else dict(metadata)
    if OWN in given:
        raise InvalidInputError(f"{OWN!r} in the metadata of a step is ours: take another name")
    own: dict[str, Any] = {}
    if reference is not None:
        own["reference"] = {str(name): _plain(name, value) for name, value in reference.items()}
    if loaders is not None:
        several = loaders if isinstance(loaders, Sequence) else [loaders]
        own["data"] = [_data_of(loader) for loader in several]
    return {**given, OWN: own} if own else given


def _plain(name: str, value: Any) -> float | str:
    """A figure as JSON has it: what is no number is text, because a step with such a loss is saved all the same."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidInputError(f"the reference {name!r} is {value!r}, which is no number") from None
    return number if math.isfinite(number) else str(number)


def _data_of(loader: Loader) -> dict[str, Any]:
    sources = [
        {
            "names": dataset._names,
            "fingerprint": dataset._native.fingerprint,
            "samples": len(dataset),
            "weight": weight,
        }
        for dataset, weight in loader._sources
    ]
    return {"datasets": sources, "state": loader.state_dict()}


def moved(reference: Mapping[str, float | str], now: Mapping[str, float]) -> dict[str, str]:
    """Return the figures that are not what they were when the step was saved, each with how it moved."""
    unknown = sorted(set(now) - set(reference))
    if unknown:
        known = ", ".join(sorted(reference)) or "none"
        raise InvalidInputError(f"the step has no reference {', '.join(unknown)}; it was saved with: {known}")
    found = {}
    for name, value in now.items():
        why = _moved(reference[name], float(value))
        if why is not None:
            found[name] = why
    return found


def _moved(before: float | str, now: float) -> str | None:
    if isinstance(before, str):
        return None if str(now) == before else f"was {before} and is {now:g}"
    if not math.isfinite(now):
        return f"was {before:g} and is {now}, which is no number"
    if before == 0 or now == 0:
        return None if before == now else f"was {before:g} and is {now:g}"
    times = abs(now) / abs(before)
    if max(times, 1 / times) > FACTOR_MAX:
        return f"was {before:g} and is {now:g}, {times:.3g} times as much"
    return None
