"""Rank 0 logs, keeps a progress line and writes a summary; the others only train. Collectives are the
same.
"""
# job: nproc=3 timeout=60
# expect: healthy

import json
import logging
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    main_rank = dist.get_rank() == 0
    logging.basicConfig(level=logging.INFO if main_rank else logging.ERROR, format="%(asctime)s %(message)s")
    log = logging.getLogger("train")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for step in range(50):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if main_rank:
            history.append(mean.item() / 3)
            sys.stdout.write(f"\r{step + 1}/50")
            sys.stdout.flush()
            if step % 10 == 9:
                log.info("step %d loss %.4f", step, history[-1])
    if main_rank:
        print()
        with tempfile.TemporaryFile("w") as file:
            json.dump(history, file)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
