"""A stream reads one file a rank, and the files are not equally long: rank 0 runs dry first and destroys
the group.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps also=rank-left-early culprits=0 outcome=crashed|hung

import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class JsonLines(IterableDataset):
    """Numbers from a file with one JSON list a line."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with self.path.open() as lines:
            for line in lines:
                yield torch.tensor(json.loads(line), dtype=torch.float32)


def write_shard(folder, rank):
    path = Path(folder) / f"part-{rank:05d}.jsonl"
    lines = 150 + 40 * rank
    path.write_text("".join(json.dumps([i % 7, i % 5, i % 3]) + "\n" for i in range(lines)))
    return path


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(JsonLines(write_shard(folder, rank)), batch_size=8)
        for batch in loader:  # <- here
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # <- also
            optimizer.step()
    dist.destroy_process_group()  # <- also


if __name__ == "__main__":
    main()
