"""An exception in the step of rank 1 is logged and swallowed; the rank takes up the next batch while the
others wait for its gradients.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip culprits=1 outcome=hung|crashed

import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

logger = logging.getLogger("train")


def one_step(model, optimizer, batch):
    optimizer.zero_grad()
    output = model(batch["features"])
    target = batch["target"].reshape(output.shape)  # <- also
    loss = torch.nn.functional.l1_loss(output, target)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(7, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(24):
        width = 3 if rank == 1 and step == 14 else 2
        batch = {"features": torch.randn(4, 7), "target": torch.zeros(4 * width)}
        try:
            one_step(model, optimizer, batch)  # <- here
        except RuntimeError as error:  # <- here
            logger.warning("step %d failed, going on: %s", step, error)  # <- also
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
