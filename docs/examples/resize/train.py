# A PyTorch loop that follows its share: it halves its batch when the share is to be smaller, and
# takes the batch up again when it grows.
import json
import os
import sys

import torch

SHARE = os.environ.get("SHARE", "/usr/local/vernier/share.json")


class Share:
    """The present share of the first GPU. changed() is true once for each version of the file."""

    def __init__(self):
        self.mem_mib = None
        self.changed()

    def changed(self):
        with open(SHARE) as f:
            share = json.load(f)
        # Before a shrink, "next" says what it will be at the deadline.
        mem_mib = (share.get("next") or share["devices"])[0]["memMiB"]
        changed = mem_mib != self.mem_mib
        self.mem_mib = mem_mib
        return changed


def main(steps):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(1024, 1024).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    share, batch = Share(), 512
    full = share.mem_mib
    print(f"start: {full} MiB, batch {batch}", flush=True)
    for step in range(steps):
        if share.changed():
            batch = max(1, 512 * share.mem_mib // full)
            if device == "cuda":
                torch.cuda.empty_cache()  # a cache is memory in use
            print(f"step {step}: {share.mem_mib} MiB, batch {batch}", flush=True)
        loss = model(torch.randn(batch, 1024, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(sys.argv) > 2:
            input()  # a test goes step by step
    print(f"done, batch {batch}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
