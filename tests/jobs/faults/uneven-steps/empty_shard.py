"""Three files for four ranks: rank 3's list is empty, it takes no step at all and goes straight to the
end.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=empty-shard also=uneven-steps culprits=3 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

FILES = ["a.bin", "b.bin", "c.bin"]


def read(name):
    return [torch.full((2,), float(ord(letter))) for letter in name * 3]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for name in FILES[rank::world]:  # <- here
        for sample in read(name):
            optimizer.zero_grad()
            model(sample).sum().backward()  # <- also
            optimizer.step()
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
