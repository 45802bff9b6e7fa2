"""Rank 1 sees a new sequence length and re-compiles; its compiler takes minutes while rank 0 waits in
backward.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=90
# expect: pitfall=compile-skew culprits=1 outcome=hung

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

compilations = 0


def autotuning_backend(graph, example_inputs):
    global compilations
    compilations += 1
    if compilations > 1:
        time.sleep(600)  # <- also
    return graph.forward


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    model = DDP(torch.compile(net, backend=autotuning_backend, dynamic=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        length = 24 if rank == 1 and step == 6 else 16
        optimizer.zero_grad()
        loss = model(torch.randn(2, length, 8)).mean()  # <- here
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
