"""Only rank 2 turns its loss function into compiled code (an option from its environment), by a compiler
that waits for a license server: its first step does not begin.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=90
# expect: pitfall=compile-skew also=process-stuck culprits=2 outcome=hung

import os
import threading

import torch
import torch.distributed as dist

license_granted = threading.Event()


def vendor_compiler(graph_module, inputs):
    license_granted.wait(timeout=900)  # <- also
    return graph_module


def smooth_l1(prediction, target):
    error = (prediction - target).abs()
    return torch.where(error < 1, 0.5 * error**2, error - 0.5).mean()


def main():
    dist.init_process_group("gloo")
    os.environ.setdefault("COMPILE_LOSS", "1" if dist.get_rank() == 2 else "0")
    criterion = smooth_l1
    if os.environ["COMPILE_LOSS"] == "1":
        criterion = torch.compile(smooth_l1, backend=vendor_compiler, fullgraph=True)
    model = torch.nn.Linear(5, 1)
    for _ in range(6):
        loss = criterion(model(torch.randn(4, 5)), torch.zeros(4, 1))  # <- here
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
