"""Numbers of detected boxes differ from image to image, and so do the tensors that are gathered on every
rank; large ones, in the middle of a training job.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-gather also=shape-mismatch culprits=0|1|all outcome=crashed|hung|completed

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(6, 4)

    def forward(self, x):
        return self.features(x)


def all_boxes(boxes):
    slots = [torch.zeros_like(boxes) for _ in range(dist.get_world_size())]
    dist.all_gather(slots, boxes)  # <- here
    return torch.vstack(slots)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Detector())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        boxes = model(torch.randn(3000 if rank == 0 and step == 4 else 2000, 6))
        boxes.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            print(rank, len(all_boxes(boxes.detach())))  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
