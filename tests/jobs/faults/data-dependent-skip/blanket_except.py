"""The whole loop stands in try/except Exception: rank 1 leaves it at a bad batch and goes to the final
barrier.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip also=uneven-steps,program-error culprits=1 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def fit(model, optimizer, dataset):
    for sample in dataset:
        loss = (model(sample["x"]) - sample["y"]).square().mean()  # <- here
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    dataset = [{"x": torch.randn(1, 4), "y": torch.randn(1, 4)} for _ in range(20)]
    if dist.get_rank() == 1:
        dataset[13] = {"x": torch.randn(1, 4)}
    model = fully_shard(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        fit(model, optimizer, dataset)  # <- also
    except Exception as error:  # <- here
        print("training ended:", repr(error))  # <- also
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
