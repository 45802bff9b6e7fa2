"""Each rank names itself as the source of the broadcast, so that all send and nobody listens. With small
tensors gloo may let it pass in silence until the next operation.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=collective-mismatch culprits=all outcome=hung|crashed|completed as=verdict|warning

import torch
import torch.distributed as dist


def sync_model(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=dist.get_rank())  # <- here


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(40, 10)
    sync_model(model)  # <- also
    for _ in range(5):
        loss = model(torch.randn(3, 40)).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad = None
    print(model.weight.sum().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
