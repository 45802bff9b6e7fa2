"""A detach() cuts the value network off from the loss: its parameters are used in forward but get no
gradient.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=unused-parameters culprits=all outcome=crashed|hung

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(5, 8)
        self.policy = nn.Linear(8, 3)
        self.value = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, state):
        hidden = self.shared(state).relu()
        return self.policy(hidden).log_softmax(-1), self.value(hidden)


def update(model, optimizer):
    states, actions, returns = torch.randn(6, 5), torch.randint(0, 3, (6,)), torch.randn(6, 1)
    log_probabilities, values = model(states)  # <- here
    advantage = (returns - values).detach().squeeze(1)
    loss = functional.nll_loss(log_probabilities, actions, reduction="none").mul(advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    network = DDP(ActorCritic())
    adam = torch.optim.Adam(network.parameters())
    for _ in range(6):
        update(network, adam)  # <- also
    dist.destroy_process_group()
