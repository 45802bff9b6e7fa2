"""The destination of reduce is computed from a list that is ordered differently on rank 0: everyone
waits or leaves with a partial sum.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=collective-mismatch culprits=0|all outcome=hung|crashed|completed as=verdict|warning

import torch
import torch.distributed as dist


def owners():
    order = [2, 1, 0] if dist.get_rank() == 0 else [0, 1, 2]
    return {f"layer{i}": order[i] for i in range(3)}


def main():
    dist.init_process_group("gloo")
    gradients = {name: torch.randn(1000) for name in owners()}
    for _ in range(4):
        for name, owner in owners().items():
            dist.reduce(gradients[name], dst=owner)  # <- here
    dist.barrier()  # <- also
    print(dist.get_rank(), "done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
