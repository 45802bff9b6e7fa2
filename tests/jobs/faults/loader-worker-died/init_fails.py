"""worker_init_fn fails in rank 1's worker, so that its very first batch never comes but an exception
does.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-worker-died also=program-error culprits=1 outcome=crashed|hung

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader


def open_database(worker):
    if dist.get_rank() == 1:
        raise PermissionError(13, "Permission denied", "/data/index.lmdb")  # <- here


def main():
    dist.init_process_group("gloo")
    model = fully_shard(torch.nn.Linear(1, 1))
    loader = DataLoader(torch.randn(32, 1), batch_size=4, num_workers=1, worker_init_fn=open_database)
    for batch in loader:  # <- also
        model(batch).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
