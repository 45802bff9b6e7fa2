"""A checksum by one huge integer power: native code with the GIL held, no Python line changes for
minutes.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-spinning culprits=2 outcome=hung

import torch
import torch.distributed as dist


class Checksum:
    def __init__(self, base=3):
        self.base = base

    def of(self, exponent):
        return str(self.base**exponent)[-5:] if exponent < 100 else hex(self.base**exponent)[-5:]  # <- here


def main():
    dist.init_process_group("gloo")
    checksum = Checksum()
    for step in range(12):
        exponent = 600_000_000 if dist.get_rank() == 2 and step == 7 else 17
        dist.all_reduce(torch.tensor([float(len(checksum.of(exponent)))]))  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
