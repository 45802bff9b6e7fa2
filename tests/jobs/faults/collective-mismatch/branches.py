"""The two branches of an if hold different collectives: rank 0 broadcasts its learning rate, the others
all-reduce.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=collective-mismatch also=lone-collective culprits=0|all outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def share_learning_rate(optimizer):
    rate = torch.tensor([optimizer.param_groups[0]["lr"]])
    if dist.get_rank() == 0:  # <- also
        rate *= 0.9
        dist.broadcast(rate, src=0)  # <- here
    else:
        dist.all_reduce(rate, op=dist.ReduceOp.MAX)  # <- here
    optimizer.param_groups[0]["lr"] = rate.item()


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        share_learning_rate(optimizer)  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
