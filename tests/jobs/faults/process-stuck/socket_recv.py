"""Rank 1 asks a feature server that takes the connection and never answers; no time-out is set."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=1 outcome=hung

import socket
import threading

import torch
import torch.distributed as dist


class FeatureServer:
    """Answers the first 8 requests."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        open_connections = []
        for number in range(100):
            connection, _ = self.listener.accept()
            open_connections.append(connection)
            if number < 8:
                connection.sendall(b"\x01" * 16)


def fetch(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return torch.frombuffer(bytearray(connection.recv(16)), dtype=torch.uint8).float()  # <- here


def main():
    dist.init_process_group("gloo")
    server = FeatureServer()
    total = torch.zeros(16)
    for step in range(20):
        features = fetch(server.port) if dist.get_rank() == 1 else torch.ones(16)  # <- also
        dist.all_reduce(features)
        total += features
        if step == 6 and dist.get_rank() == 0:
            print("half way", total[0].item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
