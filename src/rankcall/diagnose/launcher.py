"""The launcher's own failure: a rendezvous that too few joined, a master that does not answer, a port that is taken.

What the ranks did is judged elsewhere; a rank's own failure comes first.
"""

from __future__ import annotations

import re

from rankcall.diagnose import ports, words
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.echoes import is_echo_text
from rankcall.diagnose.exceptions import pitfall_of, text_of
from rankcall.diagnose.frames import innermost_user
from rankcall.diagnose.roll import Roll
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import ExceptionNote

_ENDPOINT = re.compile(r"\(([\w.\-:]{1,253}), (\d{2,5})\)|\[?([\w.\-]{1,253})\]?:(\d{2,5})\b")


def judge(roll: Roll) -> Draft | None:
    """The verdict on the launcher's own failure, or None: it did not fail."""
    error = roll.snapshot.launcher_error
    if error is None:
        return None
    kind = error.type.rpartition(".")[2]
    pitfall, confidence = pitfall_of(error)
    if kind == "RendezvousTimeoutError":
        return _too_few(roll, error)
    unreachable = kind == "RendezvousConnectionError" or is_echo_text(error.message)
    if pitfall == "master-unreachable" or (pitfall == "program-error" and unreachable):
        return _unreachable(roll, error)
    port = ports.port_in(error.message)
    holder = ports.holder_of(roll, port)
    sentence = f"the launcher failed {_when(roll)}: {words.shorten(text_of(error), 200)}"
    fix: tuple[str, ...] = ()
    if pitfall == "port-in-use":
        by = f" by {ports.holder_text(holder)}" if holder is not None else ""
        named = f"port {port}" if port is not None else "the port"
        sentence = f"{named} is taken{by}, so the launcher cannot serve the ranks' store there"
        fix = ports.fixes(holder)
    return Draft(
        pitfall=pitfall, culprits=(), confidence=confidence, proven=True, sentence=sentence, why=_why(roll),
        where=innermost_user(reversed(error.frames), roll.snapshot.sources), fix=fix, evidence=_evidence(error),
    )  # fmt: skip


def _ran(roll: Roll) -> bool:
    return bool(roll.standings)


def _when(roll: Roll) -> str:
    return "after its ranks had been started" if _ran(roll) else "before any rank ran"


def _why(roll: Roll) -> str:
    return "Ranks had run; none of them is known to have failed first." if _ran(roll) else "No rank was started."


def _evidence(error: ExceptionNote) -> tuple[Evidence, ...]:
    return (Evidence("launcher", words.shorten(text_of(error), 300), time=error.time),)


def _option(roll: Roll, *names: str) -> str:
    """The value of a launcher option in the command, in any of its spellings."""
    command = roll.snapshot.command
    for index, word in enumerate(command):
        name, equals, _ = word.lstrip("-").replace("_", "-").partition("=")
        if word.startswith("--") and name in names:
            return word.partition("=")[2] if equals else command[index + 1] if index + 1 < len(command) else ""
    return ""


def _endpoint(roll: Roll, error: ExceptionNote) -> str:
    """Where the launchers were to meet: from the message, else from the command."""
    found = _ENDPOINT.search(error.message)
    if found is not None:
        return f"{found.group(1) or found.group(3)}:{found.group(2) or found.group(4)}"
    address = _option(roll, "rdzv-endpoint")
    if address:
        return address
    host, port = _option(roll, "master-addr"), _option(roll, "master-port")
    return f"{host}:{port}" if host and port else host


def _too_few(roll: Roll, error: ExceptionNote) -> Draft:
    endpoint, nodes = _endpoint(roll, error), _option(roll, "nnodes")
    at = f" at {endpoint}" if endpoint else ""
    asked = f" than --nnodes {nodes} asks for" if nodes else " than were asked for"
    return Draft(
        pitfall="missing-rank", culprits=(), confidence=0.8, proven=True,
        sentence=f"the launcher's time to meet the other nodes{at} ran out {_when(roll)}: fewer came{asked}",
        why="Each node's launcher waits until as many have come as --nnodes says. A node that was not started, or "
        "that meets under another --rdzv-id or endpoint, is missing.",
        fix=("Start the same command on every node, with the same --rdzv-id, --rdzv-endpoint and --nnodes.",
             *_probe(endpoint)),
        rivals=(Rival("master-unreachable", 0.35, "Does the endpoint answer from every node?"),),
        evidence=_evidence(error),
    )  # fmt: skip


def _unreachable(roll: Roll, error: ExceptionNote) -> Draft:
    endpoint = _endpoint(roll, error)
    meeting = endpoint or "the rendezvous endpoint"
    return Draft(
        pitfall="master-unreachable", culprits=(), confidence=0.85, proven=True,
        sentence=f"the launcher failed {_when(roll)}: {meeting} does not answer "
        f"({words.shorten(text_of(error), 160)})",
        why="Every node's launcher has to reach the rendezvous store; nothing answered there, or the connection was "
        "lost.",
        fix=(*_probe(endpoint), "Start the launcher of the first node: it is the one that serves the endpoint."),
        rivals=(Rival("missing-rank", 0.3, "Was the node that serves the endpoint started, and does it still run?"),),
        evidence=_evidence(error),
    )  # fmt: skip


def _probe(endpoint: str) -> tuple[str, ...]:
    host, _, port = endpoint.rpartition(":")
    return (f"From each node, `nc -vz {host} {port}` tells whether the endpoint answers.",) if host and port else ()
