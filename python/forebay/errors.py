"""What goes wrong, as a small tree of exceptions.

Every error of Forebay is a `ForebayError`: it carries the `kind` (the word that logs and metrics use), the `object` it
is about if there is one, and `advice`. It also derives from the builtin that people already catch:

>>> import forebay
>>> issubclass(forebay.NotFoundError, FileNotFoundError)
True
>>> issubclass(forebay.TimedOutError, TimeoutError)
True

The tree is defined here once; the native module raises by asking `from_failure`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, ClassVar


class ForebayError(Exception):
    """Base of all errors of Forebay.

    Attributes:
        kind: The category, as a word: `not_found`, `busy`, …
        advice: What to do about it.
        object: The object it is about, as `bucket/key`, or `None`.
        context: Everything known about the case, as pairs.
        retryable: Whether the same call may succeed later by itself.

    """

    kind: str = "internal"
    advice: str = "this is a defect of Forebay; please report it with the message"
    retryable: bool = False
    context: tuple[tuple[str, str], ...] = ()
    #: What `OSError.errno` says, for the classes that are one.
    _errno: ClassVar[int | None] = None

    def __init__(self, message: str = "", context: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self._message = message
        self.context = tuple((str(name), str(value)) for name, value in context)
        if isinstance(self, OSError):
            # By name, because to a type checker the two bases define them differently.
            setattr(self, "errno", type(self)._errno)  # noqa: B010
            setattr(self, "strerror", message)  # noqa: B010
            setattr(self, "filename", self.object)  # noqa: B010

    @property
    def message(self) -> str:
        """The message without context."""
        return self._message

    @property
    def object(self) -> str | None:
        """The object it is about, as `bucket/key`."""
        pairs = dict(self.context)
        if "object" in pairs:
            return pairs["object"]
        if "bucket" in pairs and "key" in pairs:
            return f"{pairs['bucket']}/{pairs['key']}"
        return pairs.get("key") or pairs.get("bucket")

    def __str__(self) -> str:
        if not self.context:
            return self._message
        return f"{self._message} ({', '.join(f'{name}: {value}' for name, value in self.context)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return from_failure, (self.kind, self._message, self.context)


class NotFoundError(ForebayError, FileNotFoundError):
    """The object, bucket or file does not exist."""

    kind = "not_found"
    advice = "look at what is there: node.buckets(), node.list('bucket/')"
    _errno = errno.ENOENT


class AlreadyExistsError(ForebayError, FileExistsError):
    """A create-only write found something there already."""

    kind = "already_exists"
    advice = "choose another name, or write without if_absent"
    _errno = errno.EEXIST


class PreconditionFailedError(ForebayError):
    """A condition of the caller (a version, say) does not hold."""

    kind = "precondition_failed"
    advice = "stat the object again and decide with its version of now"


class ChangedError(ForebayError):
    """The object was replaced while it was being read."""

    kind = "changed"
    advice = "read it again: the new version is whole"


class InvalidInputError(ForebayError, ValueError):
    """The caller's input is wrong; trying again will not help."""

    kind = "invalid_input"
    advice = "mend the argument that the message names"


class OutOfRangeError(ForebayError, ValueError):
    """The asked-for bytes lie past the end of the object."""

    kind = "out_of_range"
    advice = "ask for a range within the size that node.stat(name) gives"


class DeniedError(ForebayError, PermissionError):
    """Credentials are missing or wrong, or this user may not do it."""

    kind = "denied"
    advice = "check the credentials, the user of the process and --allow-uid of the node"
    _errno = errno.EACCES


class UnsupportedError(ForebayError, NotImplementedError):
    """This lake, platform or build cannot do what was asked."""

    kind = "unsupported"
    advice = "the message names what is missing; `forebay doctor` shows what the lake can do"


class BusyError(ForebayError):
    """A limit of the node is reached."""

    kind = "busy"
    advice = "try again a little later, or give the node a larger budget"
    retryable = True


class ThrottledError(BusyError):
    """The lake asks to slow down."""

    kind = "throttled"
    advice = "try again a little later"


class UnavailableError(ForebayError, ConnectionError):
    """The node or the lake cannot be reached."""

    kind = "unavailable"
    advice = "check that a node runs (`forebay serve`), that FOREBAY_NODE names it, and that its lake can be reached"
    retryable = True
    _errno = errno.ECONNREFUSED


class TimedOutError(ForebayError, TimeoutError):
    """A deadline passed."""

    kind = "timeout"
    advice = "try again, or give the client a longer timeout"
    retryable = True
    _errno = errno.ETIMEDOUT


class ChecksumError(ForebayError, OSError):
    """Bytes do not match their checksum, and there is no good copy."""

    kind = "checksum"
    advice = "the object in the lake is damaged; restore it from where it came"
    _errno = errno.EIO


class CorruptError(ForebayError, OSError):
    """A file or message of Forebay is damaged or not Forebay's."""

    kind = "corrupt"
    advice = "check that the address is that of a node; a damaged cache is rebuilt by removing the node's data folder"
    _errno = errno.EIO


class NoSpaceError(ForebayError, OSError):
    """A disk or budget is full."""

    kind = "no_space"
    advice = "free some space, or give a larger budget"
    _errno = errno.ENOSPC


class ConflictError(ForebayError):
    """Two writers collided; one of them has to try again."""

    kind = "conflict"
    advice = "try again"
    retryable = True


class CancelledError(ForebayError):
    """The work was stopped on purpose."""

    kind = "cancelled"
    advice = "nothing to do: somebody stopped it"


class IoError(ForebayError, OSError):
    """A local file or socket operation failed."""

    kind = "io"
    advice = "the message names the operation that failed; look at the disk or the socket"
    _errno = errno.EIO


class InternalError(ForebayError, RuntimeError):
    """A bug in Forebay."""


#: The class for each kind that the native module knows.
BY_KIND: dict[str, type[ForebayError]] = {
    error.kind: error
    for error in (
        NotFoundError,
        AlreadyExistsError,
        PreconditionFailedError,
        ChangedError,
        InvalidInputError,
        OutOfRangeError,
        DeniedError,
        UnsupportedError,
        BusyError,
        ThrottledError,
        UnavailableError,
        TimedOutError,
        ChecksumError,
        CorruptError,
        NoSpaceError,
        ConflictError,
        CancelledError,
        IoError,
        InternalError,
    )
}


def from_failure(kind: str, message: str, context: Sequence[tuple[str, str]] = ()) -> ForebayError:
    """Make the exception for a kind.

    >>> error = from_failure("not_found", "there is no such object", [("bucket", "demo"), ("key", "a")])
    >>> error
    NotFoundError('there is no such object')
    >>> error.object
    'demo/a'
    """
    return BY_KIND.get(kind, InternalError)(message, context)
