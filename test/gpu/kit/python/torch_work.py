# SPDX-License-Identifier: Apache-2.0
#
# train SECONDS, infer SECONDS: a small convolutional network on data that stays on the
# GPU, after a line on the input; prints how many steps it made.
# memory MOST_MIB: takes memory in pieces of 64 MiB until there is no more, or MOST_MIB.
import json
import sys
import time

import torch

what, amount = sys.argv[1], float(sys.argv[2])


def memory():
    _, total = torch.cuda.mem_get_info()
    held, error = [], ""
    try:
        while (len(held) + 1) * 64 <= amount:
            held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1))
    except Exception as e:
        error = type(e).__name__
    print(json.dumps({"Total": total, "Held": sum(t.numel() for t in held), "Error": error}))


def work():
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).cuda()
    images = torch.randn(256, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def train():
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    def infer():
        with torch.no_grad():
            return criterion(model(images), labels)

    step = train if what == "train" else infer
    if what == "infer":
        model.eval()
    for _ in range(20):  # cuDNN chooses its kernels
        loss = step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    begun, steps = time.monotonic(), 0
    while time.monotonic() - begun < amount:
        for _ in range(5):
            loss = step()
        steps += 5
        torch.cuda.synchronize()
    print(json.dumps({"Steps": steps, "Seconds": time.monotonic() - begun, "Loss": loss.item()}))


memory() if what == "memory" else work()
