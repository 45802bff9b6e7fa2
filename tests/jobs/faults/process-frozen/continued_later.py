"""Rank 0 is stopped for 6 s and then continued by a helper process, as a scheduler does: the suspicion
must be withdrawn, the job completes.
"""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=process-frozen culprits=0 outcome=completed as=note|warning|nothing

import os
import signal
import subprocess

import torch
import torch.distributed as dist


def suspend_for(seconds):
    me = os.getpid()
    subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {me}"])
    os.kill(me, signal.SIGSTOP)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.randn(100)
    for step in range(30):
        if rank == 0 and step == 10:
            suspend_for(6)
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
    dist.barrier()
    print(rank, "done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
