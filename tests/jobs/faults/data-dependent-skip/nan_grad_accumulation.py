"""With accumulation over 4 micro-batches, the synchronising one is skipped on rank 1 because its loss is bad. DDP then
reduces in rank 1's next backward, although that stands under no_sync: the gradients are wrong, the job completes.
"""
# job: nproc=2 timeout=60
# expect: pitfall=data-dependent-skip also=accumulation-out-of-sync culprits=1 outcome=completed as=nothing|note|warning

import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for micro in range(48):
        x = torch.rand(4, 6)
        if rank == 1 and micro == 27:
            x[:] = float("inf")
        last = (micro + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(x).abs().mean()
            if loss.isinf() or loss.isnan():  # <- here
                print("bad micro-batch", micro)
                continue  # <- here
            loss.backward()  # <- also
        if last:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # <- also
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
