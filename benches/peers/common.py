"""What the scripts of peers begin with: timing as benches/timing.rs does it, cold with L2 read over before each run,
warm back to back, all queued behind a wait, so that no time of the host is inside; and what both of them run."""

import json
import os
import re
import signal
import statistics
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

warnings.filterwarnings("ignore")
COLD, SERIES, FLUSH = 25, 5, 192 << 20
torch.manual_seed(20)
flush = torch.ones(FLUSH // 4, device="cuda")


def graph_of(run):
    """What `run` queues, as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def measure(run):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    event = lambda: torch.cuda.Event(enable_timing=True)
    pairs = [(event(), event()) for _ in range(COLD)]
    flush.sum()
    torch.cuda.synchronize()
    gate = event()
    torch.cuda._sleep(100_000_000)
    gate.record()
    for start, end in pairs:
        flush.sum()
        start.record()
        run()
        end.record()
    if gate.query():
        print("# the host was slower than the wait: its time is in the next figure", flush=True)
    torch.cuda.synchronize()
    cold = statistics.median(start.elapsed_time(end) for start, end in pairs)
    repeats, series = max(3, min(100, int(1.0 / cold))), []
    for _ in range(SERIES):
        start, end = event(), event()
        torch.cuda._sleep(20_000_000)
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize()
        series.append(start.elapsed_time(end) / repeats)
    return cold, statistics.median(series)


def late(*_):
    raise TimeoutError("it takes too long")


def in_time(name, run, seconds=0):
    """What `run` gives; nothing, with a line that says why, where it fails or takes longer."""
    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        return run()
    except Exception as error:
        print(f"# {name}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    finally:
        signal.alarm(0)


def tell(name, run):
    times = in_time(name, lambda: measure(run))
    if times:
        print(name, *times, flush=True)


class Scaled:
    """Matrices `[experts, n, k]` as e4m3, a scale for each row."""

    def __init__(self, w):
        self.codes, self.scales = by_rows(w)


def by_rows(x):
    """As e4m3, and a scale for each row."""
    scales = x.abs().amax(-1).float().clamp(min=1e-12) / 448
    return (x / scales.unsqueeze(-1)).to(torch.float8_e4m3fn), scales


def in_groups(x, w, ends):
    """Rows times the matrices `[n, k]` of their groups."""
    if isinstance(w, Scaled):
        x, scales = by_rows(x)
        how = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return torch._scaled_grouped_mm(x, w.codes.transpose(1, 2), scales, w.scales, **how)
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return product(x, w.transpose(1, 2), offs=ends)


def gated_experts(x, logits, weights, numbers, top):
    """Gated experts by products in groups; `numbers` are theirs."""
    up, down = weights
    shares, chosen = torch.topk(torch.softmax(logits, -1), top)
    shares = shares / shares.sum(-1, keepdim=True)
    sorted, order = torch.sort(chosen.flatten(), stable=True)
    ends = torch.searchsorted(sorted, numbers, right=True).to(torch.int32)
    gates, others = in_groups(x[order // top], up, ends).chunk(2, -1)
    rows = in_groups(F.silu(gates) * others, down, ends)
    rows = rows * shares.flatten()[order, None].to(rows.dtype)
    return torch.zeros_like(x).index_add(0, order // top, rows)


def varlen(q, k, v, ends, longest):
    """Attention of packed sequences, each within itself."""
    try:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, ends, ends, longest, longest)
    except (ImportError, TypeError):
        return torch.ops.aten._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, 0.0, False, False
        )[0]


def by_time(ways):
    """Names of what runs, the fastest first."""
    times = {}
    for name, run in ways.items():
        try:
            times[name] = measure(graph_of(run))[0]
        except RuntimeError as error:
            print(f"# {name}: {error}".splitlines()[0], flush=True)
    return sorted(times, key=times.get)


def attending(name, run, qkv, **how):
    """`run` with the attention that is fastest for such operands, of those that it compiles with."""

    def within(backend, run):
        def inside():
            with sdpa_kernel(backend):
                return run()

        return inside

    attention = lambda: F.scaled_dot_product_attention(*qkv, **how)
    backends = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    for backend in by_time({backend: within(backend, attention) for backend in backends}):
        own = f"{name}-{backend.name.split('_')[0].lower()}"
        try:
            within(backend, run)()
            return {own: within(backend, run)}
        except (RuntimeError, AssertionError) as error:
            print(f"# {own}: {error}".splitlines()[0], flush=True)
