"""With a debugging switch on, rank 2 waits in a barrier where the others reduce a stop flag."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=collective-mismatch also=lone-collective culprits=2|all outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

DEBUG_RANKS = {2}


def everyone_wants_to_stop(stop):
    if dist.get_rank() in DEBUG_RANKS:  # <- also
        dist.barrier()  # <- here
        return stop
    flag = torch.tensor(int(stop))
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)  # <- also
    return bool(flag)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(2, 2)).sum().backward()
        optimizer.step()
    everyone_wants_to_stop(True)  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
