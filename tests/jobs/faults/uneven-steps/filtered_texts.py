"""Each rank drops texts that are too long from its own shard, and so has its own number of batches. Two
epochs: the first ends shifted and silent, the second hangs at its end.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60 args="--epochs 2"
# expect: pitfall=uneven-steps also=steps-shifted culprits=1 outcome=hung|crashed

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

MAX_LENGTH = 40


def corpus():
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(5, 45, (400,), generator=generator).tolist()
    # the second half of the file comes from a source with longer texts
    return [torch.ones(n + 4 * (i % 2)) for i, n in enumerate(lengths)]


def collate(texts):
    return nn.utils.rnn.pad_sequence(texts, batch_first=True)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 4)

    def forward(self, x):
        return self.layer(x.unsqueeze(-1)).mean()


def run_epoch(model, optimizer, loader):
    batches = iter(loader)
    steps = 0
    while True:
        try:
            batch = next(batches)  # <- here
        except StopIteration:
            return steps  # <- also
        optimizer.zero_grad()
        model(batch).backward()  # <- also
        optimizer.step()
        steps += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    texts = corpus()[rank::world]
    texts = [text for text in texts if len(text) <= MAX_LENGTH]  # <- also
    loader = DataLoader(texts, batch_size=8, collate_fn=collate)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        print(f"rank {rank} epoch {epoch}: {run_epoch(model, optimizer, loader)} steps")
    flag = torch.ones(3)
    dist.broadcast(flag, src=0)  # <- also
    dist.destroy_process_group()


main()
