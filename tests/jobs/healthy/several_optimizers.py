"""A GAN in small: two DDP models, two optimizers, the critic stepped three times as often as the
generator.
"""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    generator = DDP(nn.Linear(3, 2))
    critic = DDP(nn.Linear(2, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for round_number in range(12):
        for _ in range(3):
            real = torch.randn(8, 2)
            with torch.no_grad():
                fake = generator(torch.randn(8, 3))
            for_critic.zero_grad()
            scores = critic(torch.cat([fake, real]))
            (scores[:8].mean() - scores[8:].mean()).backward()
            for_critic.step()
        for_generator.zero_grad()
        critic.requires_grad_(False)
        (-critic.module(generator(torch.randn(8, 3))).mean()).backward()
        critic.requires_grad_(True)
        for_generator.step()
        if round_number % 5 == 0 and dist.get_rank() == 0:
            print("round", round_number)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
