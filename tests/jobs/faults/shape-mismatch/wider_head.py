"""Rank 1 builds its model with one class more (it counted the labels in its own shard): the gradients'
sizes differ.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=shape-mismatch also=model-differs culprits=1|all outcome=crashed|hung

import torch
import torch.distributed as dist


def average(parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)  # <- here
        parameter.grad.div_(dist.get_world_size())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    labels = torch.arange(40) % (6 if rank == 1 else 5)
    model = torch.nn.Linear(300, int(labels.max()) + 1)  # <- also
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, 40, 8):
        optimizer.zero_grad()
        logits = model(torch.randn(8, 300))
        torch.nn.functional.cross_entropy(logits, labels[start : start + 8]).backward()
        average(model.parameters())  # <- also
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
