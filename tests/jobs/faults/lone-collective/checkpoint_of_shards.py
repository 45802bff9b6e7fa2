"""full_tensor() of an FSDP2 model gathers the shards of all ranks, and is called under `if rank == 0`."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=sharded-save-on-one-rank also=lone-collective culprits=0 outcome=hung|crashed

import io

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def save_weights(model, target):
    weights = {name: tensor.full_tensor().cpu() for name, tensor in model.state_dict().items()}  # <- here
    torch.save(weights, target)


def main():
    dist.init_process_group("gloo")
    model = fully_shard(torch.nn.Linear(6, 6))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        model(torch.randn(2, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:  # <- also
        save_weights(model, io.BytesIO())  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
