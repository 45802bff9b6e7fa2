"""A pipeline of 4 stages, forward and backward, with isend and irecv; ranks do different things all the
time.
"""
# job: nproc=4 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist


class Stage:
    def __init__(self, rank, world):
        self.previous, self.following = rank - 1, rank + 1
        self.first, self.last = rank == 0, rank == world - 1
        self.layer = torch.nn.Linear(6, 6)

    def forward(self):
        if self.first:
            x = torch.randn(2, 6)
        else:
            x = torch.empty(2, 6)
            dist.irecv(x, src=self.previous).wait()
        x.requires_grad_(True)
        y = self.layer(x)
        work = None if self.last else dist.isend(y.detach(), dst=self.following)
        return x, y, work

    def backward(self, x, y, work):
        if self.last:
            y.square().mean().backward()
        else:
            work.wait()
            gradient = torch.empty_like(y)
            dist.irecv(gradient, src=self.following).wait()
            y.backward(gradient)
        if not self.first:
            dist.send(x.grad, dst=self.previous)


def main():
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    optimizer = torch.optim.SGD(stage.layer.parameters(), lr=0.1)
    for _ in range(12):
        in_flight = [stage.forward() for _ in range(3)]
        for x, y, work in in_flight:
            stage.backward(x, y, work)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
