"""__getitem__ raises in a worker of rank 2; the loader raises it again in the rank, with the worker's
traceback.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-worker-died also=program-error culprits=2 outcome=crashed|hung

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset):
    def __init__(self, rank):
        self.lines = [f"{i},{i * 2}" for i in range(60)]
        if rank == 2:
            self.lines[33] = "33;66"

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        image, caption = self.lines[index].split(",")  # <- here
        return torch.tensor([float(image), float(caption)])


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Captions(dist.get_rank()), batch_size=3, num_workers=2)
    mean = torch.zeros(2)
    for batch in loader:  # <- also
        batch = batch.mean(0)
        dist.all_reduce(batch)
        mean += batch
    dist.barrier()
    print(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
