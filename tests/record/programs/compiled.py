"""Compiles a DDP model, an optimizer step and a collective; prints what dynamo counted."""

import time

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel


@torch.compile(backend="aot_eager")
def reduced(tensor: torch.Tensor) -> torch.Tensor:
    doubled = tensor * 2
    dist.all_reduce(doubled)
    return doubled + 1


def main() -> None:
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    model = DistributedDataParallel(layers)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(4):
        compiled(torch.randn(4, 8)).sum().backward()
        step()
        optimizer.zero_grad()
    reduced(torch.ones(3))
    if dist.get_rank() == 0:
        for kind in ("graph_break", "stats", "frames", "unimplemented", "recompiles", "recompile_limit"):
            print(kind, sorted((str(reason), count) for reason, count in counters[kind].items()))
    time.sleep(0.2)  # torch 2.13 alone ends one in four such jobs with SIGABRT if gloo's thread has no time to end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
