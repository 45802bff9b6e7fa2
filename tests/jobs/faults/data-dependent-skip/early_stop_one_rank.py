"""Early stopping on the rank's own validation loss: rank 0 has seen no progress for 3 epochs and leaves
the loop.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip also=uneven-steps culprits=0 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def should_stop(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def validate(rank, epoch):
    if rank == 0:
        return 0.8 if epoch > 2 else 1.0 - epoch * 0.1
    return 1.0 / (epoch + 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stopper = EarlyStopping(patience=3)
    for epoch in range(12):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 10)).mean().backward()  # <- also
            optimizer.step()
        if stopper.should_stop(validate(rank, epoch)):  # <- here
            print(f"rank {rank}: no progress, stopping after epoch {epoch}")
            break  # <- here
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
