"""Tensors as memory and memory as tensors, for those who have torch; nobody else imports it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from forebay.errors import InvalidInputError


def as_buffer(target: Any) -> Any:
    """Return something with the buffer protocol that is the same memory as `target`.

    A tensor on the CPU has memory but no buffer protocol; numpy shows it as bytes whatever its element type is.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(target, torch.Tensor):
        return target
    if target.device.type != "cpu":
        raise InvalidInputError(
            f"the tensor is on {target.device}; bring it to the CPU, or read into a CPU tensor first"
        )
    if not target.is_contiguous():
        raise InvalidInputError("the tensor is not contiguous; use tensor.contiguous()")
    return target.detach().reshape(-1).view(torch.uint8).numpy()


def frombuffer(view: Any, dtype: Any = None) -> Any:
    """Return a flat tensor over the same memory, without a copy. Writing to one over a view would end the process."""
    import torch

    if dtype is None:
        dtype = torch.uint8
    if len(view) == 0:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        # torch cannot mark a tensor as read-only and warns once for each process; the caller has been told here.
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        # Through a memoryview: torch does not hold the buffer of what it is given, but the object, and a memoryview
        # holds the buffer in its turn. So the view knows that it is in use.
        return torch.frombuffer(memoryview(view), dtype=dtype)
