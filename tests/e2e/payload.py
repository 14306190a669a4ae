"""Bytes to store: made from a seed, so that a test can say what a range must be without keeping it."""

import hashlib
import random

KIB = 1024
MIB = 1024 * 1024


def payload(size: int, seed: int = 0) -> bytes:
    """`size` bytes that depend on the seed and do not repeat within 64 KiB."""
    return random.Random(seed).randbytes(size)


def digest(data: bytes) -> str:
    """For messages: comparing digests prints one line where comparing bytes prints megabytes."""
    return hashlib.sha256(data).hexdigest()


def same(got: bytes, expected: bytes) -> None:
    """Asserts equality and, if not, says where the first difference is."""
    if got == expected:
        return
    assert len(got) == len(expected), f"got {len(got)} bytes, expected {len(expected)}"
    first = next(at for at, (a, b) in enumerate(zip(got, expected)) if a != b)
    raise AssertionError(f"first difference at byte {first} of {len(expected)}")
