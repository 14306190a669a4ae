"""Ctrl-C at a certain moment: once the main thread is inside the package and waits there.

A timer would fire before the call on a slow machine, and end the whole test run instead of one wait.
"""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import forebay

PACKAGE = str(Path(forebay.__file__).parent)
PAUSE_SECONDS = 0.02
SAMPLES_ALIKE = 5
WAIT_SECONDS_MAX = 60


@contextmanager
def interrupted(seconds_max: float = 10):
    """What is inside waits in the package, gets Ctrl-C there, and ends with it soon."""
    sent: list[float] = []
    main = threading.main_thread()
    sender = threading.Thread(target=_interrupt, args=(main, sent))
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        ended = time.monotonic()
        sender.join()
    assert sent, "it never waited"
    assert ended - sent[0] < seconds_max


def _interrupt(main: threading.Thread, sent: list[float]):
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    alike, before = 0, None
    while time.monotonic() < deadline:
        place = _waits_at(main)
        alike = alike + 1 if place and place == before else 0
        before = place
        if alike == SAMPLES_ALIKE:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
            return
        time.sleep(PAUSE_SECONDS)


def _waits_at(thread: threading.Thread) -> tuple[str, int] | None:
    """Where in the package a thread is, if it sleeps there."""
    frame = sys._current_frames()[thread.ident]
    # Where the package waits with what Python has, such as a lock, the caller in the package counts.
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    is_inside = frame.f_code.co_filename.startswith(PACKAGE) and state == "S"
    return (frame.f_code.co_filename, frame.f_lasti) if is_inside else None
