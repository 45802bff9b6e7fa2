"""Both neighbours send first and receive afterwards: gloo's send waits for the receiver, so neither
comes further.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=unmatched-send-recv also=group-order-inversion culprits=all outcome=hung

import torch
import torch.distributed as dist


def exchange(boundary, neighbour):
    received = torch.empty_like(boundary)
    dist.send(boundary, neighbour)  # <- here
    dist.recv(received, neighbour)
    return received


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    field = torch.full((32,), float(rank))
    for _ in range(10):
        dist.all_reduce(field)
        field /= 2
    field[0] = exchange(field[-1:].clone(), 1 - rank).item()  # <- also
    print(rank, field[0].item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
