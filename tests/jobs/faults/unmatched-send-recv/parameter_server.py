"""A parameter server asks each client for the same number of updates, but client 2 has sent one less and
gone to the final barrier.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=unmatched-send-recv also=uneven-steps culprits=2|0,2|0 outcome=hung|crashed

import torch
import torch.distributed as dist

ROUNDS = 7


def serve(clients):
    weights = torch.zeros(12)
    update = torch.empty(12)
    for _ in range(ROUNDS):
        for client in clients:
            dist.recv(update, src=client)  # <- here
            weights += update
            dist.send(weights, dst=client)


def work(rank):
    weights = torch.empty(12)
    rounds = ROUNDS - 1 if rank == 2 else ROUNDS
    for _ in range(rounds):  # <- also
        dist.send(torch.randn(12), dst=0)
        dist.recv(weights, src=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    me = dist.get_rank()
    if me == 0:
        serve(range(1, dist.get_world_size()))  # <- also
    else:
        work(me)
    dist.barrier()  # <- also
    dist.destroy_process_group()
