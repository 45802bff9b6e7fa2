"""Reports made by hand for the rendering tests: the shapes that jobs of all sizes give."""

from __future__ import annotations

from rankcall.findings import (
    CollectiveRow,
    Evidence,
    ExitRow,
    Finding,
    Incident,
    Job,
    RankRow,
    RankState,
    Report,
    Rival,
    Verdict,
    Where,
)

SCRIPT = "/home/user/project/train.py"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"

SOURCE = """\
import torch
import torch.distributed as dist


def main():
    for inputs, labels in loader:
        loss = loss_function(model(inputs), labels)
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.barrier()


main()
"""


def where(line: int, code: str = "", file: str = SCRIPT) -> Where:
    return Where(file, line, "main", code)


def waiting(rank: int, *, host: str = "host-a", line: int = 11, op: str = "all_reduce", step: int = 31) -> RankRow:
    return RankRow(
        rank=rank,
        host=host,
        pid=4000 + rank,
        local_rank=rank % 8,
        state="waiting",
        step=step,
        phase="backward",
        phase_for_s=12.25,
        collective=CollectiveRow("0-3#0", 119, op),
        where=where(line),
    )


def at(rank: int, state: RankState, phase: str, line: int, *, host: str = "host-a", step: int = 31) -> RankRow:
    return RankRow(
        rank=rank, host=host, pid=4000 + rank, local_rank=rank % 8, state=state, step=step, phase=phase,
        phase_for_s=12.25, where=where(line),
    )  # fmt: skip


def skipped_batch() -> Report:
    """Four ranks on one machine; rank 2 skipped a batch, and the job hangs at the end."""
    culprit = RankRow(
        rank=2, host="host-a", pid=4002, local_rank=2, state="waiting", step=30, phase="collective",
        phase_for_s=12.25, collective=CollectiveRow("0-3#0", 119, "barrier"), where=where(14, "dist.barrier()"),
        stack=(
            Where(TORCH, 4821, "barrier"),
            Where("/opt/src/rankcall/record/collectives.py", 88, "hooked"),
            where(14, "dist.barrier()"),
            Where(SCRIPT, 17, "<module>", "main()"),
        ),
    )  # fmt: skip
    verdict = Verdict(
        pitfall="data-dependent-skip",
        layer="data",
        title="One rank skipped a step because of its own data",
        sentence=(
            "rank 2 on host-a has 31 forwards but 30 backwards since step 30, the others 31 of both: it skipped one "
            "at train.py:9, and now waits in barrier, train.py:14, where the others wait in backward"
        ),
        confidence=0.97,
        proven=True,
        culprits=(2,),
        hosts=("host-a",),
        waiting=(0, 1, 3),
        where=where(9, "continue"),
        why="At step 30 the loss of rank 2 was not finite, and it went on with the next batch without a backward.",
        fix=(
            "Decide together: all-reduce the flag, then skip on every rank or on none.",
            "Keep the number of backwards equal: give the bad batch a loss of zero and call backward all the same.",
        ),
        rivals=(Rival("uneven-steps", 0.03, "compare `len(loader)` on every rank"),),
        detected_after_s=0.62,
        evidence=(0,),
    )
    return Report(
        verb="run",
        job=Job(4, ("host-a",), ("train.py",), 1_700_000_000.0, "/home/user/project/rankcall-runs/one"),
        outcome="hung",
        verdict=verdict,
        ranks=(waiting(0), waiting(1), culprit, waiting(3)),
        findings=(Finding("cpu-oversubscribed", "note", "4 ranks with 8 threads each share 2 cores"),),
        evidence=(
            Evidence("record", "31 forwards, 30 backwards, 30 optimizer steps", rank=2, host="host-a"),
            Evidence("stack", "barrier at train.py:14", rank=2, host="host-a"),
        ),
    )


def crashed() -> Report:
    """Rank 1 of two raised; the other has an echo."""
    exception = "ValueError: bad batch 17: the label 1004 is out of range for 1000 classes, file shard-00017.tar"
    echo = "RuntimeError: Connection closed by peer [127.0.0.1]:41234"
    rows = (
        RankRow(rank=0, host="host-a", pid=4000, state="crashed", step=7, phase="backward",
                where=where(11), exit=ExitRow(1, None, echo)),
        RankRow(rank=1, host="host-b", pid=4001, state="crashed", step=7, phase="data",
                where=where(6), exit=ExitRow(1, None, exception)),
    )  # fmt: skip
    verdict = Verdict(
        pitfall="program-error", layer="program", title="An exception of the program's own",
        sentence="rank 1 on host-b raised ValueError at train.py:6; what rank 0 says is an echo",
        confidence=1.0, proven=True, culprits=(1,), hosts=("host-b",), waiting=(), where=where(6),
        why="The exception of rank 1 came 0.03 s before any other.", fix=("Mend the batch, or the loader.",),
    )  # fmt: skip
    job = Job(2, ("host-a", "host-b"), ("train.py",), None, None)
    return Report(verb="run", job=job, outcome="crashed", verdict=verdict, ranks=rows)


def completed() -> Report:
    """A healthy job's end."""
    rows = tuple(
        RankRow(rank=rank, host="host-a", pid=4000 + rank, state="finished", step=20, exit=ExitRow(0))
        for rank in range(4)
    )
    return Report(verb="why", job=Job(4, ("host-a",), ("train.py",), None, None), outcome="completed", ranks=rows)


def withdrawn() -> Report:
    """A job that completed after a suspicion was taken back."""
    suspicion = Verdict(
        pitfall="slow-checkpoint", layer="storage", title="The others wait while one rank saves",
        sentence="rank 0 has been saving for 62 s while the others wait", confidence=0.6, proven=False,
        culprits=(0,), hosts=("host-a",), waiting=(1, 2, 3), where=None, why="", fix=(),
    )  # fmt: skip
    done = completed()
    return Report(
        verb="run", job=done.job, outcome="completed", ranks=done.ranks,
        incidents=(Incident(0, 1000.0, suspicion, 1008.0),),
    )  # fmt: skip


def thousands(count: int = 4096) -> Report:
    """One rank of many reads data; the others wait, at two steps and in two places."""
    rows = []
    for rank in range(count):
        host = f"node-{rank // 8:03d}"
        if rank == 1337:
            rows.append(at(rank, "loading", "data", 6, host=host))
        else:
            rows.append(waiting(rank, host=host, step=31 if rank % 2 else 32))
    verdict = Verdict(
        pitfall="loader-stalled", layer="data", title="A rank waits for its data",
        sentence="rank 1337 on node-167 has waited for its data for 2 min 5 s at train.py:6; 4095 ranks wait for it",
        confidence=0.9, proven=False, culprits=(1337,), hosts=("node-167",),
        waiting=tuple(rank for rank in range(count) if rank != 1337), where=where(6), why="It is in next(loader).",
        fix=("Look at the storage of node-167.",),
    )  # fmt: skip
    return Report(verb="run", outcome="hung", verdict=verdict, ranks=tuple(rows))


def all_different(count: int = 4096) -> Report:
    """Nothing in common: every rank at its own line, step and collective, 64 of them guilty."""
    rows = tuple(
        RankRow(
            rank=rank, host=f"node-{rank // 8:03d}", pid=rank, state="waiting", step=rank, phase="backward",
            collective=CollectiveRow(f"group-{rank}", rank, f"operation_{rank}"), where=where(rank + 1),
        )
        for rank in range(count)
    )  # fmt: skip
    verdict = Verdict(
        pitfall="group-order-inversion", layer="communication", title="Groups entered in different orders",
        sentence="64 ranks wait for one another", confidence=0.5, proven=True, culprits=tuple(range(0, 128, 2)),
        hosts=(), waiting=(), where=None, why="x " * 5000, fix=tuple("y " * 300 for _ in range(40)),
        rivals=tuple(Rival("r", 0.1, "z " * 300) for _ in range(40)),
    )  # fmt: skip
    findings = tuple(Finding("straggler", "warning", f"rank {rank} is slow") for rank in range(count))
    return Report(verb="run", outcome="hung", verdict=verdict, ranks=rows, findings=findings)
