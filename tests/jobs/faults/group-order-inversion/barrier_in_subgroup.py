"""Rank 0 holds the world's barrier before the checkpoint group's, rank 1 after it."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=group-order-inversion also=collective-mismatch culprits=0,1|all outcome=hung

import torch
import torch.distributed as dist


def writers_meet(group, metadata):
    objects = [None, None]
    dist.all_gather_object(objects, metadata, group=group)  # <- here
    return objects


def save_as_coordinator(group):
    dist.barrier()  # <- here
    return writers_meet(group, {"coordinator": True})


def save_as_writer(group):
    objects = writers_meet(group, {"coordinator": False})  # <- also
    dist.barrier()
    return objects


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    writers = dist.new_group([0, 1])
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
    if rank == 0:
        save_as_coordinator(writers)  # <- also
    elif rank == 1:
        save_as_writer(writers)  # <- also
    else:
        dist.barrier()
    dist.destroy_process_group()


main()
