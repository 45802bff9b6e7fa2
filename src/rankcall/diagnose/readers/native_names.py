"""Names of native functions as debuggers print them, made short enough to compare and to show."""

from __future__ import annotations

import re

_LONGEST_READ = 8_000  # C++ templates reach a few thousand characters; what is longer was made to be long
_LONGEST_NAME = 160
_ANONYMOUS = "(anonymous namespace)"
_OPERATOR_SIGNS = frozenset("<>=!+-*/%&|^~,[]")
# What compilers and the linker append: `wait@@GLIBC_2.3.2`, `ring [clone .isra.0]`, `ring.constprop.0`.
_APPENDED = re.compile(r"(?:@@?[\w.]+|\s?\[clone [\w.]+\]|\.(?:constprop|isra|part|cold|lto_priv)(?:\.\d+)?)+$")
_INTERPRETER_FILE = re.compile(
    r"(?:^|/)(?:libpython\d[\w.]*|python\d[\d.]*|(?:ceval|call|methodobject|typeobject|classobject|descrobject|genobject"
    r"|funcobject|abstract|pythonrun|thread_pthread)\.[ch])$"
)
_INTERPRETER = re.compile(
    r"_?Py[A-Z_]|_PyEval|pymain_|run_mod$|run_eval_code_obj$|cfunction_|method_vectorcall|vectorcall|function_code_"
    r"|slot_tp_|call_function$|do_call_core$|partial_call|object_vacall|type_call$|pyrun_|pythread_|t_bootstrap$"
    r"|pybind11::|_start$|__libc_start|main$|clone3?$|start_thread$|__clone|ffi_call"
)
# A thread that waits for Python's own locks.
_WAITS_OF_PYTHON = ("take_gil", "PyThread_acquire_lock")


def native_name(text: str) -> str:
    """`c10d::Work::wait(std::chrono::duration<long>)` as `c10d::Work::wait`: no template arguments, no parameters, no
    return type, nothing that a linker appended."""
    text = text.strip()[:_LONGEST_READ]
    if text.startswith(("<", "??", "0x")):
        return text[:_LONGEST_NAME]
    kept: list[str] = []
    at = depth = 0
    while at < len(text):
        sign = text[at]
        if depth == 0 and text.startswith(_ANONYMOUS, at):
            kept.append(_ANONYMOUS)
            at += len(_ANONYMOUS)
            continue
        if depth == 0 and text.startswith("operator", at) and at + 8 < len(text):
            end = _end_of_operator(text, at + 8)
            kept.append(text[at:end])
            at = max(end, at + 1)
            continue
        if sign in "<{":
            depth += 1
        elif sign in ">}":
            if depth and text[at - 1] != "-":  # not the arrow of `a->b`
                depth -= 1
        elif sign == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(sign)
        at += 1
    name = _APPENDED.sub("", "".join(kept).rstrip())
    return _without_return_type(name)[:_LONGEST_NAME]


def _end_of_operator(text: str, at: int) -> int:
    """The end of an operator's name, which may be made of the very signs that enclose arguments."""
    if text.startswith("()", at):
        return at + 2
    end = at
    while end < len(text) and end < at + 3 and text[end] in _OPERATOR_SIGNS:
        end += 1
    return end


def _without_return_type(name: str) -> str:
    """`void at::native::copy` as `at::native::copy`."""
    start = name.replace(_ANONYMOUS, "~" * len(_ANONYMOUS)).rfind(" ")
    if start < 0 or "operator" in name:
        return name
    return name[start + 1 :]


def is_interpreter(name: str, place: str = "") -> bool:
    """True for the frames of Python itself, of its bindings and of a thread's start: they stand on every stack and say
    nothing. `place` is the library or source file, where it is known."""
    if name.startswith(_WAITS_OF_PYTHON):
        return False
    return _INTERPRETER.match(name) is not None or _INTERPRETER_FILE.search(place) is not None


def is_unnamed(name: str) -> bool:
    """True for a frame that the debugger had no name for: `??`, a bare address."""
    return not name or name.startswith(("??", "0x"))
