"""What a name of one source file was made from: a rank, a constant, a collective's result. Reads expressions only."""

from __future__ import annotations

import ast
import re
from collections.abc import Set

_RANK_NAME = re.compile(
    r"(^|_)rank($|_|\d)|^is_(local_|global_|world_)?(main|master|leader|chief|root|primary|process_zero)|"
    r"^(main|master|chief|leader)_(process|rank|node|worker)$|rank_zero|get_rank",
    re.IGNORECASE,
)
# What a condition on the rank may be put together from; a model that was made with the rank is none.
_PLAIN_CALLS = frozenset({"int", "bool", "str", "get", "getenv", "environ", "os", "dist", "self", "args"})
_OPTIONS = frozenset({"args", "opt", "opts", "options", "cfg", "config", "hparams", "FLAGS"})
_COLLECTIVE = re.compile(
    r"^(all_?reduce|all_?gather|broadcast|reduce_tensor|reduce_value|gather_for_metrics|scatter_object|all_to_all)"
)
_DRAWS = re.compile(r"^(next|read|fetch|draw|take|pop|get_next|get_batch)", re.IGNORECASE)
_MODULES = frozenset({"dist", "torch", "distributed", "math", "np", "args", "self"})
_MOST_HOPS = 3  # how far a name is followed back to the expression it was made from

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Names:
    """The names of one file, and questions about expressions in it."""

    def __init__(self) -> None:
        self.made_from: dict[str, list[ast.expr]] = {}
        self.calls: dict[str, list[tuple[int, str]]] = {}  # by name: line, and the name before the dot
        self.modules: set[str] = set()  # names that imports have bound
        self.classes: set[str] = set()
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self.shared: set[str] = set()  # names that were handed to a collective
        self._communicating: dict[str, bool] = {}

    def learn(self, node: ast.AST) -> None:
        """Take note of one node of the file's tree."""
        self._note_names(node)
        if isinstance(node, ast.Call):
            name = dotted_tail(node.func)
            base = dotted_tail(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            self.calls.setdefault(name, []).append((node.lineno, base))
            if _COLLECTIVE.search(name):
                self.shared |= {word for part in node.args for one in ast.walk(part) if (word := dotted_tail(one))}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.modules |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            self.classes.add(node.name)
        elif isinstance(node, FUNCTIONS):
            self.functions.setdefault(node.name, []).append(node)

    def _note_names(self, node: ast.AST) -> None:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets, value = [node.target], node.value
        if value is None:
            return
        for target in targets:
            elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            for element in elements:
                name = dotted_tail(element)
                if name:
                    self.made_from.setdefault(name, []).append(value)

    def asks_rank(self, condition: ast.AST, hops: int = _MOST_HOPS) -> bool:
        """True when a condition compares the rank: named in it, or in the plain conditions its names stand for."""
        for node in ast.walk(condition):
            if isinstance(node, ast.Constant) and node.value in ("RANK", "LOCAL_RANK"):
                return True
            name = dotted_tail(node)
            if name and _RANK_NAME.search(name):
                return True
            if name and hops and any(self._flag_of_rank(value, hops - 1) for value in self.made_from.get(name, ())[:8]):
                return True
        return False

    def _flag_of_rank(self, value: ast.expr, hops: int) -> bool:
        """`main = rank == 0`, or something that only one rank has: `writer = Writer() if main else None`."""
        if isinstance(value, ast.IfExp):
            return self.asks_rank(value.test, hops)
        return _is_plain(value) and self.asks_rank(value, hops)

    def counts_to_a_constant(self, iterable: ast.expr) -> bool:
        """True for `range` (or enumerate, tqdm of it) of literals, capital names, options, and names made of those."""
        if not isinstance(iterable, ast.Call):
            return False
        name = dotted_tail(iterable.func)
        if name in ("enumerate", "tqdm", "trange", "track"):
            return bool(iterable.args) and self.counts_to_a_constant(iterable.args[0])
        return name == "range" and all(self._is_constant(argument) for argument in iterable.args)

    def _is_constant(self, value: ast.expr, hops: int = _MOST_HOPS) -> bool:
        if isinstance(value, ast.Constant):
            return True
        if isinstance(value, ast.BinOp):
            return self._is_constant(value.left, hops) and self._is_constant(value.right, hops)
        if isinstance(value, ast.Attribute) and dotted_tail(value.value) in _OPTIONS:
            return True
        name = dotted_tail(value)
        if not name or not hops:
            return False
        values = self.made_from.get(name, ())
        return name.isupper() or (bool(values) and all(self._is_constant(one, hops - 1) for one in values))

    def agreed(self, condition: ast.AST, hops: int = _MOST_HOPS) -> bool:
        """True when the value that decides went through a collective, so that all ranks have the same."""
        for node in ast.walk(condition):
            name = dotted_tail(node.func) if isinstance(node, ast.Call) else dotted_tail(node)
            if not name or (name in _MODULES and not isinstance(node, ast.Call)):
                continue
            if name in self.shared or (isinstance(node, ast.Call) and self._communicates(name)):
                return True
            if hops and any(self.agreed(value, hops - 1) for value in self.made_from.get(name, ())[:8]):
                return True
        return False

    def ran_out(self, condition: ast.expr) -> bool:
        """True for `x is None` or `not x` of an x that was drawn from a stream, and for a last slice that came out
        too short: the ordinary end of the data."""
        if self._measures_a_slice(condition):
            return True
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            drawn = condition.operand
        elif isinstance(condition, ast.Compare) and isinstance(condition.ops[0], (ast.Is, ast.Eq)):
            drawn = condition.left
        else:
            return False
        if isinstance(drawn, ast.NamedExpr):
            drawn = drawn.target
        values = self.made_from.get(dotted_tail(drawn), ())
        return any(isinstance(value, ast.Call) and _DRAWS.search(dotted_tail(value.func)) for value in values)

    def _measures_a_slice(self, condition: ast.expr) -> bool:
        """`len(x) < 8` (or x.shape, x.size()) of an `x = data[i : i + 8]`."""
        if not isinstance(condition, ast.Compare):
            return False
        words = {dotted_tail(node) for node in ast.walk(condition.left)}
        if not words & {"len", "shape", "size", "numel"}:
            return False
        values = [value for word in words for value in self.made_from.get(word, ())[:8]]
        return any(isinstance(node, ast.Slice) for value in values for node in ast.walk(value))

    def _communicates(self, name: str) -> bool:
        if name not in self._communicating:
            bodies = self.functions.get(name, ())[:4]
            calls = [node for body in bodies for node in ast.walk(body) if isinstance(node, ast.Call)]
            inside = any(_COLLECTIVE.search(dotted_tail(call.func)) for call in calls)
            self._communicating[name] = inside or _COLLECTIVE.search(name) is not None
        return self._communicating[name]

    def _measures_by_rank(self, call: ast.Call) -> bool | None:
        """Whether a function of this file cuts or counts by the rank; None: it is none of this file. One that only
        compares the rank, seeds with it or prints it gives every rank as much."""
        bodies = self.functions.get(dotted_tail(call.func), ())
        if not bodies:
            return None
        for body in bodies[:4]:
            given = [*body.args.posonlyargs, *body.args.args]
            names = {argument.arg for argument, value in zip(given[-len(call.args) :], call.args, strict=False)
                     if self.by_rank(value, 1)} if call.args else set()  # fmt: skip
            names |= {word.arg for word in call.keywords if word.arg and self.by_rank(word.value, 1)}
            for node in ast.walk(body):
                if _cuts_or_counts(node) and any(
                    (name := dotted_tail(one)) and (name in names or _RANK_NAME.search(name)) for one in ast.walk(node)
                ):
                    return True
        return False

    def by_rank(self, expression: ast.AST, hops: int = _MOST_HOPS, seen: frozenset[str] = frozenset()) -> bool:
        """True when the expression's value is made from a rank, as far as names can be followed."""
        waiting: list[ast.AST] = [expression]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Call) and "seed" in dotted_tail(node.func):
                continue  # other values, no other number of them
            measured = self._measures_by_rank(node) if isinstance(node, ast.Call) and hops else None
            if measured:
                return True
            if measured is None:
                waiting += ast.iter_child_nodes(node)
            name = dotted_tail(node)
            if isinstance(node, ast.Constant) and node.value in ("RANK", "LOCAL_RANK"):
                return True
            if not name:
                continue
            if _RANK_NAME.search(name):
                return True
            if hops and name not in seen:
                deeper = seen | {name}
                if any(self.by_rank(value, hops - 1, deeper) for value in self.made_from.get(name, ())[:8]):
                    return True
        return False


def names_a_rank(name: str) -> bool:
    """True for a name that speaks of the rank: `rank`, `is_main_process`, `rank_zero_only`."""
    return _RANK_NAME.search(name.removeprefix("on_")) is not None


def _cuts_or_counts(node: ast.AST) -> bool:
    """A slice or index, arithmetic, a range, or a text: what makes one rank's data longer than another's."""
    if isinstance(node, ast.If):
        inside = [one for statement in node.body for one in ast.walk(statement)]
        return any(isinstance(one, (ast.Slice, ast.Return, ast.Continue, ast.Break)) for one in inside)
    if isinstance(node, ast.Call):
        return dotted_tail(node.func) in ("range", "arange", "islice", "open", "load")
    return isinstance(node, (ast.Subscript, ast.BinOp, ast.JoinedStr, ast.IfExp)) and not _is_seed(node)


def _is_seed(node: ast.AST) -> bool:
    return any("seed" in dotted_tail(one) for one in ast.walk(node))


def _is_plain(value: ast.expr) -> bool:
    """A comparison, a flag or a number, not an object that was merely made with the rank."""
    return all(
        dotted_tail(node.func) in _PLAIN_CALLS or _RANK_NAME.search(dotted_tail(node.func))
        for node in ast.walk(value)
        if isinstance(node, ast.Call)
    )


def of_foreign_class(value: ast.expr, own: Set[str]) -> bool:
    """True for `SGD(…)` where no class of that name is the user's, nor any class of theirs is among its arguments."""
    if not isinstance(value, ast.Call) or not dotted_tail(value.func)[:1].isupper():
        return False
    return not any(dotted_tail(node) in own for node in ast.walk(value))


def dotted_tail(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
