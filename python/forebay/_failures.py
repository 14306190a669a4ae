"""Saves that fail after `save` has returned: who hears of them, and when."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from forebay._save import SaveHandle, Watch

#: Called with the step and the reason.
OnFailure = Callable[[int, BaseException], None]


class CheckpointWarning(UserWarning):
    """A save failed, or something about it looks wrong; training goes on."""


class Failures:
    """The failures of the saves of one `Checkpoints`: each is warned of, told to a callback, and said once more."""

    def __init__(self, watch: Watch, on_error: Literal["warn", "raise"], on_failure: OnFailure | None) -> None:
        self._watch = watch
        self._on_error = on_error
        self._on_failure = on_failure
        #: Saves that failed after they were staged, of which nobody was told here.
        self._failed: list[SaveHandle] = []

    def failed(self, handle: SaveHandle, error: BaseException) -> None:
        """Take note of a save that failed after it was staged."""
        self._failed.append(handle)
        if self._on_error == "warn":
            warn_of(handle, error)
        if self._on_failure is not None:
            self._on_failure(handle.step, error)

    def failing(self, handle: SaveHandle, error: BaseException) -> None:
        """Take note of a save that has trouble on its way."""
        message = f"step {handle.step} is not durable yet, and the node tries again until its deadline: {error}"
        warnings.warn(message, CheckpointWarning, stacklevel=2)
        if self._on_failure is not None:
            self._on_failure(handle.step, error)

    def say_again(self) -> None:
        """Say once more what nobody has asked for, with the next save; raise it if that was chosen."""
        for handle in self._watch.failing():
            message = f"step {handle.step} is still not durable: {handle.failing}"
            warnings.warn(message, CheckpointWarning, stacklevel=4)
        error = self._untold()
        if error is None:
            return
        if self._on_error == "raise":
            raise error
        warnings.warn(f"a save before was not made durable: {error}", CheckpointWarning, stacklevel=4)

    def next_error(self) -> BaseException | None:
        """Return a failure that nobody has heard of by its future, `wait` or `save`, or the trouble of a save."""
        error = self._untold()
        if error is not None:
            return error
        return next((handle.failing for handle in self._watch.failing()), None)

    def _untold(self) -> BaseException | None:
        failed, self._failed = self._failed, []
        untold = [handle for handle in failed if not handle._was_told]
        return untold[0].error if untold else None


def warn_of(handle: SaveHandle, error: BaseException) -> None:
    """Warn that a step was not saved."""
    message = f"step {handle.step} was not saved, the steps before it stay: {error}"
    warnings.warn(message, CheckpointWarning, stacklevel=4)
