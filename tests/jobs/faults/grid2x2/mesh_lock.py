"""HSDP-like 2x2 device mesh. Rank 1 waits for a file lock that another process holds; the others wait in
chains.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=1 outcome=hung

import fcntl
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def cached_table(path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # <- here
        file.write("table")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    replicate, shard = mesh["replicate"].get_group(), mesh["shard"].get_group()
    gradient, parameter = torch.ones(8), [torch.zeros(8), torch.zeros(8)]
    with tempfile.NamedTemporaryFile() as lock:
        # the same process takes it twice through two descriptions: the second waits for the first
        fcntl.flock(lock, fcntl.LOCK_EX)
        for step in range(12):
            if rank == 1 and step == 7:
                cached_table(Path(lock.name))  # <- also
            dist.all_gather(parameter, gradient, group=shard)
            gradient = (parameter[0] + parameter[1]) / 2
            dist.all_reduce(gradient, group=replicate)
            gradient /= 2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
