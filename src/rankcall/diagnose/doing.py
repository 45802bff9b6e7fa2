"""What a process is stuck in, in words: from the system call it sleeps in and the code of its line."""

from __future__ import annotations

import re

# What code at the line says where the kernel only knows of a lock or a poll.
_ACTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bsleep\("), "sleeps"),
    (re.compile(r"\binput\(|breakpoint\(|set_trace\("), "waits for input from the terminal"),
    (re.compile(r"(?i)flock|lockf|filelock|locking\("), "waits for a file lock"),
    (re.compile(r"subprocess|check_output|check_call|\.communicate\(|Popen|os\.system|waitpid"),
     "waits for a child process"),
    (re.compile(r"(?i)urlopen|requests\.|\.recv\w*\(|\.accept\(|\.connect\(|sock\w*\."), "waits for a socket"),
    (re.compile(r"\.join\("), "waits for a thread or process to end"),
    (re.compile(r"\.(get|put)\("), "waits for a queue"),
    (re.compile(r"(?i)acquire\(|\bwith\b.*(lock|mutex|cond|sema)|lock"), "waits for a lock"),
    (re.compile(r"\.(wait|wait_for|result)\("), "waits for an event or a result"),
    (re.compile(r"\bopen\(|\.read\w*\("), "waits for a file or pipe"),
)  # fmt: skip
_VAGUE = frozenset({"waiting for a lock", "polling", "selecting", "pausing", "waiting for a signal"})

_LINKS = (
    ("receiving", "from"), ("reading", "from"), ("sending", "to"), ("writing", "to"),
    ("accepting a connection", "on"), ("waiting for a file lock", "on"),
)  # fmt: skip


def action(code: str, blocked_in: str | None) -> str:
    """What it is stuck in, in words: the system call it sleeps in where that says enough, else its line."""
    if blocked_in == "sleeping":
        return "sleeps"
    if blocked_in and blocked_in not in _VAGUE:
        return f"is {spoken(blocked_in)}"
    for pattern, text in _ACTIONS:
        if code and pattern.search(code):
            return text
    return f"is {blocked_in}" if blocked_in else "does not move"


def state_words(state: str, blocked_in: str | None) -> str:
    """`asleep, reading a pipe` or `running`."""
    name = "asleep" if state == "sleeping" else state
    return f"{name}, {spoken(blocked_in)}" if blocked_in and blocked_in != "sleeping" else name


def spoken(blocked_in: str) -> str:
    """`receiving a socket to …` as a person would say it."""
    for verb, link in _LINKS:
        if blocked_in.startswith(f"{verb} ") and not blocked_in.startswith(f"{verb} {link} "):
            return f"{verb} {link} {blocked_in[len(verb) + 1 :]}"
    return blocked_in
