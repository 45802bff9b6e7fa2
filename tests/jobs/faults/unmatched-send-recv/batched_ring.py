"""A ring exchange with batch_isend_irecv, in which rank 2 receives from the wrong side."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=unmatched-send-recv culprits=2|all|1,2|0,2 outcome=hung

import torch
import torch.distributed as dist
from torch.distributed import P2POp, batch_isend_irecv


def ring_step(block, send_to, receive_from):
    incoming = torch.empty_like(block)
    works = batch_isend_irecv(
        [P2POp(dist.isend, block, send_to), P2POp(dist.irecv, incoming, receive_from)]  # <- also
    )
    for work in works:
        work.wait()  # <- here
    return incoming


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % world, (rank - 1) % world
    block = torch.full((4, 4), float(rank))
    for lap in range(6):
        wrong = rank == 2 and lap == 3
        block = ring_step(block, following, following if wrong else previous)  # <- also
    print(rank, block[0, 0].item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
