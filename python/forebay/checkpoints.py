"""`Checkpoints`: steps of a training run, saved whole, verified, restored anywhere.

>>> import forebay, numpy
>>> node = forebay.open("memory://")
>>> node.create_bucket("lake")
>>> ckpt = forebay.Checkpoints("forebay://lake/run-7", node=node, keep_last=3)
>>> state = {"model": {"weight": numpy.arange(6.0)}, "step": 1000}
>>> handle = ckpt.save(1000, state)
>>> handle.durable().result().where
'lake'
>>> state["model"]["weight"][:] = 0
>>> ckpt.load(ckpt.latest(), into=state)["model"]["weight"].tolist()
[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
>>> ckpt.close(); node.close()
"""

from __future__ import annotations

import atexit
import json
import operator
import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from forebay import _native
from forebay._failures import CheckpointWarning, Failures, OnFailure, warn_of
from forebay._loader import Loader
from forebay._ranks import Ranks, check_ranks, ranks_of
from forebay._reference import OWN, moved, with_own
from forebay._restore import NEW, Restore
from forebay._save import SaveHandle, Watch
from forebay._shares import agree
from forebay._state import flatten
from forebay._verified import Verified
from forebay._windows import LATER_BYTES_MIN, read, write
from forebay.errors import CancelledError, ChangedError, ForebayError, InvalidInputError, NotFoundError
from forebay.node import Node, connect

#: How long a save may take until it is durable, unless told otherwise.
DEADLINE_SECONDS = 1800.0
#: How old what a crashed save left has to be before pruning removes it.
GARBAGE_SECONDS = 24 * 3600.0
#: How often `wait` looks whether a save has trouble.
_WAIT_LOOK_SECONDS = 0.5
#: Threads that copy and read, at most, unless told otherwise.
THREADS_MAX = 8


class Checkpoints:
    """The steps of a training run below a folder of the lake.

    `save` copies a state into the node's memory and returns; the node writes it to the lake while training goes on. A
    step is there when all of it is, from all ranks: readers see the whole step or none. With several ranks, `save`,
    `latest` and `load` without a step are made by all of them, in the same order.

    Args:
        root: The run: `forebay://bucket/folder`.
        keep_last: How many of the newest steps to keep when another one was committed; all if left out.
        keep_every: Steps that are multiples of this are kept as well.
        rank: Which rank this process is; what torch.distributed says if that is initialized, else `RANK`, else 0.
        world_size: How many ranks save together; found like `rank`, else `WORLD_SIZE`, else 1.
        node: The node to save with; `forebay.connect()` if left out. Saving needs a node on this host.
        on_error: What a failed save does: `"warn"` warns (`CheckpointWarning`) and training goes on, `"raise"` raises.
            Either way the newest good step stays, and `SaveHandle.durable` tells.
        staged: Where the bytes are when `save` returns: `"ram"` of the node, or `"nvme"`, written and synced.
        digest: `"sha256"` keeps that of each part as well as the `"blake3"` that every part has.
        alarms: What to do about parts that became zero, steps that equal their parent, and numbers that are none:
            `"warn"`, `"refuse"` the save, or `"off"`.
        reuse: Whether parts that the step before has are referenced instead of written.
        differential: `"auto"` stores parts that changed as their difference from the step before, where that saves a
            sixth of the bytes and more; loading them costs more time, and reads at most twice their bytes.
        deadline: Seconds that a save may take until it is durable; then it has failed.
        threads: Threads that copy and read; as many as there are processors, at most 8, if left out.
        allow_pickle: Pickle what cannot be saved otherwise, and load what was saved so, which can run any code.
        on_failure: Called with the step and the reason as soon as a save fails, is lost, or has trouble that the node
            tries to get over (a full disk), from a thread of its own.
        job: Names this job, the same on all its ranks, where several jobs without torch.distributed save to one root;
            by default what launchers say, and the parent process.

    """

    def __init__(
        self,
        root: str,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        node: Node | None = None,
        on_error: Literal["warn", "raise"] = "warn",
        staged: Literal["ram", "nvme"] = "ram",
        digest: Literal["blake3", "sha256"] = "blake3",
        alarms: Literal["warn", "refuse", "off"] = "warn",
        reuse: bool = True,
        differential: Literal["off", "auto"] = "off",
        deadline: float = DEADLINE_SECONDS,
        threads: int | None = None,
        allow_pickle: bool = False,
        on_failure: OnFailure | None = None,
        job: str | None = None,
    ) -> None:
        _one_of("on_error", on_error, ("warn", "raise"))
        _one_of("staged", staged, ("ram", "nvme"))
        _one_of("digest", digest, ("blake3", "sha256"))
        _one_of("alarms", alarms, ("warn", "refuse", "off"))
        _one_of("differential", differential, ("off", "auto"))
        for name, number in [("keep_last", keep_last), ("keep_every", keep_every), ("threads", threads)]:
            if number is not None and number < 1:
                raise InvalidInputError(f"{name} is {number}, which is less than 1")
        check_ranks(rank, world_size)
        self._has_own_node = node is None
        self.node = connect() if node is None else node
        self._root = _native.CheckpointRoot(self.node._client, root)
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.on_error = on_error
        self.alarms = alarms
        self.deadline = deadline
        self.threads = threads or min(THREADS_MAX, os.cpu_count() or 1)
        self.allow_pickle = allow_pickle
        self._options: dict[str, Any] = {
            "staged": staged,
            "digest": digest,
            "alarms": alarms,
            "reuse": reuse,
            "differential": differential,
            "deadline": deadline,
        }
        self._given = (rank, world_size, job)
        self._ranks: Ranks | None = None
        self._watch = Watch()
        self._failures = Failures(self._watch, on_error, on_failure)
        _keep(self)

    @property
    def root(self) -> str:
        """The run, `forebay://bucket/folder`."""
        return self._root.url

    @property
    def rank(self) -> int:
        """Which rank this process is."""
        return self._who().rank

    @property
    def world_size(self) -> int:
        """How many ranks save together."""
        return self._who().size

    def _who(self) -> Ranks:
        if self._ranks is None:
            self._ranks = ranks_of(self._root, *self._given)
        return self._ranks

    # --- saving ---

    def save(
        self,
        step: int,
        state: Any,
        *,
        metadata: Mapping[str, Any] | None = None,
        reference: Mapping[str, float] | None = None,
        loaders: Loader | Sequence[Loader] | None = None,
        supersede: bool = False,
    ) -> SaveHandle:
        """Copy a state into the node's memory, which makes a step of it.

        Args:
            step: The number of the step.
            state: Dicts, lists and tuples of tensors (torch, DTensor, numpy, `forebay.Shard`), numbers, texts, bytes
                and objects with `state_dict()`.
            metadata: What to remember with the step; JSON. That of rank 0 counts, as with the next two.
            reference: Figures of this step, such as `{"loss": 2.1, "grad_norm": 0.4}`, which `check` compares a resumed
                run with.
            loaders: The loaders that the run reads. Which versions of which datasets, and how far each loader is, is
                kept with the step (`lineage`).
            supersede: Whether a step that is there already is replaced; else that is an error. The old one is what
                readers see until the new one is whole.

        """
        begun = time.monotonic()
        step = operator.index(step)
        if step < 0:
            raise InvalidInputError(f"steps are counted from 0 on; there is no step {step}")
        try:
            self._failures.say_again()
            return self._save(step, state, with_own(metadata, reference, loaders), supersede, begun)
        except ForebayError as error:
            if self.on_error == "raise":
                raise
            handle = SaveHandle.failed(self._root, step, error, time.monotonic() - begun)
            warn_of(handle, error)
            return handle

    def _save(self, step: int, state: Any, metadata: dict[str, Any], supersede: bool, begun: float) -> SaveHandle:
        ranks = self._who()
        share = agree(
            ranks,
            step,
            lambda: flatten(state, allow_pickle=self.allow_pickle, later_bytes_min=LATER_BYTES_MIN),
            alarms=self.alarms,
            timeout=self.deadline,
        )
        for message in share.warnings:
            warnings.warn(message, CheckpointWarning, stacklevel=4)
        save = _native.CheckpointSave(
            self.node._client,
            self.root,
            step,
            **self._options,
            attempt=share.attempt,
            rank=ranks.rank,
            world_size=ranks.size,
            supersede=supersede,
            metadata=_json(metadata),
            tree=json.dumps(share.tree),
        )
        try:
            copied = write(save, share.parts, self.threads)
            for name, kind, data in share.objects:
                save.object(name, kind, data)
            staged = save.stage()
        except BaseException:
            save.abort()
            raise
        cost = {name: staged.pop(name) for name in ("copy_seconds", "wait_seconds", "bytes_copied")}
        cost["bytes_handed"] = cost["bytes_copied"]
        cost["bytes_copied"] += copied
        cost["deadline"] = self.deadline
        cost["stall_seconds"] = time.monotonic() - begun
        handle = SaveHandle(self._root, step, staged, cost)
        self._watch.add(handle, self._retain, self._failures.failed, self._failures.failing)
        return handle

    def _retain(self, handle: SaveHandle) -> tuple[int, ...]:
        """Forget old steps after a commit; what goes wrong with that is no fault of the save."""
        if self._who().rank != 0 or (self.keep_last is None and self.keep_every is None):
            return ()
        try:
            return tuple(self.prune(keep_last=self.keep_last or 1, keep_every=self.keep_every))
        except CancelledError:
            return ()  # closed meanwhile: the next commit does it
        except ForebayError as error:
            message = f"old steps could not be removed after step {handle.step}: {error}"
            warnings.warn(message, CheckpointWarning, stacklevel=2)
            return ()

    def saves(self) -> list[dict[str, Any]]:
        """Return the saves of this run that the node knows, oldest first: step, rank, phase, age, bytes, error."""
        return self._root.saves()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the ends of all saves that were made here; return whether they came in time.

        A save that failed, and whose future nobody has asked, raises its error here. One that has trouble raises that
        as soon as it is known; the node goes on trying, and so may whoever waits.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT_LOOK_SECONDS if end is None else min(_WAIT_LOOK_SECONDS, max(0.0, end - time.monotonic()))
            is_over = self._watch.wait(left)
            error = self._failures.next_error()
            if error is not None:
                raise error
            if is_over or (end is not None and time.monotonic() >= end):
                return is_over

    # --- looking ---

    def steps(self) -> list[int]:
        """Return the committed steps, in order."""
        return [step for step, _ in self._root.steps()]

    def latest(self) -> int | None:
        """Return the newest committed step, the same on all ranks, or `None`.

        Rank 0 asks, the others are told: all of them have to call it.
        """
        ranks = self._who()
        mine: Any = None
        if ranks.rank == 0:
            try:
                mine = self._root.latest()
            except ForebayError as error:
                mine = error
        found = ranks.all_gather("latest", mine, self.deadline)[0]
        return None if found is None else int(found)

    def metadata(self, step: int) -> dict[str, Any]:
        """Return what was given as `metadata` when the step was saved."""
        return {name: value for name, value in self._metadata(step).items() if name != OWN}

    def reference(self, step: int) -> dict[str, float | str]:
        """Return the figures that were given as `reference` when the step was saved; what was no number is text."""
        found: dict[str, float | str] = self._metadata(step).get(OWN, {}).get("reference", {})
        return found

    def lineage(self, step: int) -> list[dict[str, Any]]:
        """Return, for each loader that was given, its datasets (names, fingerprint of the versions) and its state."""
        found: list[dict[str, Any]] = self._metadata(step).get(OWN, {}).get("data", [])
        return found

    def check(self, step: int, **figures: float) -> dict[str, str]:
        """Compare figures of the first iteration after a load with those that the step was saved with.

        What became no number, became or was zero, or is another order of magnitude, has moved: the model is not the one
        that was saved. That is warned of, or raised as `ChangedError` with `on_error="raise"`.

        Returns:
            What has moved, and how; empty if nothing has.

        """
        found = moved(self.reference(step), figures)
        if found:
            message = f"the resumed run is not the one that step {step} was saved from: " + "; ".join(
                f"{name} {why}" for name, why in found.items()
            )
            if self.on_error == "raise":
                raise ChangedError(message, [("step", str(step))])
            warnings.warn(message, CheckpointWarning, stacklevel=2)
        return found

    def _metadata(self, step: int) -> dict[str, Any]:
        found = json.loads(self._root.step(step).metadata())
        assert isinstance(found, dict)
        return found

    def manifest(self, step: int) -> dict[str, Any]:
        """Return the commit of a step as it lies in the lake: tensors, parts, files, digests."""
        found = json.loads(self._root.step(step).manifest())
        assert isinstance(found, dict)
        return found

    def verify(self, step: int, *, quick: bool = False) -> Verified:
        """Prove every byte of a step, or with `quick` only that its files are there."""
        found = self._root.step(step).verify(quick, self.threads)
        return Verified(found.files, found.proved, found.bytes, tuple(found.findings), found.has_more)

    # --- loading ---

    def load(
        self,
        step: int | None = None,
        into: Any = None,
        *,
        strict: bool = True,
        names: Callable[[str], bool] | None = None,
    ) -> Any:
        """Load a step, every byte proved.

        Args:
            step: Which one; the newest if left out.
            into: A state like the one that was saved. Its tensors are filled where they are, just the boxes that this
                process has of them, whatever boxes they were saved in; everything else is replaced. Left out, a new
                state is made, with whole tensors on the CPU.
            strict: Whether everything in the step has to be in the state and the other way around.
            names: Says by full name, such as `"model.layer.weight"`, what to load; the rest is left out or as it is.

        Returns:
            The state.

        """
        step = self._latest() if step is None else step
        found = self._root.step(step)
        restore = Restore(
            found.tensors(),
            lambda name: self._object(found, name),
            rank=self._who().rank,
            strict=strict,
            allow_pickle=self.allow_pickle,
            names=names,
            later_bytes_min=LATER_BYTES_MIN,
        )
        target = NEW if into is None else into
        state = restore.plan(_tree(found, target), target)
        wants = [(name, piece.offset, piece.sizes, (piece.address, piece.nbytes)) for name, piece in restore.wants]
        found.load(wants, self.threads)
        read(found, restore.later, self.threads)
        restore.finish()
        return state

    def _latest(self) -> int:
        step = self.latest()
        if step is None:
            raise NotFoundError("there is no committed step to load", [("root", self.root)])
        return step

    def _object(self, step: _native.CheckpointStep, name: str) -> tuple[str, bytes]:
        """Bytes of this rank, or of the first that has them: ranks may be others than those that saved."""
        try:
            return step.object(name, self._who().rank)
        except NotFoundError:
            return step.object(name)

    # --- forgetting ---

    def prune(
        self,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        steps: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> list[int]:
        """Remove steps, and what crashed saves left a day ago; return the removed steps.

        Steps that reuse files of a removed one keep them. With neither argument only what crashes left goes.

        Args:
            keep_last: Keep so many of the newest.
            keep_every: Keep multiples of this as well.
            steps: Remove just these instead.
            dry_run: Only say what would be removed.

        """
        if steps is None and keep_last is None and keep_every is not None:
            keep_last = 1
        pruned = self._root.prune(
            now=time.time(),
            age=GARBAGE_SECONDS,
            dry_run=dry_run,
            keep_last=keep_last,
            keep_every=keep_every,
            steps=None if steps is None else list(steps),
        )
        return sorted({step for step, _ in pruned.commits} - set(pruned.kept))

    # --- life ---

    def close(self, timeout: float | None = None) -> None:
        """End what this object has running.

        Saves that survive this process go on in the node. For an embedded node, which ends with this process, they are
        waited for, at most `timeout` seconds.
        """
        self._end(timeout)
        if self._has_own_node:
            self.node.close()

    def _end(self, timeout: float | None = None) -> None:
        if self.node._embedded is not None:
            self._watch.wait(timeout)
        self._watch.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<forebay.Checkpoints at {self.root}>"


def _tree(step: _native.CheckpointStep, into: Any) -> Any:
    """How the names of a step make up a state; a step that does not say so is a dict of tensors, or like the state."""
    tree = json.loads(step.tree())
    if isinstance(tree, list):
        return tree
    if into is not NEW:
        return flatten(into).tree
    return ["d", *([name, ["t", name, "n"]] for name in step.tensors())]


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInputError(f"{name} is one of {', '.join(choices)}, not {value!r}")


def _json(metadata: dict[str, Any]) -> str:
    try:
        return json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"metadata has to be JSON: {error}") from None


#: Those that may have saves on their way when the interpreter ends.
_open: weakref.WeakSet[Checkpoints] = weakref.WeakSet()


def _keep(checkpoints: Checkpoints) -> None:
    if not _open:
        atexit.register(_close_all)
    _open.add(checkpoints)
    checkpoints.node._before_close.add(checkpoints)


def _close_all() -> None:
    for checkpoints in list(_open):
        checkpoints._end()
