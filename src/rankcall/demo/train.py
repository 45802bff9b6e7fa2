"""A small classifier trained with DistributedDataParallel, as one finds it everywhere.

It carries one ordinary mistake: a batch whose loss is not finite is skipped, by the rank that drew it alone.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 32, generator=generator)
    labels = (inputs.sum(dim=1) > 0).long()
    # One broken record, as every large data set has somewhere.
    inputs[samples // 2 + 2] = float("inf")
    return TensorDataset(inputs, labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=1280)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    data = make_data(args.samples)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loss_function = nn.CrossEntropyLoss()

    for step, (inputs, labels) in enumerate(loader):
        loss = loss_function(model(inputs), labels)
        if not torch.isfinite(loss):
            continue  # skip the bad batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)

    dist.barrier()
    if rank == 0:
        print("training done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
