"""Names of PyTorch's DCP as the tree of a step, and back: what DCP keeps as a pickle is JSON here.

DCP calls what it saves by the path of keys, joined by dots, and remembers the paths (`planner_data`). The tree of a
step is that of `forebay/_state.py`, so that a step saved by DCP loads by `forebay.Checkpoints`, and the other way
round.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from forebay._state import Node, flatten
from forebay.errors import InvalidInputError, UnsupportedError

#: Keys of dicts and places in lists.
Path = tuple[str | int, ...]


def tree_of(paths: Mapping[str, Path], tensors: set[str]) -> Node:
    """Return the tree of entries with these names and paths.

    >>> tree_of({"a.w": ("a", "w"), "a.l.0": ("a", "l", 0), "n": ("n",)}, {"a.w", "a.l.0"})
    ['d', ['a', ['d', ['w', ['t', 'a.w', 't']], ['l', ['l', ['t', 'a.l.0', 't']]]]], ['n', ['j', 'n']]]
    """
    root: dict[str | int, Any] = {}
    for name, path in paths.items():
        place = root
        for key in path[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or path[-1] in place:
            raise InvalidInputError("an entry of the state lies where another one is", [("entry", name)])
        place[path[-1]] = ["t", name, "t"] if name in tensors else ["j", name]
    return _node(root)


def _node(place: Any) -> Node:
    if not isinstance(place, dict):
        return place
    places = [key for key in place if isinstance(key, int)]
    if places and len(places) == len(place):
        return ["l", *(_node(place.get(index)) for index in range(max(places) + 1))]
    return ["d", *([key, _node(value)] for key, value in place.items())]


def leaves(tree: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Return what DCP would save one by one, with its path: what is below dicts, and below lists that hold more."""
    tag = tree[0] if isinstance(tree, list) else None
    if tag == "s":
        yield from leaves(tree[1], path)
    elif tag in ("d", "o"):
        for key, node, *_ in tree[1:]:
            yield from leaves(node, (*path, _key(key)))
    elif tag == "l" and not _is_one(tree):
        for index, node in enumerate(tree[1:]):
            yield from leaves(node, (*path, index))
    else:
        yield path or ("value",), tree


def _is_one(node: Node) -> bool:
    """Whether DCP takes it as one value."""
    tag = node[0] if isinstance(node, list) else None
    if tag in ("d", "o", "s", "t", "j"):
        return False
    return tag != "l" or all(_is_one(entry) for entry in node[1:])


def _key(key: Node) -> str:
    if isinstance(key, list):
        return str(float.fromhex(key[1]) if key[0] == "f" else key[1])
    return str(key)


def as_json(value: Any) -> bytes | None:
    """Return a value as JSON that gives exactly it again, or `None` if there is none.

    >>> as_json({"lr": 0.5, "betas": (1, 2)})
    b'["d", ["lr", ["f", "0x1.0000000000000p-1"]], ["betas", ["u", 1, 2]]]'
    >>> as_json({"lr": object()})
    """
    if not _is_plain(value):
        return None
    try:
        flat = flatten(value)
    except (InvalidInputError, UnsupportedError):
        return None
    return None if flat.objects or flat.pieces else json.dumps(flat.tree).encode()


def _is_plain(value: Any) -> bool:
    if value is None or type(value) in (bool, int, float, str):
        return True
    if type(value) in (dict, OrderedDict):
        return all(_is_plain(key) and _is_plain(one) for key, one in value.items())
    if type(value) in (list, tuple):
        return all(_is_plain(one) for one in value)
    return type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "Size")
