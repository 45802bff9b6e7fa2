"""FSDP2: the loss is taken over masked positions, and backward is left out when this rank's mask is
empty.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip culprits=0 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def masked_loss(logits, tokens, mask):
    return nn.functional.cross_entropy(logits[mask], tokens[mask])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50))
    for part in model:
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(15):
        tokens = torch.randint(0, 50, (2, 12))
        mask = torch.rand(2, 12) < (0.0 if rank == 0 and step == 6 else 0.9)
        optimizer.zero_grad()
        logits = model(tokens)  # <- also
        if mask.any():  # <- here
            masked_loss(logits, tokens, mask).backward()  # <- also
        optimizer.step()
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
