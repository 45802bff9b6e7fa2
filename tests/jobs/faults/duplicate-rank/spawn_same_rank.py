"""The script starts its processes itself and hands all of them the rank of the parent's environment."""
# job: nproc=2 run_args="--stall-after 5" timeout=60 form=command
# expect: pitfall=duplicate-rank also=missing-rank,port-in-use culprits=0|all outcome=hung|crashed

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist


def train():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # <- here
    x = torch.ones(1)
    dist.all_reduce(x)
    dist.destroy_process_group()


def launch():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": "0"}
    ranks = [
        subprocess.Popen([sys.executable, __file__, "child"], env={**os.environ, **common, "LOCAL_RANK": str(i)})
        for i in range(2)
    ]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    train() if "child" in sys.argv else launch()
