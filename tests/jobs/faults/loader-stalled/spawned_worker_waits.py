"""Spawned, persistent workers: in the second epoch one of rank 0's waits for a socket that stays silent."""
# job: nproc=2 run_args="--stall-after 8" timeout=90
# expect: pitfall=loader-stalled culprits=0 outcome=hung

import socket

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __init__(self, rank):
        self.rank = rank
        self.visits = {}

    def __len__(self):
        return 24

    def __getitem__(self, index):
        self.visits[index] = self.visits.get(index, 0) + 1
        if self.rank == 0 and index == 9 and self.visits[index] == 2:
            return self.ask_server()  # <- also
        return torch.ones(2) * index

    def ask_server(self):
        ours, _theirs = socket.socketpair()
        ours.sendall(b"GET sample")
        return torch.frombuffer(ours.recv(8), dtype=torch.float32)  # <- here


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(
        Remote(dist.get_rank()),
        batch_size=4,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(3):
        for batch in loader:  # <- also
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
