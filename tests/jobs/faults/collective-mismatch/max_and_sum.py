"""Rank 1 takes the maximum where the others take the sum: the same algorithm, garbage in silence. The
job completes.
"""
# job: nproc=3 run_args="" timeout=60
# expect: pitfall=collective-mismatch culprits=1|all outcome=completed as=warning|verdict

import torch
import torch.distributed as dist


def reduce_op(name):
    return {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[name]


def main():
    dist.init_process_group("gloo")
    op = reduce_op("max" if dist.get_rank() == 1 else "sum")
    values = torch.arange(12, dtype=torch.float32) * (dist.get_rank() + 1)
    for _ in range(6):
        dist.all_reduce(values, op=op)  # <- here
        values /= 10
    print(dist.get_rank(), values.sum().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
