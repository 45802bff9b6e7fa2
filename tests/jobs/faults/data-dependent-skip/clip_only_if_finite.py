"""The norm for clipping is all-reduced only where the local norm is finite: rank 0 leaves it out once,
and from then on its gradients meet the others' norms.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip also=lone-collective,shape-mismatch culprits=0 outcome=hung|crashed

import torch
import torch.distributed as dist


def global_norm(parameters):
    square = sum(p.grad.square().sum() for p in parameters)
    if not square.isfinite():  # <- here
        return None  # <- here
    dist.all_reduce(square)  # <- also
    return square.sqrt()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    parameters = [torch.randn(6, requires_grad=True), torch.randn(6, 40, requires_grad=True)]
    for step in range(20):
        x = torch.randn(6)
        if rank == 0 and step == 8:
            x[2] = float("inf")
        loss = (parameters[0] * x + parameters[1].mean(1)).square().sum()
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        norm = global_norm(parameters)  # <- also
        for parameter in parameters:
            dist.all_reduce(parameter.grad)  # <- also
            if norm is not None:
                parameter.data -= 0.01 * parameter.grad / (1 + norm)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
