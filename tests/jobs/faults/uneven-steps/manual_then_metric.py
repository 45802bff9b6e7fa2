"""Gradients are averaged by hand. Rank 1's shard gives one step less, so its metric all_reduce after the
loop meets the others' gradient.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps culprits=1 outcome=crashed|hung

import torch
import torch.distributed as dist


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # <- also
        parameter.grad /= dist.get_world_size()


def train(model, samples, batch_size):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    total = torch.zeros(1)
    for start in range(0, len(samples), batch_size):  # <- here
        x = samples[start : start + batch_size]
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        average_gradients(model)  # <- also
        optimizer.step()
        total += loss.detach()
    return total


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    sizes = [120, 112, 120]
    total = train(torch.nn.Linear(6, 1), torch.randn(sizes[rank], 6), batch_size=8)
    dist.all_reduce(total)  # <- also
    print(f"rank {rank}: mean loss {total.item() / 45:.4f}")
    dist.destroy_process_group()
