"""Rank 0 alone calls barrier after it has saved; the others go on to the next epoch's all_reduce."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=lone-collective also=collective-mismatch culprits=0|all outcome=hung|crashed

import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, epoch):
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"epoch": epoch, "model": model.module.state_dict()}, f"{folder}/last.pt")


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

for epoch in range(5):
    for _ in range(6):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0 and epoch % 2 == 1:
        save(model, epoch)
        dist.barrier()  # <- here
dist.barrier()
dist.destroy_process_group()
