"""A pipeline of 4 stages with isend/irecv. Stage 2 does not pass the last micro-batch on; stage 3 waits
for it, the others are at the barrier already.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=unmatched-send-recv culprits=2|3|2,3 outcome=hung|crashed

import torch
import torch.distributed as dist

MICRO_BATCHES = 5


class Stage:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.layer = torch.nn.Linear(6, 6)
        self.sends = []

    def receive(self):
        if self.rank == 0:
            return torch.randn(3, 6)
        buffer = torch.empty(3, 6)
        dist.irecv(buffer, src=self.rank - 1).wait()  # <- here
        return buffer

    def forward(self, index):
        out = self.layer(self.receive()).detach()  # <- also
        last = index == MICRO_BATCHES - 1
        if self.rank + 1 < self.world and not (last and self.rank == 2):  # <- also
            self.sends.append((out, dist.isend(out, dst=self.rank + 1)))  # <- also

    def finish(self):
        for _, work in self.sends:
            work.wait()


@torch.no_grad()
def main():
    dist.init_process_group("gloo")
    stage = Stage(dist.get_rank(), dist.get_world_size())
    for index in range(MICRO_BATCHES):
        stage.forward(index)  # <- also
    stage.finish()
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
