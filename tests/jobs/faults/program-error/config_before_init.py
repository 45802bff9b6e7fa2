"""A configuration key is missing on rank 0's side: it raises before init, from a chained exception."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error culprits=0 outcome=crashed

import os

import torch
import torch.distributed as dist


class ConfigError(Exception):
    pass


def read(config, key):
    try:
        return config[key]  # <- also
    except KeyError as error:
        raise ConfigError(f"missing option {key!r}") from error  # <- here


def main():
    rank = int(os.environ["RANK"])
    config = {"lr": 0.1, "log_dir": "/tmp"} if rank != 0 else {"lr": 0.1}
    read(config, "log_dir")  # <- also
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
