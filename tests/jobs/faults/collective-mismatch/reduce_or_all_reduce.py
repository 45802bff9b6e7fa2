"""Rank 0 sums the metric with reduce, the others with all_reduce: two algorithms that do not meet."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=collective-mismatch also=lone-collective culprits=0|all outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def mean_over_ranks(value):
    value = torch.tensor([value])
    if dist.get_rank() == 0:
        dist.reduce(value, dst=0)  # <- here
        return value.item() / dist.get_world_size()
    dist.all_reduce(value)  # <- also
    return None


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(6, 2))
    sgd = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(20):
        loss = net(torch.randn(4, 6)).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if step % 5 == 4:
            mean = mean_over_ranks(loss.item())
            if mean is not None:
                print(f"step {step}: {mean:.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
