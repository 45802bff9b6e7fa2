"""FSDP2 with numpy-style split shards: 3 ranks get 34, 33, 33 samples in batches of 1, and rank 0 goes
on alone.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps culprits=1,2 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def build():
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    everything = torch.randn(100, 12)
    mine = everything.tensor_split(dist.get_world_size())[dist.get_rank()]
    for sample in mine:  # <- here
        loss = model(sample.unsqueeze(0)).square().sum()  # <- also
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
