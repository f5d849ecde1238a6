"""The demo's training job, run by a node as `python -c <this file>`: a small network learns, and prints its loss.

Takes about DEMO_SECONDS. With NumPy a two-layer network; without it a logistic regression in plain Python.
Imports nothing of Millpond: it is a tenant's program.
"""

import math
import os
import random
import time

SECONDS = float(os.environ.get("DEMO_SECONDS", "20"))


def train_with_numpy() -> None:
    """Full-batch gradient descent on two interleaved spirals."""
    import numpy as np

    generator = np.random.default_rng(7)
    turns = np.sqrt(generator.random((2000, 1))) * 3 * math.pi
    label = np.arange(2000).reshape(-1, 1) % 2
    side = 2 * label - 1
    points = np.hstack([side * turns * np.cos(turns), side * turns * np.sin(turns)]) / 10
    points += generator.normal(0, 0.02, points.shape)
    hidden = generator.normal(0, 1.0, (2, 64))
    offset = np.zeros((1, 64))
    outer = generator.normal(0, 0.2, (64, 1))
    bias = np.zeros((1, 1))
    rate, step, began, told = 0.5, 0, time.monotonic(), 0.0
    while (elapsed := time.monotonic() - began) < SECONDS:
        layer = np.tanh(points @ hidden + offset)
        guess = 1 / (1 + np.exp(-(layer @ outer + bias)))
        loss = float(-np.mean(label * np.log(guess + 1e-9) + (1 - label) * np.log(1 - guess + 1e-9)))
        slope = (guess - label) / len(points)
        inner = (slope @ outer.T) * (1 - layer**2)
        outer -= rate * layer.T @ slope
        bias -= rate * slope.sum(axis=0, keepdims=True)
        hidden -= rate * points.T @ inner
        offset -= rate * inner.sum(axis=0, keepdims=True)
        step += 1
        if elapsed - told >= 1:
            told = elapsed
            right = float(np.mean((guess > 0.5) == label))
            print(f"step {step:6d}  loss {loss:.4f}  accuracy {right:.3f}", flush=True)
    print(f"done after {step} steps with NumPy {np.__version__}", flush=True)


def train_with_plain_python() -> None:
    """Stochastic gradient descent on two clouds of points."""
    chance = random.Random(7)
    cloud = [(chance.gauss(2 * k - 1, 1.0), chance.gauss(2 * k - 1, 1.0), k) for k in (0, 1) for _ in range(500)]
    weights, bias, rate, step, began, told = [0.0, 0.0], 0.0, 0.05, 0, time.monotonic(), 0.0
    while (elapsed := time.monotonic() - began) < SECONDS:
        loss = 0.0
        for x, y, k in cloud:
            guess = 1 / (1 + math.exp(-(weights[0] * x + weights[1] * y + bias)))
            loss -= math.log(guess + 1e-9) if k else math.log(1 - guess + 1e-9)
            weights[0] -= rate * (guess - k) * x
            weights[1] -= rate * (guess - k) * y
            bias -= rate * (guess - k)
        step += 1
        if elapsed - told >= 1:
            told = elapsed
            print(f"step {step:6d}  loss {loss / len(cloud):.4f}", flush=True)
    print(f"done after {step} steps in plain Python (NumPy is not installed for this interpreter)", flush=True)


if __name__ == "__main__":
    try:
        train_with_numpy()
    except ImportError:
        train_with_plain_python()
