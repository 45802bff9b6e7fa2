"""Every rank starts a metrics server on one port: the first wins, the others die of it (not a port of
torch's at all).
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=port-in-use also=program-error culprits=any outcome=crashed

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist

PORT = 29881


class ExclusiveServer(ThreadingHTTPServer):
    allow_reuse_address = False
    daemon_threads = True


def serve_metrics():
    server = ExclusiveServer(("127.0.0.1", PORT), BaseHTTPRequestHandler)  # <- here
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    dist.init_process_group("gloo")
    dist.barrier()
    serve_metrics()  # <- also
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
