"""Damages objects made of dicts, lists and plain values: at random places, with wrong types, absurd numbers and hostile
texts, and with values that are right in kind, so that the damage gets past the first check."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 65_535, 99_999, 1_000_000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, 2**63,
    -(2**63), -(2**63) - 1, 2**64, 10**30, 0.5, -0.0, 1e-320, 1e18, 1e308, -1e308,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "--1", "²", "١", "9" * 30, "9" * 5_000, "NaN", "\0", "a\nb", "\r", "\x1b[31mred\x1b[2J",
    "\x9b31m", "\u202etxt.exe", "\u2066\u200b\ufeff", "e\u0301" + "\u0301" * 40, "界" * 200, "x" * 5_000,
    "../../../../etc/passwd", "/", "//", "[", "]", "[0", "[0, 1, -5]", "[0, 1099511627775]", "{}", "</svg><script>",
    "[bold]:smile:", "%s%n", "0->1", "1<-0", "->", "0-3#0", "#", "nccl:", ":", "gloo:send 0->99999999", "<string>",
    "nccl:recv 1<-0", "default_pg", "completed", "started", "scheduled", "a\tb", "\u2028", "\U000e0041", "<native >",
)  # fmt: skip
LONE_SURROGATES = ("\ud800", "a\udcff", "\udfff\ud800")
VERY_LONG = 1_000_000


class TreeDamage:
    """Changes copies of sample objects. `binary`: for pickles, which hold more than JSON does."""

    def __init__(self, samples: Iterable[Any], *, binary: bool) -> None:
        self._rng, self._binary = random.Random(0), binary
        self._by_key: dict[Any, list[Any]] = {}
        for sample in samples:
            self._learn(sample)

    def _learn(self, tree: Any) -> None:
        """Remember which values each field has."""
        for key, value in tree.items() if isinstance(tree, dict) else [("[]", item) for item in tree]:
            known = self._by_key.setdefault(key, [])
            if len(known) < 200 and value not in known:
                known.append(value)
            if isinstance(value, (dict, list, tuple)):
                self._learn(value)

    def damaged(self, rng: random.Random, tree: Any) -> Any:
        """A copy of the tree, changed at a few random spots; it may be another object altogether."""
        self._rng, tree = rng, copy.deepcopy(tree)
        holder = [tree]
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 12))):
            container, key = self._spot(holder)
            if container is holder:
                holder[0] = self._hostile() if rng.random() < 0.5 else self._alike(holder[0])
            else:
                self._change(container, key)
        return holder[0]

    def _spot(self, holder: list[Any], deep: float = 0.95) -> tuple[Any, Any]:
        """A random place, deep ones as likely as shallow ones. Tuples on the way become lists."""
        rng = self._rng
        container: Any = holder
        key: Any = 0
        for _ in range(40):  # the tree may contain itself by now
            node = container[key]
            if type(node) is tuple:
                node = container[key] = list(node)
            if type(node) not in (dict, list) or not node or rng.random() > deep:
                break
            container = node
            key = rng.choice(list(node)) if type(node) is dict else rng.randrange(len(node))
        return container, key

    def _change(self, container: Any, key: Any) -> None:
        rng = self._rng
        way = rng.random()
        if way < 0.3:
            container[key] = self._alike(container[key])
        elif way < 0.5:
            container[key] = self._elsewhere(key)
        elif way < 0.7:
            container[key] = self._hostile()
        elif way < 0.8:
            del container[key]
        elif type(container) is list:
            self._change_list(container, key)
        else:
            self._change_dict(container, key)

    def _change_list(self, items: list[Any], at: int) -> None:
        rng = self._rng
        way = rng.randrange(6)
        if way == 0:
            items.insert(rng.randrange(len(items) + 1), items[at])
        elif way == 1:
            other = rng.randrange(len(items))
            items[at], items[other] = items[other], items[at]
        elif way == 2:
            rng.shuffle(items)
        elif way == 3:
            items.reverse()
        elif way == 4:
            items[at:at] = [items[at]] * rng.choice((2, 10, 10, 100, 1_000 if len(items) < 100 else 2))
        else:
            del items[rng.randrange(len(items)) :]

    def _change_dict(self, items: dict[Any, Any], key: Any) -> None:
        rng = self._rng
        way = rng.randrange(3)
        if way == 0:
            items[self._key()] = items.pop(key)
        elif way == 1:
            other = rng.choice(list(items))
            items[key], items[other] = items[other], items[key]
        else:
            items[self._key()] = self._hostile()

    def _key(self) -> Any:
        rng = self._rng
        if self._binary and rng.random() < 0.3:
            return rng.choice((0, -1, 2**70, None, True, 0.5, float("nan"), b"x", (1, "a"), frozenset((1,))))
        return self._text()

    def _elsewhere(self, key: Any) -> Any:
        """A value that this field has in some sample; now and then one of another field."""
        rng = self._rng
        if key not in self._by_key or rng.random() < 0.1:
            key = rng.choice(list(self._by_key))
        return copy.deepcopy(rng.choice(self._by_key[key]))

    def _alike(self, value: Any) -> Any:
        """A value of the same kind, so that a check of types lets it pass."""
        rng = self._rng
        if type(value) is bool:
            return not value
        if type(value) is int:
            near = (value + 1, value - 1, -value, value * 2, value // 2, value + 1_000_000_000, value % 7)
            return rng.choice((*near, *(n for n in NUMBERS if type(n) is int)))
        if type(value) is float:
            return rng.choice((value + 1, -value, value * 1e3, value / 1e3, 0.0, -1.0, 1e18, 1e308, -1e308, 5e-324))
        if type(value) is str:
            return self._text() if rng.random() < 0.6 else self._bent(value)
        if type(value) is list:
            return rng.choice(([], value * 2, value[::-1], value[: len(value) // 2], [value], value[-1:]))
        if type(value) is dict:
            return rng.choice(({}, dict(list(value.items())[::-1]), dict(list(value.items())[:1])))
        return self._hostile()

    def _bent(self, text: str) -> str:
        rng = self._rng
        at = rng.randrange(len(text) + 1)
        return rng.choice((
            text[:at], text[at:], text + text, text[:at] + rng.choice(TEXTS) + text[at:], text.upper(), text[::-1],
            text[:at] + chr(rng.choice((0, 10, 27, 127, 155, 0x202E, 0xFFFD))) + text[at:],
        ))  # fmt: skip

    def _text(self) -> str:
        rng = self._rng
        chance = rng.random()
        if chance < 0.002:
            return rng.choice(("x", "(", "\n", "é", "0", "<")) * VERY_LONG
        if chance < 0.05:
            return rng.choice(LONE_SURROGATES)
        return rng.choice(TEXTS)

    def _hostile(self) -> Any:
        rng = self._rng
        way = rng.random()
        if way < 0.3:
            return rng.choice(NUMBERS)
        if way < 0.55:
            return self._text()
        if way < 0.65:
            return rng.choice((None, True, False))
        if way < 0.85 or not self._binary:
            return self._container()
        return self._binary_value()

    def _container(self) -> Any:
        rng = self._rng
        if rng.random() < 0.02:
            return nested(rng.choice((200, 900, 3_000)))
        return rng.choice((
            [], {}, [[]], [None], [[[1]]], [0] * 50, [""], {"": None}, {"a": {"b": []}}, [[2**62, 2**62]], ["x"] * 300,
        ))  # fmt: skip

    def _binary_value(self) -> Any:
        rng = self._rng
        way = rng.randrange(9)
        if way == 0:
            loop: list[Any] = [1]
            loop.append(loop)
            return loop
        if way == 1:
            knot: dict[Any, Any] = {}
            knot["x"] = knot
            return knot
        if way == 2:
            return unfolding(rng.choice((5, 20, 40, 200)))
        if way == 3:
            shared = [0] * 1_000
            return [shared] * 10_000  # ten million numbers for a walk that counts places
        if way == 4:
            return rng.choice((float("nan"), float("inf"), -float("inf")))
        if way == 5:
            return rng.choice((10**4_000, 10**5_000, -(10**5_000)))
        if way == 6:
            return rng.choice((b"", b"bytes", bytearray(b"x"), b"\x80" * 1_000))
        if way == 7:
            return rng.choice(({1, 2}, frozenset(("a",)), (), (1,), ((),), frozenset()))
        return {n: n for n in range(rng.choice((3, 3_000)))}


def nested(depth: int) -> list[Any]:
    """[[[…]]]"""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def unfolding(depth: int) -> list[Any]:
    """A list of few objects that a walk without memory sees 2 ** depth times."""
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return value


def walk_size(tree: Any, limit: int) -> int:
    """How many values a walk without memory sees, counted up to `limit`: what JSON would have to write."""
    seen, todo = 0, deque([tree])
    while todo and seen < limit:
        node = todo.pop()
        seen += 1
        if isinstance(node, dict):
            todo.extend(node.values())
        elif isinstance(node, (list, tuple)):
            todo.extend(node)
    return seen
