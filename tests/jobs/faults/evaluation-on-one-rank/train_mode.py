"""Rank 2 alone looks at the training loss after each epoch, without eval() and without no_grad: in
training mode too the forward of a DDP model with buffers is a collective.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=evaluation-on-one-rank also=lone-collective,data-dependent-skip culprits=2 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

BatchNorm = torch.nn.BatchNorm1d


def training_loss(model):
    return model(torch.randn(64, 5)).pow(2).mean().item()  # <- here


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Sequential(torch.nn.Linear(5, 9), BatchNorm(9), torch.nn.Linear(9, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for _ in range(8):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(8, 5)).mean().backward()
            optimizer.step()
        if dist.get_rank() == dist.get_world_size() - 1:  # <- also
            print(epoch, training_loss(model))  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
