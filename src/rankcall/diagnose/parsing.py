"""One parsed source file: a line's loops and conditions, the jumps of a file, what a name was made from.

Any text is survived: a file that does not parse simply has nothing to say.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rankcall.diagnose.names import FUNCTIONS, Names, dotted_tail, names_a_rank
from rankcall.snapshot import Frame

MOST_TEXT = 2_000_000  # characters of one file; more is no training script
JumpKind = Literal["break", "continue", "return", "raise", "exit", "except"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition around a line. `branch` says which side of it the line is on; `line` is the condition's own."""

    file: str
    line: int
    text: str
    by_rank: bool
    branch: Literal["if", "else", "except", "finally"]

    @property
    def said(self) -> str:
        """The condition as it stands in the source."""
        if self.text.startswith("@"):
            return self.text
        return {"if": f"if {self.text}", "else": f"else of if {self.text}"}.get(
            self.branch, f"{self.branch} {self.text}".strip()
        )


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
_Loops = (ast.For, ast.AsyncFor, ast.While)


class SourceFile(Names):
    """One parsed file: its tree, its names, and the conditions in it."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.name = name
        self.tree: ast.Module | None = None
        self.inline: dict[tuple[int, str], list[Guard]] = {}  # conditions within a line, by line and called name
        self.tests: dict[int, ast.expr] = {}  # the conditions of `if`, by line
        if len(text) > MOST_TEXT:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a user's invalid escape is not our message
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for node in ast.walk(self.tree):
            self.learn(node)
            if isinstance(node, ast.If):
                self.tests[node.lineno] = node.test
        for node in ast.walk(self.tree):
            self._note_inline(node)

    def _note_inline(self, node: ast.AST) -> None:
        """`a() if …  else b()` and `… and a()`: which calls of the line stand under the condition."""
        parts: list[tuple[ast.expr, ast.expr, Literal["if", "else"]]] = []
        if isinstance(node, ast.IfExp):
            parts = [(node.test, node.body, "if"), (node.test, node.orelse, "else")]
        elif isinstance(node, ast.BoolOp):
            side: Literal["if", "else"] = "if" if isinstance(node.op, ast.And) else "else"
            parts = [
                (ast.BoolOp(node.op, node.values[:number]) if number > 1 else node.values[0], value, side)
                for number, value in enumerate(node.values)
                if number
            ]
        for test, part, branch in parts:
            for call in ast.walk(part):
                # The function of a call, or one that is chosen here and called later.
                name = dotted_tail(call)
                if name:
                    line = getattr(node, "lineno", 0)
                    guard = Guard(self.name, line, _text(test), self.asks_rank(test), branch)
                    self.inline.setdefault((getattr(call, "lineno", 0), name), []).insert(0, guard)


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
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if isinstance(node, FUNCTIONS):
                function, loops, guards, handlers = node.name, [], _decorators(file, node), []
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


def _decorators(file: SourceFile, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Guard]:
    """`@rank_zero_only`: a condition on the rank around the whole function."""
    names = [(one.lineno, dotted_tail(one.func if isinstance(one, ast.Call) else one)) for one in node.decorator_list]
    return [Guard(file.name, line, f"@{name}", True, "if") for line, name in names if names_a_rank(name)]


def _suppresses(item: ast.withitem) -> bool:
    """`with contextlib.suppress(…)`."""
    return isinstance(item.context_expr, ast.Call) and dotted_tail(item.context_expr.func) == "suppress"


def _swallows(handler: ast.ExceptHandler) -> bool:
    """False for handlers that raise or leave the program, and for the ordinary end of an iterator."""
    if handler.type is not None and dotted_tail(handler.type) in ("StopIteration", "KeyboardInterrupt", "ImportError"):
        return False
    last = handler.body[-1] if handler.body else None
    if isinstance(last, ast.Raise):
        return False
    return not (isinstance(last, ast.Expr) and _jump_kind(last.value) == "exit")


def _decorated(body: list[ast.stmt], line: int) -> ast.stmt | None:
    for node in body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.decorator_list:
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


def _guard(file: SourceFile, node: ast.If, branch: Literal["if", "else"]) -> Guard:
    test = node.test
    return Guard(file.name, node.lineno, _text(test), file.asks_rank(test), branch)


def _enter(file: SourceFile, node: ast.stmt, line: int) -> tuple[Guard | None, list[ast.stmt]] | None:
    """The block of a compound statement that holds the line, and the condition that leads into it."""
    if isinstance(node, ast.If):
        if _within(node.body, line):
            return _guard(file, node, "if"), node.body
        if _within(node.orelse, line):
            return _guard(file, node, "else"), node.orelse
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
            inside, otherwise = _guard(file, node, "if"), _guard(file, node, "else")
            waiting += [(child, inside) for child in node.body]
            waiting += [(child, otherwise) for child in node.orelse]
        elif isinstance(node, ast.ExceptHandler):
            text = _text(node.type) if node.type is not None else ""
            handler = Guard(file.name, node.lineno, text, False, "except")
            yield "except", node.lineno, handler
            waiting += [(child, handler) for child in node.body]
        elif isinstance(node, FUNCTIONS):
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
        return "exit" if raised is not None and dotted_tail(raised) == "SystemExit" else "raise"
    if isinstance(node, ast.Call) and dotted_tail(node.func) in ("exit", "_exit", "quit"):
        return "exit"
    return None
