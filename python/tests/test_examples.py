"""Examples with several processes, each as a program of its own: skipped where their engine is not installed."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*command, **variables):
    """What a program prints; its threads leave cores to the others."""
    if not EXAMPLES.is_dir():
        pytest.skip("no examples here")
    variables |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, command)]
    ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}")


def test_graphsage_under_torchrun_is_that_of_one_rank():
    needs("torch", "scipy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    one = dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", **place)
    program = [EXAMPLES / "graphsage_torchrun.py"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", place["MASTER_ADDR"]]
    said = [run(*program, **one), run(*torchrun, "--master-port", place["MASTER_PORT"], *program)]
    # Gloo and torchrun print to stdout too.
    line = r"(\d+) ranks on \w+: loss ([\d.]+), accuracy ([\d.]+),"
    found = [re.findall(line, text) for text in said]
    assert [len(lines) for lines in found] == [1, 1], said
    (one, *alone), (two, *together) = (lines[0] for lines in found)
    assert [one, two] == ["1", "2"]
    assert [float(x) for x in alone] == pytest.approx([float(x) for x in together], rel=1e-2)


def test_rows_on_dask_workers():
    needs("dask", "distributed", "scipy")
    assert run(EXAMPLES / "rows_dask.py").startswith("2 workers, ")
