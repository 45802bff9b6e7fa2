"""Sender and receiver number their messages differently: the receiver waits for tag 4, the sender uses
tag 5.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=unmatched-send-recv culprits=all|0|1 outcome=hung

import torch
import torch.distributed as dist


class Link:
    def __init__(self, peer, first_tag):
        self.peer, self.tag = peer, first_tag

    def push(self, tensor):
        self.tag += 1
        dist.send(tensor, dst=self.peer, tag=self.tag)  # <- here

    def pull(self, like):
        self.tag += 1
        out = torch.zeros_like(like)
        dist.recv(out, src=self.peer, tag=self.tag)  # <- here
        return out


def main():
    dist.init_process_group("gloo")
    message = torch.arange(6.0)
    if dist.get_rank() == 0:
        link = Link(peer=1, first_tag=0)
        for number in range(8):
            if number == 4:
                link.tag += 1  # a reserved number, on this side only
            link.push(message + number)  # <- also
    else:
        link = Link(peer=0, first_tag=0)
        for _ in range(8):
            print(link.pull(message)[0].item())  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
