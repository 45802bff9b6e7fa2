"""Calls every operation that is hooked, in a group of one or more ranks, and prints the results."""

import io
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def everything() -> list[object]:
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    out: list[object] = []
    tensor = torch.arange(4.0) + rank
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    out.append(tensor.tolist())
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    dist.broadcast(tensor, src=0)
    dist.reduce(tensor, dst=0)
    parts = [torch.zeros(4) for _ in range(world)]
    dist.all_gather(parts, tensor)
    flat = torch.zeros(4 * world)
    dist.all_gather_into_tensor(flat, tensor)
    out.append(flat.tolist())
    dist.gather(tensor, parts if rank == 0 else None, dst=0)
    dist.scatter(tensor, parts if rank == 0 else None, src=0)
    dist.all_to_all_single(flat, torch.ones(4 * world))
    dist.barrier()
    dist.monitored_barrier()
    names: list[object] = [None] * world
    dist.all_gather_object(names, f"rank {rank}")
    out.append(names)
    box = [rank]
    dist.broadcast_object_list(box, src=0)
    out.append(box)
    group = dist.new_group(list(range(world)))
    dist.all_reduce(tensor, group=group)
    if world > 1:
        if rank == 0:
            dist.send(tensor, 1)
            dist.isend(tensor, 1).wait()
        elif rank == 1:
            dist.recv(tensor, 0)
            dist.irecv(tensor, 0).wait()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        out.append([round(value, 4) for value in model(torch.ones(1, 4)).flatten().tolist()])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    out.append(sorted(torch.load(buffer)))
    try:
        dist.all_reduce("no tensor")  # type: ignore[arg-type]
    except Exception as error:
        out.append(type(error).__name__)
    try:
        raise ValueError("handled")
    except ValueError:
        dist.barrier()
    return out


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group("gloo")
    print(everything())
    time.sleep(0.2)  # as in compiled.py: the unrecorded run must end well by itself
    dist.destroy_process_group()
    sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
