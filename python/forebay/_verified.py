"""What a look at all bytes of a step has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verified:
    """What `Checkpoints.verify` saw.

    Attributes:
        files: Files that were looked at.
        proved: Tensors and objects that were proved.
        bytes: Bytes that were proved.
        findings: What is wrong: file, tensor or object or `None`, message.
        has_more: Whether more is wrong than is listed.

    """

    files: int
    proved: int
    bytes: int
    findings: tuple[tuple[str, str | None, str], ...]
    has_more: bool

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return not self.findings
