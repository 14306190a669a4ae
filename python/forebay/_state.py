"""A nested state as tensors, objects and a tree, so that it can be saved without pickle.

The tree is JSON. `null`, `true`, numbers and texts stand for themselves; everything else is a list that begins with a
word:

| node | what |
|---|---|
| `["d", [key, node], …]`, `["o", …]` | dict, OrderedDict; a third entry of a pair lists the ranks that had the key |
| `["l", node, …]`, `["u", node, …]` | list, tuple |
| `["s", node]` | what `state_dict()` of an object gave |
| `["t", name, kind]` | a tensor; kind `t` of torch, `n` of numpy |
| `["g", type, text]` | a scalar of numpy, its bytes in base64 |
| `["f", text]`, `["i", text]`, `["x", text]` | float (hexadecimal), long integer, text that is no Unicode (base64) |
| `["b", name]`, `["B", name]`, `["S", name]`, `["p", name]` | an object: bytes, bytearray, long text, pickle |
| `["j", name]` | what PyTorch's DCP saved by itself: an object with such a tree, or a pickle, as its kind says |
| `["T", text]` | `torch.dtype`, `torch.device` or `torch.Size` by its name |
| `["r", [[ranks], node], …]` | the ranks have different things here |

Names are the keys of the path, joined by dots, as PyTorch's DCP has them.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay._tensors import Piece, identity, library, pieces
from forebay.errors import InvalidInputError, UnsupportedError

#: Nodes of a tree as JSON.
Node = Any
#: Longer texts and bytes are objects of their own.
INLINE_CHARS_MAX = 4096
#: Integers that every reader of JSON keeps.
_INTEGER_MAX = 1 << 53
#: Nesting of a state.
DEPTH_MAX = 100


@dataclass
class Flat:
    """A state, taken apart."""

    #: Boxes of tensors by name; several of one name are several shards.
    pieces: list[tuple[str, Piece]] = field(default_factory=list)
    #: Name, kind (`bytes`, `pickle`) and content.
    objects: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: How they make up the state.
    tree: Node = None
    #: Bytes that were copied to become plain memory of the CPU.
    copied_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors and objects."""
        return sum(piece.nbytes for _, piece in self.pieces) + sum(len(data) for _, _, data in self.objects)


def flatten(state: Any, *, allow_pickle: bool = False, later_bytes_min: int | None = None) -> Flat:
    """Take a state apart.

    Args:
        state: Dicts, lists and tuples of tensors, arrays, numbers, texts, bytes, `None` and objects with
            `state_dict()`.
        allow_pickle: Pickle what is none of these; else `UnsupportedError` names it.
        later_bytes_min: From this size on, tensors that have to be copied are left to `Piece.take`.

    >>> flat = flatten({"step": 3, "rng": (1, 2.5), "tags": ["a", None]})
    >>> flat.tree
    ['d', ['step', 3], ['rng', ['u', 1, ['f', '0x1.4000000000000p+1']]], ['tags', ['l', 'a', None]]]
    """
    walk = _Walk(allow_pickle, later_bytes_min)
    walk.flat.tree = walk.node(state, ())
    return walk.flat


class _Walk:
    def __init__(self, allow_pickle: bool, later_bytes_min: int | None) -> None:
        self.flat = Flat()
        self.later_bytes_min = later_bytes_min
        self.allow_pickle = allow_pickle
        #: Paths by name, to tell apart what joins to the same name.
        self.names: dict[str, tuple[Any, ...]] = {}
        #: The first name of each memory, and what holds it: freed memory could be given to another tensor.
        self.seen: dict[tuple[object, ...], tuple[str, Any]] = {}

    def node(self, value: Any, path: tuple[Any, ...]) -> Node:
        if len(path) > DEPTH_MAX:
            raise InvalidInputError(f"the state is nested deeper than {DEPTH_MAX}, or holds itself", _at(path))
        scalar = _scalar(value)
        if scalar is not None or value is None:
            return scalar
        kind = library(value)
        if kind == "g":
            return ["g", value.dtype.name, base64.b64encode(value.tobytes()).decode()]
        if kind is not None:
            return ["t", self._tensor(value, path), kind]
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, (bytes, bytearray, memoryview)):
            tag = "B" if isinstance(value, bytearray) else "b"
            return [tag, self._object(path, "bytes", bytes(value))]
        return self._container(value, path)

    def _container(self, value: Any, path: tuple[Any, ...]) -> Node:
        if isinstance(value, Mapping):
            tag = "o" if isinstance(value, OrderedDict) else "d"
            return [tag, *([_key(key, path), self.node(one, (*path, key))] for key, one in value.items())]
        word = _of_torch(value)
        if word is not None:
            return ["T", word]
        if isinstance(value, (list, tuple)):
            tag = "l" if isinstance(value, list) else "u"
            return [tag, *(self.node(one, (*path, index)) for index, one in enumerate(value))]
        if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
            return ["s", self.node(value.state_dict(), path)]
        if not self.allow_pickle:
            message = (
                f"a {type(value).__module__}.{type(value).__qualname__} can only be saved as a pickle: "
                "give it a state_dict(), take it out of the state, or use allow_pickle=True"
            )
            raise UnsupportedError(message, _at(path))
        return ["p", self._object(path, "pickle", pickle.dumps(value))]

    def _tensor(self, value: Any, path: tuple[Any, ...]) -> str:
        same = identity(value)
        if same is not None and same in self.seen:
            return self.seen[same][0]
        name = self._name(path)
        for piece in pieces(value, name, later_bytes_min=self.later_bytes_min):
            self.flat.pieces.append((name, piece))
            self.flat.copied_bytes += piece.copied
        if same is not None:
            # A DTensor may make its local tensor anew, and that one has the address.
            local = value.to_local() if hasattr(value, "to_local") else value
            self.seen[same] = name, (value, local)
        return name

    def _text(self, value: str, path: tuple[Any, ...]) -> Node:
        node = _unicode(value)
        if len(value) <= INLINE_CHARS_MAX or node is not value:
            return node
        return ["S", self._object(path, "bytes", value.encode())]

    def _object(self, path: tuple[Any, ...], kind: str, data: bytes) -> str:
        name = self._name(path)
        self.flat.objects.append((name, kind, data))
        return name

    def _name(self, path: tuple[Any, ...]) -> str:
        name = ".".join(str(key) for key in path) or "value"
        other = self.names.setdefault(name, path)
        if other != path or [type(key) for key in other] != [type(key) for key in path]:
            raise InvalidInputError(f"two entries of the state are both called {name!r}; rename one of them", _at(path))
        return name


def _scalar(value: Any) -> Node:
    """The node of a number, or `None`."""
    if value is True or value is False:
        return value
    if type(value) is int:
        return value if -_INTEGER_MAX <= value <= _INTEGER_MAX else ["i", str(value)]
    if type(value) is float:
        return ["f", value.hex()]
    return None


def _unicode(text: str) -> Node:
    """A text, as it is if JSON can have it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ["x", base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()]
    return text


def _key(key: Any, path: tuple[Any, ...]) -> Node:
    """The key of a dict: a text, number, `None`, or a tuple of them."""
    if isinstance(key, tuple):
        return ["u", *(_key(one, path) for one in key)]
    if isinstance(key, str):
        return _unicode(key)
    if key is None or (scalar := _scalar(key)) is None:
        if key is None:
            return None
        raise UnsupportedError(f"keys of type {type(key).__name__} cannot be saved", _at((*path, key)))
    return scalar


def _of_torch(value: Any) -> str | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return f"device:{value}"
    if isinstance(value, torch.Size):
        return f"size:{json.dumps(list(value))}"
    return None


def _at(path: tuple[Any, ...]) -> list[tuple[str, str]]:
    return [("entry", ".".join(str(key) for key in path[:20]))]


def merged(trees: list[Node]) -> Node:
    """Return one tree for all ranks, in the order of ranks.

    >>> merged([["d", ["a", 1], ["b", 2]], ["d", ["a", 1], ["b", 3]], ["d", ["a", 1], ["b", 2], ["c", 4]]])
    ['d', ['a', 1], ['b', ['r', [[0, 2], 2], [[1], 3]]], ['c', 4, [2]]]
    """
    return _merged(list(enumerate(trees)))


def _merged(nodes: list[tuple[int, Node]]) -> Node:
    first = nodes[0][1]
    if all(node == first and type(node) is type(first) for _, node in nodes):
        return first
    tags = {node[0] if isinstance(node, list) else None for _, node in nodes}
    if len(tags) == 1 and (tag := tags.pop()) is not None:
        if tag in ("d", "o"):
            return [tag, *_merged_items(nodes)]
        if tag == "s":
            return ["s", _merged([(rank, node[1]) for rank, node in nodes])]
        if tag in ("l", "u") and len({len(node) for _, node in nodes}) == 1:
            return [tag, *(_merged([(rank, node[index]) for rank, node in nodes]) for index in range(1, len(first)))]
    groups: dict[str, list[Any]] = {}
    for rank, node in nodes:
        groups.setdefault(json.dumps(node), [[], node])[0].append(rank)
    return ["r", *groups.values()]


def _merged_items(nodes: list[tuple[int, Node]]) -> list[Node]:
    found: dict[str, tuple[Node, list[tuple[int, Node]]]] = {}
    for rank, node in nodes:
        for key, value, *_ in node[1:]:
            found.setdefault(json.dumps(key), (key, []))[1].append((rank, value))
    items = []
    for key, values in found.values():
        item = [key, _merged(values)]
        if len(values) < len(nodes):
            item.append([rank for rank, _ in values])
        items.append(item)
    return items
