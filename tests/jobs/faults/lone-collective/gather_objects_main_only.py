"""A reporter gathers objects from all ranks, but only the main process owns one."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=lone-collective also=collective-mismatch culprits=0|all outcome=hung|crashed

import torch
import torch.distributed as dist


class Reporter:
    def __init__(self):
        self.rows = []

    def collect(self, row):
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, row)  # <- here
        self.rows.append(gathered)


class Session:
    @property
    def is_main(self):
        return dist.get_rank() == 0

    def __init__(self):
        dist.init_process_group("gloo")
        self.reporter = Reporter() if self.is_main else None
        self.weights = torch.randn(20)

    def epoch(self, number):
        for _ in range(4):
            update = torch.randn(20)
            dist.all_reduce(update)
            self.weights += update / dist.get_world_size()
        if self.reporter:  # <- also
            self.reporter.collect({"epoch": number, "norm": self.weights.norm().item()})  # <- also

    def close(self):
        dist.barrier()  # <- also
        dist.destroy_process_group()


if __name__ == "__main__":
    session = Session()
    session.epoch(0)
    session.close()
