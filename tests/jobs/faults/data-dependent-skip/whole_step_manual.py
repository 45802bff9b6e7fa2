"""A batch without positives is left out whole, on rank 1 once and never on rank 0. The all_reduces go on
matching, one step shifted, until rank 1 ends with one less and says goodbye.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip also=uneven-steps,rank-left-early culprits=1 outcome=crashed|hung

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
weight = torch.zeros(5, requires_grad=True)
skipped = 0

for step in range(30):
    features = torch.randn(10, 5)
    labels = torch.ones(10)
    if rank == 1 and step == 17:
        labels.zero_()
    if labels.sum() == 0:  # <- here
        skipped += 1
        continue  # <- here
    loss = torch.nn.functional.binary_cross_entropy_with_logits(features @ weight, labels)
    loss.backward()
    dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)  # <- also
    with torch.no_grad():
        weight -= 0.1 * weight.grad / world
    weight.grad = None

print(f"rank {rank}: done, {skipped} batches skipped")
dist.destroy_process_group()  # <- also
