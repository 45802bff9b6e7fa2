"""Half of the ranks were changed from gather to all_gather. Two and two: nobody is in the minority."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=collective-mismatch also=lone-collective culprits=all|0,1|2,3 outcome=hung|crashed

import torch
import torch.distributed as dist


class OldMeter:
    def collect(self, value):
        rows = [torch.zeros(2) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
        dist.gather(value, rows, dst=0)  # <- here
        return rows


class NewMeter:
    def collect(self, value):
        rows = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, value)  # <- here
        return rows


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meter = OldMeter() if rank < 2 else NewMeter()
    state = torch.zeros(8)
    for step in range(8):
        dist.all_reduce(state)
        state += 1
        if step == 5:
            meter.collect(torch.tensor([rank, state.mean().item()]))  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
