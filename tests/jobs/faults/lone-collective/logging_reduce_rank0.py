"""Every 10 steps rank 0 reduces the loss for its log, inside `if rank == 0`. The others take part in
nothing.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=lone-collective also=collective-mismatch,shape-mismatch culprits=0|all outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def log(step, loss):
    loss = loss.detach().clone()
    dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)  # <- here
    print(f"step {step:4d}  loss {loss.item() / dist.get_world_size():.4f}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 31):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:  # <- also
            log(step, loss)  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
