"""FSDP2: rank 0 prints a sample from the model; its forward gathers the parameters from ranks that do
not call it.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=evaluation-on-one-rank also=lone-collective culprits=0 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class TinyLanguageModel(nn.Module):
    def __init__(self, words=30, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.Linear(width, width)
        self.out = nn.Linear(width, words)

    def forward(self, tokens):
        return self.out(self.mix(self.embed(tokens)).relu())


@torch.no_grad()
def sample(model, length=5):
    tokens = [1]
    for _ in range(length):
        logits = model(torch.tensor([tokens]))  # <- here
        tokens.append(logits[0, -1].argmax().item())
    return tokens


def main():
    dist.init_process_group("gloo")
    model = TinyLanguageModel()
    for part in model.children():
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        tokens = torch.randint(0, 30, (2, 9))
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 8 == 7 and dist.get_rank() == 0:  # <- also
            print(sample(model))  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
