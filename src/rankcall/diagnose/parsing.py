"""One parsed source file: a line's loops and conditions, the jumps of a file, what a name was made from.

Any text is survived: a file that does not parse simply has nothing to say.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Literal

from rankcall.snapshot import Frame

MOST_TEXT = 2_000_000  # characters of one file; more is no training script
_RANK_NAME = re.compile(
    r"(^|_)rank($|_|\d)|^is_(local_|global_|world_)?(main|master|leader|chief|root|primary|process_zero)|"
    r"^(main|master|chief|leader)_(process|rank|node|worker)$|rank_zero|get_rank",
    re.IGNORECASE,
)
# What a condition on the rank may be put together from; a model that was made with the rank is none.
_PLAIN_CALLS = frozenset({"int", "bool", "str", "get", "getenv", "environ", "os", "dist", "self", "args"})
_OPTIONS = frozenset({"args", "opt", "opts", "options", "cfg", "config", "hparams", "FLAGS"})
_MOST_HOPS = 3  # how far a name is followed back to the expression it was made from

JumpKind = Literal["break", "continue", "return", "raise", "exit", "except"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition around a line. `branch` says which side of it the line is on; `line` is the condition's own."""

    file: str
    line: int
    text: str
    by_rank: bool
    branch: Literal["if", "else", "except", "finally"]


@dataclass(frozen=True, slots=True)
class Loop:
    """A for or while loop. `by_rank`: what it runs over (or its condition) is made from the rank. `fixed`: it
    counts to a number that is the same on all ranks, as far as can be read."""

    file: str
    line: int
    end: int
    text: str
    by_rank: bool
    fixed: bool = False

    def holds(self, frame: Frame) -> bool:
        """True when the line lies inside this loop."""
        return frame.file == self.file and self.line <= frame.line <= self.end


@dataclass(frozen=True, slots=True)
class Jump:
    """A statement that leaves the straight way: `line` is its own, `guard` the condition it stands under."""

    kind: JumpKind
    file: str
    line: int
    guard: Guard | None

    @property
    def place(self) -> Frame:
        """The condition that decides, else the statement itself."""
        return Frame(self.file, self.guard.line if self.guard is not None else self.line)


@dataclass(frozen=True, slots=True)
class Spot:
    """A line in its surroundings, innermost first."""

    function: str
    loops: tuple[Loop, ...]
    guards: tuple[Guard, ...]
    first: int = 0  # the function's lines; 0: the module itself
    last: int = 0
    handlers: tuple[int, ...] = ()  # lines of the excepts (or suppress) that catch what is raised here and go on


NOWHERE = Spot("", (), ())
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Loops = (ast.For, ast.AsyncFor, ast.While)


class SourceFile:
    """One parsed file: its tree and what its names were made from."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.tree: ast.Module | None = None
        self.made_from: dict[str, list[ast.expr]] = {}
        self.calls: dict[str, list[tuple[int, str]]] = {}  # by name: line, and the name before the dot
        self.modules: set[str] = set()  # names that imports have bound
        self.classes: set[str] = set()
        self.inline: dict[tuple[int, str], list[Guard]] = {}  # conditions within a line, by line and called name
        if len(text) > MOST_TEXT:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a user's invalid escape is not our message
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in ast.walk(self.tree):
            self._note_names(node)
            if isinstance(node, ast.Call):
                base = _dotted_tail(node.func.value) if isinstance(node.func, ast.Attribute) else ""
                self.calls.setdefault(_dotted_tail(node.func), []).append((node.lineno, base))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.modules |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                self.classes.add(node.name)
        for node in ast.walk(self.tree):
            self._note_inline(node)

    def _note_inline(self, node: ast.AST) -> None:
        """`a() if …  else b()` and `… and a()`: which calls of the line stand under the condition."""
        parts: list[tuple[ast.expr, ast.expr, Literal["if", "else"]]] = []
        if isinstance(node, ast.IfExp):
            parts = [(node.test, node.body, "if"), (node.test, node.orelse, "else")]
        elif isinstance(node, ast.BoolOp):
            side: Literal["if", "else"] = "if" if isinstance(node.op, ast.And) else "else"
            parts = [(node.values[0], value, side) for value in node.values[1:]]
        for test, part, branch in parts:
            for call in ast.walk(part):
                # The function of a call, or one that is chosen here and called later.
                name = _dotted_tail(call)
                if name:
                    guard = Guard(self.name, test.lineno, _text(test), self.asks_rank(test), branch)
                    self.inline.setdefault((getattr(call, "lineno", 0), name), []).insert(0, guard)

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
                name = _dotted_tail(element)
                if name:
                    self.made_from.setdefault(name, []).append(value)

    def asks_rank(self, condition: ast.AST, hops: int = _MOST_HOPS) -> bool:
        """True when a condition compares the rank: named in it, or in the plain conditions its names stand for."""
        for node in ast.walk(condition):
            if isinstance(node, ast.Constant) and node.value in ("RANK", "LOCAL_RANK"):
                return True
            name = _dotted_tail(node)
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
        name = _dotted_tail(iterable.func)
        if name in ("enumerate", "tqdm", "trange", "track"):
            return bool(iterable.args) and self.counts_to_a_constant(iterable.args[0])
        return name == "range" and all(self._is_constant(argument) for argument in iterable.args)

    def _is_constant(self, value: ast.expr, hops: int = _MOST_HOPS) -> bool:
        if isinstance(value, ast.Constant):
            return True
        if isinstance(value, ast.BinOp):
            return self._is_constant(value.left, hops) and self._is_constant(value.right, hops)
        if isinstance(value, ast.Attribute) and _dotted_tail(value.value) in _OPTIONS:
            return True
        name = _dotted_tail(value)
        if not name or not hops:
            return False
        values = self.made_from.get(name, ())
        return name.isupper() or (bool(values) and all(self._is_constant(one, hops - 1) for one in values))

    def by_rank(self, expression: ast.AST, hops: int = _MOST_HOPS, seen: frozenset[str] = frozenset()) -> bool:
        """True when the expression's value is made from a rank, as far as names can be followed."""
        for node in ast.walk(expression):
            name = _dotted_tail(node)
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


def _is_plain(value: ast.expr) -> bool:
    """A comparison, a flag or a number, not an object that was merely made with the rank."""
    return all(
        _dotted_tail(node.func) in _PLAIN_CALLS or _RANK_NAME.search(_dotted_tail(node.func))
        for node in ast.walk(value)
        if isinstance(node, ast.Call)
    )


def of_foreign_class(value: ast.expr, own: Set[str]) -> bool:
    """True for `SGD(…)` where no class of that name is the user's, nor any class of theirs is among its arguments."""
    if not isinstance(value, ast.Call) or not _dotted_tail(value.func)[:1].isupper():
        return False
    return not any(_dotted_tail(node) in own for node in ast.walk(value))


def _dotted_tail(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError, AttributeError):
        return ""


def spot(file: SourceFile, line: int) -> Spot:
    if file.tree is None:
        return NOWHERE
    function = ""
    loops: list[Loop] = []
    guards: list[Guard] = []
    handlers: list[int] = []
    first = last = 0
    body: list[ast.stmt] = file.tree.body
    while True:
        node = next((stmt for stmt in body if stmt.lineno <= line <= (stmt.end_lineno or stmt.lineno)), None)
        if node is None:
            node = _decorated(body, line)
        if node is None:
            break
        if isinstance(node, (*_Function, ast.ClassDef)):
            if isinstance(node, _Function):
                function, loops, guards, handlers = node.name, [], [], []
                first, last = node.lineno, node.end_lineno or node.lineno
            body = node.body
            continue
        if isinstance(node, _Loops):
            loops.append(_loop(file, node))
        entered = _enter(file, node, line)
        if entered is None:
            break
        guard, body = entered
        if guard is not None:
            guards.append(guard)
        if isinstance(node, (ast.With, ast.AsyncWith)) and any(_suppresses(item) for item in node.items):
            handlers.append(node.lineno)
        if body is getattr(node, "body", None):
            handlers += [handler.lineno for handler in getattr(node, "handlers", ()) if _swallows(handler)]
    return Spot(function, tuple(reversed(loops)), tuple(reversed(guards)), first, last, tuple(reversed(handlers)))


def _suppresses(item: ast.withitem) -> bool:
    """`with contextlib.suppress(…)`."""
    return isinstance(item.context_expr, ast.Call) and _dotted_tail(item.context_expr.func) == "suppress"


def _swallows(handler: ast.ExceptHandler) -> bool:
    """False for handlers that raise or leave the program, and for the ordinary end of an iterator."""
    if handler.type is not None and _dotted_tail(handler.type) in ("StopIteration", "KeyboardInterrupt", "ImportError"):
        return False
    last = handler.body[-1] if handler.body else None
    if isinstance(last, ast.Raise):
        return False
    return not (isinstance(last, ast.Expr) and _jump_kind(last.value) == "exit")


def _decorated(body: list[ast.stmt], line: int) -> ast.stmt | None:
    for node in body:
        if isinstance(node, (*_Function, ast.ClassDef)) and node.decorator_list:
            first = min(decorator.lineno for decorator in node.decorator_list)
            if first <= line <= (node.end_lineno or node.lineno):
                return node
    return None


def _loop(file: SourceFile, node: ast.For | ast.AsyncFor | ast.While) -> Loop:
    over = node.test if isinstance(node, ast.While) else node.iter
    by_rank = file.by_rank(over)
    fixed = not isinstance(node, ast.While) and not by_rank and file.counts_to_a_constant(over)
    return Loop(file.name, node.lineno, node.end_lineno or node.lineno, _text(over), by_rank, fixed)


def _within(body: list[ast.stmt], line: int) -> bool:
    return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _enter(file: SourceFile, node: ast.stmt, line: int) -> tuple[Guard | None, list[ast.stmt]] | None:
    """The block of a compound statement that holds the line, and the condition that leads into it."""
    if isinstance(node, ast.If):
        if _within(node.body, line):
            return Guard(file.name, node.lineno, _text(node.test), file.asks_rank(node.test), "if"), node.body
        if _within(node.orelse, line):
            return Guard(file.name, node.lineno, _text(node.test), file.asks_rank(node.test), "else"), node.orelse
        return None
    if isinstance(node, _Loops):
        block = node.body if _within(node.body, line) else node.orelse
        return (None, block) if _within(block, line) else None
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return (None, node.body) if _within(node.body, line) else None
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
        return _enter_try(file, node, line)
    return None


def _enter_try(file: SourceFile, node: ast.stmt, line: int) -> tuple[Guard | None, list[ast.stmt]] | None:
    for handler in getattr(node, "handlers", ()):
        if handler.lineno <= line <= (handler.end_lineno or handler.lineno):
            text = _text(handler.type) if handler.type is not None else ""
            guard = Guard(file.name, handler.lineno, text, False, "except")
            return (guard, handler.body) if _within(handler.body, line) else (guard, [])
    for name in ("body", "orelse", "finalbody"):
        block: list[ast.stmt] = getattr(node, name, [])
        if _within(block, line):
            return (Guard(file.name, block[0].lineno, "", False, "finally") if name == "finalbody" else None), block
    return None


def jumps(file: SourceFile, tree: ast.Module) -> Iterator[tuple[JumpKind, int, Guard | None]]:
    """Every jump of a file with the innermost condition around it. A stack of our own: sources may nest deeply."""
    waiting: list[tuple[ast.AST, Guard | None]] = [(tree, None)]
    while waiting:
        node, guard = waiting.pop()
        kind = _jump_kind(node)
        if kind is not None:
            yield kind, getattr(node, "lineno", 0), guard
        if isinstance(node, ast.If):
            condition = (file.name, node.lineno, _text(node.test), file.asks_rank(node.test))
            waiting += [(child, Guard(*condition, "if")) for child in node.body]
            waiting += [(child, Guard(*condition, "else")) for child in node.orelse]
        elif isinstance(node, ast.ExceptHandler):
            text = _text(node.type) if node.type is not None else ""
            handler = Guard(file.name, node.lineno, text, False, "except")
            yield "except", node.lineno, handler
            waiting += [(child, handler) for child in node.body]
        elif isinstance(node, _Function):
            waiting += [(child, None) for child in node.body]
        else:
            waiting += [(child, guard) for child in ast.iter_child_nodes(node)]


def _jump_kind(node: ast.AST) -> JumpKind | None:
    if isinstance(node, ast.Break):
        return "break"
    if isinstance(node, ast.Continue):
        return "continue"
    if isinstance(node, ast.Return):
        return "return"
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return "exit" if raised is not None and _dotted_tail(raised) == "SystemExit" else "raise"
    if isinstance(node, ast.Call) and _dotted_tail(node.func) in ("exit", "_exit", "quit"):
        return "exit"
    return None
