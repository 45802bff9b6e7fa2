"""Every step starts an asynchronous all_reduce of a counter; nobody waits for it, and nobody needs to."""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    weights = torch.zeros(8)
    counters = []
    for step in range(60):
        counter = torch.tensor([step])
        dist.all_reduce(counter, async_op=True)
        counters.append(counter)
        gradient = torch.randn(8)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
    dist.barrier()
    print(dist.get_rank(), len(counters))
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
