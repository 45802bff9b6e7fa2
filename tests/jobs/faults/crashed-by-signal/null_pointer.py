"""A native extension (ctypes here) reads address 0 on rank 1: SIGSEGV, no Python traceback."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=crashed-by-signal culprits=1 outcome=crashed

import ctypes

import torch
import torch.distributed as dist


def fast_tokenize(rank, step):
    if rank == 1 and step == 5:
        ctypes.string_at(0)  # <- here
    return torch.randn(4, 4)


def main():
    dist.init_process_group("gloo")
    total = torch.zeros(4, 4)
    for step in range(20):
        batch = fast_tokenize(dist.get_rank(), step)  # <- also
        dist.all_reduce(batch)
        total += batch
    print(total.sum().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
