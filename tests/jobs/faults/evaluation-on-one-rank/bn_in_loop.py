"""Every second epoch rank 0 evaluates the DDP model with BatchNorm while rank 1 goes on to train: the
buffers that rank 0 sends meet the gradients of rank 1 or its buffers.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=evaluation-on-one-rank also=lone-collective culprits=0 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def evaluate(model, batches=2):
    model.eval()
    losses = []
    with torch.inference_mode():
        for _ in range(batches):
            losses.append(model(torch.randn(4, 1, 8, 8)).square().mean().item())  # <- here
    model.train()
    return sum(losses) / len(losses)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 1, 8, 8)).mean().backward()
            optimizer.step()
        if rank == 0 and epoch % 2 == 1:  # <- also
            print(f"epoch {epoch}: {evaluate(model):.4f}")  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
