"""A small trainer class, as projects keep it in a file of its own."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, files, batch_size):
        self.model = DDP(model)
        self.optimizer = torch.optim.RMSprop(self.model.parameters())
        self.files = files
        self.batch_size = batch_size

    @property
    def steps(self):
        return sum(len(file) for file in self.files) // self.batch_size

    def fit(self, epochs):
        for epoch in range(epochs):
            samples = torch.cat(self.files)
            for step in range(self.steps):  # <- here
                self.training_step(samples[step * self.batch_size :][: self.batch_size])  # <- also
            self.on_epoch_end(epoch)

    def training_step(self, batch):
        self.optimizer.zero_grad()
        self.model(batch).abs().mean().backward()  # <- also
        self.optimizer.step()

    def on_epoch_end(self, epoch):
        pass
