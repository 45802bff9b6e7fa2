"""Ports in messages and addresses, and who holds them."""

from __future__ import annotations

import re

from rankcall.diagnose import words
from rankcall.diagnose.roll import Roll
from rankcall.snapshot import PortHolder

_PORT = re.compile(r"port[:= ]+(\d{2,5})\b|\]?:(\d{2,5})(?:\D|$)", re.IGNORECASE)


def port_in(text: str) -> int | None:
    """The port that a message speaks of."""
    match = _PORT.search(text)
    return int(match.group(1) or match.group(2)) if match else None


def port_of(address: str) -> int | None:
    """The port of `host:port` or `tcp://host:port/…`."""
    tail = address.rpartition(":")[2].partition("/")[0].partition("?")[0]
    return int(tail) if tail.isdigit() and len(tail) < 6 else None


def holder_of(roll: Roll, port: int | None) -> PortHolder | None:
    """Who listens on the port, as far as was seen."""
    return next((holder for holder in roll.snapshot.ports if holder.port == port), None)


def holder_text(holder: PortHolder) -> str:
    return f"process {holder.pid} ({words.shorten(holder.command, 120)})" if holder.pid else "another process"


def fixes(holder: PortHolder | None) -> tuple[str, ...]:
    """What to do about a taken port, with the holder's number where it is known."""
    found = ["Use `--standalone`, or `--rdzv-endpoint localhost:0`, and let the launcher pick a free port."]
    if holder is not None and holder.pid:
        found.append(f"If process {holder.pid} is a left-over of an earlier run, end it: `kill {holder.pid}`.")
    return tuple(found)
