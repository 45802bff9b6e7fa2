"""Rank 0 takes a lock that it holds already: its log function is called again from within itself."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=0 outcome=hung

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class MetricStore:
    def __init__(self):
        self._lock = threading.Lock()
        self._values = []

    def add(self, value):
        with self._lock:
            self._values.append(value)
            if len(self._values) == 10:
                self.flush()  # <- also

    def flush(self):
        with self._lock:  # <- here
            print("mean", sum(self._values) / len(self._values))
            self._values.clear()


def main():
    dist.init_process_group("gloo")
    store = MetricStore() if dist.get_rank() == 0 else None
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).mean()
        loss.backward()
        optimizer.step()
        if store is not None:
            store.add(loss.item())  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
