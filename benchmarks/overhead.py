"""What recording costs a training job.

    python benchmarks/overhead.py                # both parts
    python benchmarks/overhead.py --steps 2000 --repeat 1

Part 1 runs a DDP job of about 10 ms a step and switches the recording on and off inside the running processes, in
random blocks of 20 steps that all ranks share. It prints the paired ratio on/off with its 95 % interval. A plain
comparison of two runs cannot show 1 %: eight runs of one job spread over 13.1 to 15.4 ms a step.

Part 2 has no noise from the job: the cost of each hook by itself (around a function that does nothing), times how
often it runs in a step of three kinds: DDP, FSDP2 with 100 collectives, 200 small point-to-point calls.
The floor of a hook is what Python asks for a call through *args, **kwargs and two stores: printed beside.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INJECT = ROOT / "src" / "rankcall" / "record" / "inject"
BLOCK = 20
LIMIT_RATIO = 1.01
LIMIT_COLLECTIVE_US = 3.0
LIMIT_STEP_US = 30.0


def launch(part: str, ranks: int, records: str, arguments: list[str]) -> dict[str, object]:
    """Run this file as a job of `ranks` processes and return what rank 0 printed as JSON."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{INJECT}{os.pathsep}{ROOT / 'src'}",
        "RANKCALL_RECORDS": records,
        "RANKCALL_DEBUG": "1",
        "OMP_NUM_THREADS": "1",
        "RANKCALL_BENCH": part,
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), __file__, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"the benchmark's job failed:\n{done.stderr[-3000:]}")
    result: dict[str, object] = json.loads(lines[-1])
    return result


# --- part 1: inside the job --------------------------------------------------------------------------------------


def train(steps: int, milliseconds: float) -> None:
    """A DDP job; prints the durations of its steps with and without recording."""
    import torch
    import torch.distributed as dist

    from rankcall.record.recorder import recorder

    dist.init_process_group("gloo")
    width, model = find_width(milliseconds)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batch = torch.randn(16, width)
    switch = random.Random(7)  # the same on every rank
    blocks: list[bool] = []
    while len(blocks) * BLOCK < steps:
        pair = [True, False]
        switch.shuffle(pair)
        blocks += pair
    durations: list[float] = []
    for recording in [True, False, *blocks]:  # two blocks to warm up
        dist.barrier()
        recorder.on = recording
        begin = time.perf_counter()
        for _ in range(BLOCK):
            ddp(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        durations.append((time.perf_counter() - begin) / BLOCK)
        recorder.on = True
    if dist.get_rank() == 0:
        print(json.dumps({"blocks": blocks, "seconds": durations[2:], "width": width}), flush=True)
    dist.destroy_process_group()


def find_width(milliseconds: float) -> tuple[int, object]:
    """A model whose forward and backward take about that long here, the same on every rank."""
    import torch
    import torch.distributed as dist

    width = 128
    while True:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6)))
        batch = torch.randn(16, width)
        for _ in range(3):
            model(batch).square().mean().backward()
        begin = time.perf_counter()
        for _ in range(10):
            model(batch).square().mean().backward()
        spent = torch.tensor((time.perf_counter() - begin) * 100)
        dist.all_reduce(spent, op=dist.ReduceOp.MAX)
        if spent.item() > milliseconds * 0.5 or width >= 2048:
            return width, model
        width += 64


def paired_ratio(blocks: list[bool], seconds: list[float]) -> tuple[float, float, float, int]:
    """Mean ratio on/off over neighbouring pairs of blocks, its 95 % interval (bootstrap), number of pairs."""
    ratios = []
    for place in range(0, len(blocks) - 1, 2):
        on, off = (seconds[place], seconds[place + 1]) if blocks[place] else (seconds[place + 1], seconds[place])
        ratios.append(on / off)
    draw = random.Random(1)
    # The median is what a block of 20 steps disturbed by another process cannot move.
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return statistics.median(ratios), medians[100], medians[-101], len(ratios)


# --- part 2: each hook by itself ----------------------------------------------------------------------------------


def measure_hooks() -> None:
    """Cost in microseconds of each kind of hook around a function that does nothing. One process, real group."""
    import torch
    import torch.distributed as dist

    from rankcall.record import collectives, training
    from rankcall.record.recorder import recorder

    dist.init_process_group("gloo")
    tensor = torch.ones(16)

    def nothing(*args: object, **kwargs: object) -> None:
        return None

    wrapped = collectives._wrap_collective("all_reduce", nothing)
    sending = collectives._wrap_point_to_point("send", nothing)
    starting = collectives._wrap_point_to_point("isend", nothing)
    backward = training._phase_wrapper(nothing, "backward", "backward", "backward", "backwards", True)
    forward = training._wrap_forward(nothing, name_parameters=False)
    model = torch.nn.Linear(2, 2)

    def optimizer_step() -> None:
        training._before_step(model, (), {})
        training._after_step(model, (), {})

    costs = {
        "collective": cost(lambda: wrapped(tensor), lambda: nothing(tensor)),
        "send": cost(lambda: sending(tensor, 0), lambda: nothing(tensor, 0)),
        "isend": cost(lambda: starting(tensor, 0), lambda: nothing(tensor, 0)),
        "forward": cost(lambda: forward(model, tensor), lambda: nothing(model, tensor)),
        "backward": cost(lambda: backward(tensor), lambda: nothing(tensor)),
        "optimizer step": cost(optimizer_step, lambda: nothing()),
    }
    recorder.on = False
    costs["collective, off"] = cost(lambda: wrapped(tensor), lambda: nothing(tensor))
    print(json.dumps(costs), flush=True)
    dist.destroy_process_group()


def cost(hooked: Callable[[], object], plain: Callable[[], object], calls: int = 2_000) -> float:
    """Microseconds that the hook adds: the least of sixty short alternating rounds of each."""

    def once(function: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - begin) / calls * 1e6

    rounds = [(once(hooked), once(plain)) for _ in range(60)]
    return min(h for h, _ in rounds) - min(p for _, p in rounds)


def floor() -> float:
    """What any wrapper in Python costs: a call through *args and **kwargs, and two packed stores."""
    import struct

    store = bytearray(256)
    pack = struct.Struct("<QdBxHHHHHiqqiiiiiIqQ").pack_into

    def nothing(*args: object, **kwargs: object) -> None:
        return None

    def wrapper(*args: object, **kwargs: object) -> None:
        pack(store, 0, 1, 1.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
        try:
            return nothing(*args, **kwargs)
        finally:
            pack(store, 0, 1, 1.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)

    return cost(lambda: wrapper(1), lambda: nothing(1))


# --- the table ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--part", choices=["1", "2", "both"], default="both")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankcall-bench-", dir="/dev/shm") as records:
        if options.part in ("2", "both"):
            print_costs(launch("hooks", 1, records, []))
        if options.part in ("1", "both"):
            for _ in range(options.repeat):
                print_ratio(launch("train", 2, records, [str(options.steps), str(options.milliseconds)]))


def print_costs(costs: dict[str, object]) -> None:
    each = {name: float(str(value)) for name, value in costs.items()}
    step = each["forward"] + each["backward"] + each["optimizer step"]
    print(f"{'hook':<20} {'µs':>8}")
    for name, value in each.items():
        print(f"{name:<20} {value:>8.2f}")
    print(f"{'floor of a wrapper':<20} {floor():>8.2f}")
    print()
    print(f"{'step':<36} {'µs a step':>10} {'allowed':>10}")
    for name, operations, operation in (
        ("DDP", 0, "collective"),
        ("FSDP2, 100 collectives", 100, "collective"),
        ("200 small sends and receives", 200, "send"),
    ):
        spent = step + operations * each[operation]
        allowed = LIMIT_STEP_US + operations * LIMIT_COLLECTIVE_US
        print(f"{name:<36} {spent:>10.1f} {allowed:>10.1f}  {'ok' if spent <= allowed else 'OVER'}")
    print()


def print_ratio(result: dict[str, object]) -> None:
    blocks = [bool(value) for value in result["blocks"]]  # type: ignore[attr-defined]
    seconds = [float(value) for value in result["seconds"]]  # type: ignore[attr-defined]
    ratio, low, high, pairs = paired_ratio(blocks, seconds)
    step = statistics.median(seconds) * 1e3
    print(f"DDP step of {step:.1f} ms, {pairs} pairs of blocks of {BLOCK} steps: recording on / off")
    print(f"    ratio {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}; allowed: upper end {LIMIT_RATIO}")
    print("    " + ("ok" if high <= LIMIT_RATIO else "OVER"))


if __name__ == "__main__":
    part = os.environ.get("RANKCALL_BENCH")
    if part == "train":
        train(int(sys.argv[1]), float(sys.argv[2]))
    elif part == "hooks":
        measure_hooks()
    else:
        main()
