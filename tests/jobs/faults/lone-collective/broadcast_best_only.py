"""When rank 0 finds a new best model it broadcasts it; the others do not know that they should listen."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=lone-collective also=collective-mismatch culprits=0|all outcome=hung|crashed

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    parameters = [torch.randn(16), torch.randn(4)]
    best = float("inf")
    for round_number in range(12):
        for parameter in parameters:
            step = torch.randn_like(parameter)
            dist.all_reduce(step)
            parameter -= 0.01 * step / world
        score = 5.0 - round_number if round_number in (0, 6) else 99.0
        if rank == 0 and round_number > 4 and score < 90 and score < best:  # <- also
            best = score
            for parameter in parameters:
                dist.broadcast(parameter, src=0)  # <- here
    dist.barrier()  # <- also
    print(rank, "best", best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
