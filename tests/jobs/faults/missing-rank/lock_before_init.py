"""Three ranks unpack a data set under one file lock; one of them never lets go, and so two never reach
init.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=missing-rank also=process-stuck culprits=1,2|1|2 outcome=hung

import fcntl
import os
import tempfile
import time
from pathlib import Path

import torch.distributed as dist


def unpack_once(folder):
    path = Path(folder) / f"unpack-{os.getppid()}.lock"
    lock = path.open("w")
    if os.environ["LOCAL_RANK"] == "0":
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock  # the caller keeps it, and with it the lock
    while not path.exists() or not _locked(path):
        time.sleep(0.05)
    fcntl.flock(lock, fcntl.LOCK_EX)  # <- here
    return lock


def _locked(path):
    with path.open("r+") as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def main():
    lock = unpack_once(tempfile.gettempdir())  # <- also
    dist.init_process_group("gloo")
    dist.barrier()
    lock.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
