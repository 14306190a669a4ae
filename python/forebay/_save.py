"""A save after it was staged: what it cost, how far it is, and a future for its end.

A thread waits in the node for the end of each save, tells the future, and then lets the run forget old steps. It ends
with the save, or when the `Checkpoints` is closed. A forked child has no such thread: there the future asks the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay import _native
from forebay.errors import CancelledError, ForebayError, NotFoundError, TimedOutError, UnavailableError

if TYPE_CHECKING:
    from forebay._native import CheckpointRoot

#: How long one request about the end of a save waits.
_WAIT_SECONDS = 3600.0
#: How often it is looked at whether a save that is on its way has trouble, and how long a node may be gone before what
#: only its memory had is given up.
_LOOK_SECONDS, _LOST_SECONDS = 2.0, 5.0
#: How long to wait before a node that is not there is asked again; how long after the save's deadline, or for a save
#: that the node should know.
_PAUSE_SECONDS, _GRACE_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class SaveReport:
    """What one rank's save did and how far it is.

    Attributes:
        step: The step.
        phase: `"staged"`, `"durable"` or `"failed"`.
        where: Where the bytes are now: `"ram"` or `"nvme"` of the node, `"lake"`, or `"nowhere"` if the save failed.
        survives: What may die without loss: `"nothing"`, `"trainer"` (this process), `"node"` (the node and the host as
            well), `"everything"` once the lake has it.
        bytes: Bytes of tensors and objects that this rank saved.
        bytes_written: Of these, bytes that were written to the lake.
        bytes_reused: Of these, bytes that the parent step had already.
        bytes_encoded: Of these, bytes that are stored as differences from the parent step.
        bytes_encoded_stored: What those take in the lake; among `bytes_written`.
        dedup: `bytes_reused` as a part of `bytes`.
        delta_ratio: How many times `bytes_encoded_stored` the `bytes_encoded` are; `None` if nothing is.
        stall_seconds: From the call of `save` until it returned.
        copy_seconds: Of this, copying into the node's memory.
        wait_seconds: Of this, waiting for the node's memory.
        bytes_copied: Bytes that were copied in this process and into the node's memory.
        copies: `bytes_copied` as a multiple of what this rank handed over; 1.0 is the best there is.
        durable_seconds: From the call of `save` until the step was committed; `None` before that.
        generation: The generation of the commit; 0 before it.
        parent: The step whose files are reused, and its generation.
        alarms: What looked wrong: kind, tensor, message.
        pruned: Steps that were removed after it, by `keep_last` and `keep_every`.

    """

    step: int
    phase: str
    where: str
    survives: str
    bytes: int
    bytes_written: int
    bytes_reused: int
    bytes_encoded: int
    bytes_encoded_stored: int
    stall_seconds: float
    copy_seconds: float
    wait_seconds: float
    bytes_copied: int
    copies: float
    durable_seconds: float | None
    generation: int
    parent: tuple[int, int] | None
    alarms: tuple[tuple[str, str, str], ...]
    pruned: tuple[int, ...]

    @property
    def dedup(self) -> float:
        """The part of the bytes that was not written again."""
        return self.bytes_reused / self.bytes if self.bytes else 0.0

    @property
    def delta_ratio(self) -> float | None:
        """How much smaller differences are than what they stand for."""
        return self.bytes_encoded / self.bytes_encoded_stored if self.bytes_encoded_stored else None


class Durable(Future[SaveReport]):
    """The end of a save: a `concurrent.futures.Future` that also works in a forked child."""

    def __init__(self, handle: SaveHandle) -> None:
        super().__init__()
        self._handle = handle
        self._is_in_child = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Return when the step is committed; raise what it failed with, or `TimedOutError` if it is neither by then."""
        self._ask_in_child(timeout)
        try:
            return super().result(timeout)
        except TimeoutError as error:
            raise self._not_yet(error) from None
        finally:
            self._handle._was_told = self._handle._was_told or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what it failed with, or `None` when the step is committed."""
        self._ask_in_child(timeout)
        try:
            return super().exception(timeout)
        except TimeoutError as error:
            raise self._not_yet(error) from None
        finally:
            self._handle._was_told = self._handle._was_told or self.done()

    def cancel(self) -> bool:
        """Return `False`: the node goes on alone. `SaveHandle.abort` gives a save up."""
        return False

    def _not_yet(self, error: BaseException) -> BaseException:
        if isinstance(error, ForebayError) or self.done():
            return error
        message = "the save is not durable yet; wait longer, or look at handle.report"
        return TimedOutError(message, [("step", str(self._handle.step)), ("save", self._handle.id)])

    def _ask_in_child(self, timeout: float | None) -> None:
        if os.getpid() == self._handle._pid:
            return
        if not self._is_in_child:
            # Whoever held the parent's lock does not run here.
            self._is_in_child, self._condition = True, threading.Condition()
        if not super().done():
            self._handle._settle(_WAIT_SECONDS if timeout is None else timeout)


class _ClosedError(CancelledError):
    """Nobody waits for the save any more."""


class SaveHandle:
    """A step that was saved by this rank. Made by `Checkpoints.save`."""

    def __init__(self, root: CheckpointRoot, step: int, staged: dict[str, Any], cost: dict[str, Any]) -> None:
        #: The step.
        self.step = step
        #: Seconds that it may take until it is durable.
        self.deadline: float = cost.get("deadline", 0.0)
        #: The save's name in the node.
        self.id: str = staged.get("id", "")
        self._root = root
        self._attempt: str = staged.get("attempt", "")
        self._state = staged
        self._cost = cost
        self._pid = os.getpid()
        self._pruned: tuple[int, ...] = ()
        self._unknown_since = 0.0
        self._failing: BaseException | None = None
        #: Whether somebody has asked how it ended.
        self._was_told = False
        self._durable = Durable(self)

    @classmethod
    def failed(cls, root: CheckpointRoot, step: int, error: ForebayError, stall_seconds: float) -> SaveHandle:
        """Return the handle of a save that was never staged."""
        cost = {"stall_seconds": stall_seconds}
        handle = cls(root, step, {"phase": "failed", "error": error}, cost)
        handle._durable.set_exception(error)
        return handle

    def staged(self) -> bool:
        """Whether the node has everything and goes on alone. `False` only for a save that failed before."""
        return bool(self.id)

    def durable(self) -> Durable:
        """Return the future of the commit. Its `result(timeout)` is the last report."""
        return self._durable

    def abort(self) -> None:
        """Give the save up, also after it was staged. Nothing of it becomes visible, unless it is committed already."""
        if self.id:
            self._root.abort_save(self.id)

    @property
    def error(self) -> BaseException | None:
        """Why it failed, or `None` as long as it has not."""
        return self._durable.exception() if self._durable.done() else None

    @property
    def failing(self) -> BaseException | None:
        """The trouble that a save on its way has, such as a full disk: the node tries again until the deadline."""
        return None if self._durable.done() else self._failing

    @property
    def report(self) -> SaveReport:
        """What it did and how far it is now."""
        if self.id and not self._durable.done():
            # Not found: it is over, or the node is another one; the future will say.
            with contextlib.suppress(NotFoundError):
                self._state = self._root.save_state(self.id)
        return self._report()

    def _report(self) -> SaveReport:
        state, cost = self._state, self._cost
        phase = state["phase"]
        where = {"durable": "lake", "failed": "nowhere"}.get(phase, state.get("staged", "nowhere"))
        handed = cost.get("bytes_handed", 0)
        copied = cost.get("bytes_copied", 0)
        return SaveReport(
            step=self.step,
            phase=phase,
            where=where,
            survives=state.get("survives", "nothing"),
            bytes=state.get("bytes", 0),
            bytes_written=state.get("bytes_written", 0),
            bytes_reused=state.get("bytes_reused", 0),
            bytes_encoded=state.get("bytes_encoded", 0),
            bytes_encoded_stored=state.get("bytes_encoded_stored", 0),
            stall_seconds=cost["stall_seconds"],
            copy_seconds=cost.get("copy_seconds", 0.0),
            wait_seconds=cost.get("wait_seconds", 0.0),
            bytes_copied=copied,
            copies=copied / handed if handed else 0.0,
            durable_seconds=state.get("ended_seconds") if phase == "durable" else None,
            generation=state.get("generation", 0),
            parent=state.get("parent"),
            alarms=tuple(tuple(alarm) for alarm in state.get("alarms", ())),
            pruned=self._pruned,
        )

    def _check_lost(self, gone_since: float, error: ForebayError) -> None:
        """Give a save up that only the memory of a node had which is gone."""
        if self._state.get("survives") == "node" or time.monotonic() - gone_since < _LOST_SECONDS:
            return
        message = (
            "the node that had the save in its memory is gone, and the save with it, unless it was committed just "
            "before; start the node, look at steps(), and save again"
        )
        raise UnavailableError(message, [("step", str(self.step)), ("save", self.id)]) from error

    def _look_for_trouble(self, failing: Callable[[SaveHandle, BaseException], None]) -> None:
        """Ask the node whether the lake gives the save trouble."""
        with contextlib.suppress(ForebayError):
            self._state = self._root.save_state(self.id)
            self._notice(self._state.get("error"), failing)

    def _notice(self, error: BaseException | None, failing: Callable[[SaveHandle, BaseException], None]) -> None:
        is_new = error is not None and str(error) != str(self._failing)
        self._failing = error
        if error is not None and is_new:
            failing(self, error)

    def _settle(self, timeout: float, after: Callable[[SaveHandle], tuple[int, ...]] | None = None) -> None:
        """Wait for the end and tell the future; `after` does what follows a commit. Raises if nobody could say."""
        self._state = self._end(timeout)
        if self._state["phase"] == "durable":
            if after is not None:
                self._pruned = after(self)
            self._tell(None)
            return
        given_up = CancelledError("the save was given up", [("step", str(self.step))])
        self._tell(self._state.get("error") or given_up)

    def _end(self, timeout: float) -> dict[str, Any]:
        """Return the last state. A node that was restarted does not know the save: then the lake is asked."""
        try:
            return self._root.wait_save(self.id, timeout)
        except NotFoundError:
            if self._is_committed():
                return {**self._state, "phase": "durable", "survives": "everything"}
            message = "the node does not know the save any more, and the step is not committed: save it again"
            lost = UnavailableError(message, [("step", str(self.step)), ("save", self.id)])
            now = time.monotonic()
            self._unknown_since = self._unknown_since or now
            if self._state.get("survives") == "node" and now - self._unknown_since < _GRACE_SECONDS:
                # A node that was started again takes up what lies on its disk; it may not have come to this one yet.
                raise lost from None
            return {**self._state, "phase": "failed", "survives": "nothing", "error": lost}

    def _is_committed(self) -> bool:
        try:
            manifest = json.loads(self._root.step(self.step).manifest())
        except NotFoundError:
            return False
        return bool(manifest["attempt"] == self._attempt)

    def _tell(self, error: BaseException | None) -> None:
        if self._durable.done():
            return
        if error is None:
            self._durable.set_result(self._report())
        else:
            self._durable.set_exception(error)

    def __repr__(self) -> str:
        return f"<forebay.SaveHandle of step {self.step}, {self._state['phase']}>"


class Watch:
    """Threads that wait for the ends of saves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[SaveHandle, tuple[threading.Thread, _native.Cancellation]] = {}
        self._stopped = threading.Event()
        self._pid = os.getpid()

    def add(
        self,
        handle: SaveHandle,
        after: Callable[[SaveHandle], tuple[int, ...]],
        failed: Callable[[SaveHandle, BaseException], None],
        failing: Callable[[SaveHandle, BaseException], None] = lambda *_: None,
    ) -> None:
        """Wait for the end of a save; `failing` hears of trouble on the way, each kind once."""
        cancel = _native.Cancellation()

        def run() -> None:
            try:
                self._until_told(handle, cancel, after, failing)
            except BaseException as error:  # whoever waits must learn of everything
                handle._tell(error)
            why = Future.exception(handle._durable)
            if why is not None and not isinstance(why, _ClosedError):
                failed(handle, why)
            with self._lock:
                self._threads.pop(handle, None)

        thread = threading.Thread(target=run, name=f"forebay-save-{handle.step}", daemon=True)
        self._forget_parent()
        with self._lock:
            self._threads[handle] = (thread, cancel)
        thread.start()

    def _until_told(
        self,
        handle: SaveHandle,
        cancel: _native.Cancellation,
        after: Callable[[SaveHandle], tuple[int, ...]],
        failing: Callable[[SaveHandle, BaseException], None],
    ) -> None:
        end = time.monotonic() + handle.deadline + _GRACE_SECONDS
        gone_since: float | None = None
        while not self._stopped.is_set():
            try:
                return cancel.run(handle._settle, _LOOK_SECONDS, after)
            except ForebayError as error:
                # A node that is started again goes on with what was staged on its disk.
                is_again = error.retryable or isinstance(error, (TimedOutError, CancelledError))
                if not is_again or time.monotonic() > end:
                    raise
                if isinstance(error, UnavailableError):
                    gone_since = gone_since or time.monotonic()
                    handle._check_lost(gone_since, error)
                    handle._notice(error, failing)
                    self._stopped.wait(_PAUSE_SECONDS)
                else:
                    gone_since = None
                    handle._look_for_trouble(failing)
        message = "this Checkpoints was closed while the save was on its way; the node goes on with it"
        raise _ClosedError(message, [("step", str(handle.step))])

    def failing(self) -> list[SaveHandle]:
        """Return the saves on their way that have trouble."""
        self._forget_parent()
        with self._lock:
            return [handle for handle in self._threads if handle.failing is not None]

    def wait(self, timeout: float | None) -> bool:
        """Wait for the ends of all; whether they came in time."""
        end = None if timeout is None else time.monotonic() + timeout
        self._forget_parent()
        with self._lock:
            threads = [thread for thread, _ in self._threads.values()]
        for thread in threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def stop(self) -> None:
        """End the waiting; the saves go on in the node."""
        self._forget_parent()
        with self._lock:
            threads = list(self._threads.values())
            self._stopped.set()
        for _, cancel in threads:
            cancel.cancel()
        for thread, _ in threads:
            thread.join()
        self._stopped.clear()

    def _forget_parent(self) -> None:
        """Threads of the parent process do not run here, nor does whoever held its lock."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._threads = {}
