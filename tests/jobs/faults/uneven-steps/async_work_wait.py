"""Gradients go out asynchronously and are waited for before the step; rank 2's generator ends one batch
earlier.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps culprits=2 outcome=hung|crashed

import torch
import torch.distributed as dist


def batches(rank, world, total=63):
    first = rank * total // world
    last = (rank + 1) * total // world if rank < world - 1 else total - 1
    for index in range(first, last):
        yield torch.full((4,), index / total)


class Overlapped:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.works = []
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.start)

    def start(self, parameter):
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))  # <- also

    def finish(self):
        for work in self.works:
            work.wait()  # <- also
        self.works.clear()


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.Linear(300, 2))
    overlapped = Overlapped(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in batches(dist.get_rank(), dist.get_world_size()):  # <- here
        optimizer.zero_grad()
        model(x).sum().backward()  # <- also
        overlapped.finish()  # <- also
        optimizer.step()
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, f"rank {dist.get_rank()} done")  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
