"""Ratios of running times from interleaved pairs, and the peak memory of one call."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

Step = Callable[[], object]


class Compared(NamedTuple):
    """Median seconds of either step, and the median and quartiles over pairs of first / second."""

    first: float
    second: float
    ratio: float
    quartiles: tuple[float, float]


def seconds(step: Step) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def compare(first: Step, second: Step, pairs: int) -> Compared:
    """Time two steps in turns, after a warm-up, swapping who goes first.

    What slows the machine for a while slows both halves of a pair, so ratios are steadier
    than times.
    """
    for step in (first, second, first, second):
        step()
    times = []
    for i in range(pairs):
        if i % 2:
            late = seconds(second)
            times.append((seconds(first), late))
        else:
            early = seconds(first)
            times.append((early, seconds(second)))
    low, ratio, high = statistics.quantiles((a / b for a, b in times), n=4, method="inclusive")
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    return Compared(a, b, ratio, (low, high))


class Apart:
    """A step in a process of its own, so that one contender's settings do not touch the other's.

    `make(*arguments)` builds the step there; calling the object does it once and waits.
    """

    def __init__(self, make: Callable[..., Step], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        work = (other, torch.get_num_threads(), make, arguments)
        self.process = context.Process(target=_serve, args=work, daemon=True)
        self.process.start()

    def __call__(self) -> None:
        self.pipe.send(True)
        self.pipe.recv()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, threads: int, make: Callable[..., Step], arguments: Any) -> None:
    torch.set_num_threads(threads)
    step = make(*arguments)
    while pipe.recv():
        step()
        pipe.send(None)


def typical_seconds(step: Step, repeats: int) -> float:
    """Median time of a call, after a warm-up."""
    step()
    return statistics.median(seconds(step) for _ in range(repeats))


def peak_bytes(step: Step) -> int:
    """The most memory that one call holds on top of what was there before it.

    Counted by torch.profiler from every allocation and release of tensors; scratch memory
    that a convolution library keeps for itself is not in it.
    """
    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    kineto = profile.profiler.kineto_results  # type: ignore[union-attr]
    events = [e for e in kineto.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
