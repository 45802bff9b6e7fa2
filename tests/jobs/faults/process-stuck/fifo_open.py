"""Rank 0 opens a named pipe for a live plot, and waits for a reader that nobody has started."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=0 outcome=hung

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class LivePlot:
    def __init__(self, folder):
        self.path = Path(folder) / "plot.fifo"
        os.mkfifo(self.path)

    def show(self, step, loss):
        with self.path.open("w") as pipe:  # <- here
            pipe.write(f"{step} {loss}\n")


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        plot = LivePlot(folder)
        for step in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 2)).square().mean()
            loss.backward()
            optimizer.step()
            if step == 12 and dist.get_rank() == 0:
                plot.show(step, loss.item())  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
