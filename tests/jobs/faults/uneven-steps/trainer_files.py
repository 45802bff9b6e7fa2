"""Whole files are dealt out to the ranks: 7 files over 3 ranks, rank 0 gets a third one. The loop is in
a helper.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60 files=_trainer.py
# expect: pitfall=uneven-steps culprits=1,2 outcome=hung|crashed

import torch
import torch.distributed as dist
from _trainer import Trainer


class MyTrainer(Trainer):
    def on_epoch_end(self, epoch):
        if dist.get_rank() == 0:
            print("epoch", epoch)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    files = [torch.randn(32, 9) for _ in range(7)]
    trainer = MyTrainer(torch.nn.Linear(9, 3), files[rank::world], batch_size=8)
    trainer.fit(epochs=1)  # <- also
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "steps": trainer.steps})  # <- also
    if rank == 0:
        print(objects)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
