"""Rank 0 reads a memory-mapped feature file that was cut while it was in use: SIGBUS."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=crashed-by-signal also=shm-too-small culprits=0 outcome=crashed

import mmap
import tempfile

import torch
import torch.distributed as dist

ROW = 4096


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.TemporaryFile() as file:
        file.truncate(ROW * 16)
        features = mmap.mmap(file.fileno(), ROW * 16)
        for step in range(16):
            if rank == 0 and step == 5:
                file.truncate(ROW * 5)
            row = features[step * ROW]  # <- here
            x = torch.tensor([float(row)])
            dist.all_reduce(x)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
