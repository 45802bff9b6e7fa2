"""Rank 1 stops itself (raise_signal SIGTSTP's big brother) while it loads its data, after init, before
step 0.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-frozen culprits=1 outcome=hung

import signal

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def load_tokens():
    tokens = torch.randint(0, 100, (64,))
    if dist.get_rank() == 1:
        signal.raise_signal(signal.SIGSTOP)  # <- here
    return tokens


def main():
    dist.init_process_group("gloo")
    tokens = load_tokens()  # <- also
    model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(tokens).mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
