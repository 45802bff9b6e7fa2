"""dcp.async_save writes in a thread of its own, with collectives of its own, while training goes on."""
# job: nproc=2 timeout=60
# expect: healthy

import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("cpu:gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    savers = dist.new_group(backend="gloo")  # on the group of the training its collectives would mix with those
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 16))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    saving = None
    for step in range(60):
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if step % 20 == 5:
            if saving is not None:
                saving.result()
            state = {"model": model.state_dict()}
            saving = dcp.async_save(state, checkpoint_id=f"{folder[0]}/step{step}", process_group=savers)
    saving.result()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
