"""Sends and receives between collectives; with an argument, monitored barriers too. Rank 0 prints the numbers that
torch's flight recorder gives to its collectives."""

import json
import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
box = torch.ones(2)
for _ in range(3):
    if rank > 0:
        dist.recv(box, rank - 1)
    if rank < world - 1:
        dist.send(box, rank + 1)
    dist.all_reduce(box)
    if rank == 0:
        dist.isend(box, 1).wait()
    elif rank == 1:
        dist.irecv(box, 0).wait()
    if len(sys.argv) > 1:
        dist.monitored_barrier()
    dist.barrier()
entries = json.loads(_dump_fr_trace_json(True, False))["entries"]
if rank == 0:
    print(json.dumps([entry["collective_seq_id"] for entry in entries if not entry["is_p2p"]]))
dist.destroy_process_group()
