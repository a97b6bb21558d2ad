# SPDX-License-Identifier: Apache-2.0
#
# Trains a small convolutional network for some seconds (first argument) on data
# that stays on the GPU, and prints how many steps it made.
import json
import sys
import time

import torch

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


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(20):  # cuDNN chooses its kernels
    loss = step()
torch.cuda.synchronize()
begun, steps = time.monotonic(), 0
while time.monotonic() - begun < float(sys.argv[1]):
    for _ in range(5):
        loss = step()
    steps += 5
    torch.cuda.synchronize()
print(json.dumps({"steps": steps, "seconds": time.monotonic() - begun, "loss": loss.item()}))
