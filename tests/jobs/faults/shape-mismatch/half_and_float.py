"""Rank 0 reduces in bfloat16, the others in float32: half the bytes, and gloo ends a rank that receives
too much.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=shape-mismatch culprits=0 outcome=crashed|hung

import torch
import torch.distributed as dist


class GradientBucket:
    def __init__(self, size, dtype):
        self.buffer = torch.ones(size, dtype=dtype)

    def reduce(self):
        dist.all_reduce(self.buffer)  # <- here
        return self.buffer.float() / dist.get_world_size()


def precision():
    return torch.bfloat16 if dist.get_rank() == 0 else torch.float32


def main():
    dist.init_process_group("gloo")
    warmup = torch.zeros(1)
    for _ in range(3):
        dist.all_reduce(warmup)
    bucket = GradientBucket(5000, precision())
    for _ in range(5):
        print(dist.get_rank(), bucket.reduce()[0].item())  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
