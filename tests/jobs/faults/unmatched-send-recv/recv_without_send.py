"""Rank 1 waits for one more micro-batch than rank 0 sends."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=unmatched-send-recv culprits=all|0|1 outcome=hung|crashed

import torch
import torch.distributed as dist

MICRO_BATCHES = 6


def first_stage():
    layer = torch.nn.Linear(8, 8)
    for _ in range(MICRO_BATCHES - 1):
        dist.send(layer(torch.randn(4, 8)).detach(), dst=1)
    dist.barrier()  # <- also


def last_stage():
    layer = torch.nn.Linear(8, 1)
    buffer = torch.empty(4, 8)
    total = 0.0
    for _ in range(MICRO_BATCHES):
        dist.recv(buffer, src=0)  # <- here
        total += layer(buffer).sum().item()
    print("total", total)
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    first_stage() if dist.get_rank() == 0 else last_stage()
    dist.destroy_process_group()
