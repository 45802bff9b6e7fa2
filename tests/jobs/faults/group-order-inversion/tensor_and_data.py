"""Tensor-parallel and data-parallel groups on 4 ranks. Ranks 2 and 3 reduce in the tensor group first,
ranks 0 and 1 in the data group: 0 waits for 2, 2 for 3, 3 for 1, 1 for 0.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=group-order-inversion culprits=all outcome=hung

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


class ParallelLayer:
    def __init__(self, mesh):
        self.tensor_group = mesh.get_group("tensor")
        self.data_group = mesh.get_group("data")
        self.activation = torch.ones(16)
        self.gradient = torch.ones(16)

    def overlap(self, gradient_first):
        if gradient_first:
            dist.all_reduce(self.gradient, group=self.data_group)  # <- here
            dist.all_reduce(self.activation, group=self.tensor_group)  # <- here
        else:
            dist.all_reduce(self.activation, group=self.tensor_group)  # <- here
            dist.all_reduce(self.gradient, group=self.data_group)  # <- here


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    layer = ParallelLayer(mesh)
    data_rank, tensor_rank = mesh.get_coordinate()
    for _ in range(4):
        layer.overlap(gradient_first=True)
    layer.overlap(gradient_first=(data_rank == tensor_rank))  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
