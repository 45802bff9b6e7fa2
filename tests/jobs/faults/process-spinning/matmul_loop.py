"""Power iteration on rank 0 with a tolerance that float32 cannot reach: matrix products without end, GIL
released.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-spinning culprits=0 outcome=hung

import torch
import torch.distributed as dist


def largest_eigenvalue(matrix, tolerance):
    vector = torch.ones(len(matrix))
    change = 1.0
    while change > tolerance:
        product = matrix @ vector  # <- here
        product /= product.norm()  # <- also
        change = (product - vector).norm().item() + 1e-9  # <- also
        vector = product  # <- also
    return (vector @ matrix @ vector).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    for step in range(10):
        matrix = torch.rand(300, 300)
        tolerance = 1e-12 if rank == 0 and step == 6 else 1e-3
        value = torch.tensor([largest_eigenvalue(matrix + matrix.T, tolerance)])  # <- also
        dist.all_reduce(value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
