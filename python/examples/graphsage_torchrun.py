"""GraphSAGE over several processes: PyTorch trains, einsparse multiplies.

    torchrun --nproc-per-node 2 graphsage_torchrun.py

Each rank owns rows of the adjacency matrix, of the features and of the labels. A layer gathers the features of all
nodes and averages those of the neighbours of its own ones. Weights are on every rank, and DistributedDataParallel adds
up their gradients. Ranks use a GPU each and NCCL if this machine has enough of them, else the CPU and gloo.
"""

import argparse
import os
import time

import numpy
import scipy.sparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel

import einsparse


class Neighbours(torch.autograd.Function):
    """Means of neighbours, `y = A x`: A's rows of this rank times the rows of x of all ranks."""

    @staticmethod
    def forward(ctx, x, graph):
        ctx.graph = graph
        everyone = x.new_empty(dist.get_world_size() * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(everyone, x.contiguous())
        return graph.multiply("C[m,n] = A[m,k] * B[k,n]", everyone)

    @staticmethod
    def backward(ctx, dy):
        # This rank's part of the gradient of every row; each rank gets the sum for its own ones.
        parts = ctx.graph.multiply("C[k,n] = A[m,k] * B[m,n]", dy.contiguous())
        dx = parts.new_empty(parts.shape[0] // dist.get_world_size(), parts.shape[1])
        dist.reduce_scatter_tensor(dx, parts)
        return dx, None


class Graph:
    """Rows of a sparse matrix, with a plan for each product that was asked for."""

    def __init__(self, rows):
        self.rows, self.plans = einsparse.sparse(rows), {}

    def multiply(self, expression, dense):
        # `detach`: DLPack hands out no tensors that need gradients. The plan queues on PyTorch's current stream.
        dense = dense.detach()
        key = (expression, dense.shape)
        if key not in self.plans:
            self.plans[key] = einsparse.plan(expression, A=self.rows, B=dense)
        return self.plans[key].run(B=dense)


class GraphSage(nn.Module):
    """Two layers of `x W + mean(neighbours) V + b`."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        widths = [features, hidden, classes]
        self.own = nn.ModuleList(nn.Linear(i, o) for i, o in zip(widths, widths[1:]))
        self.others = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in zip(widths, widths[1:]))

    def forward(self, x, graph):
        for layer, (own, others) in enumerate(zip(self.own, self.others)):
            x = own(x) + others(Neighbours.apply(x, graph))
            x = relu(x) if layer == 0 else x
        return x


def planted(nodes, classes, degree, features, seed=1):
    """A graph whose nodes mostly know their own class, in COO, and features that hardly tell it."""
    random = numpy.random.default_rng(seed)
    edges = nodes * degree // 2
    source, other = random.integers(nodes, size=(2, edges))
    same = other // classes * classes + source % classes
    target = numpy.where(random.random(edges) < 0.8, numpy.where(same < nodes, same, source), other)
    labels = numpy.arange(nodes) % classes
    x = random.standard_normal((nodes, features), "f4")
    x[numpy.arange(nodes), labels] += 1
    return numpy.concatenate([source, target]), numpy.concatenate([target, source]), x, labels


def main():
    options = argparse.ArgumentParser()
    for name, value in dict(nodes=3001, degree=16, features=32, hidden=32, classes=8, epochs=40).items():
        options.add_argument(f"--{name}", type=int, default=value)
    options = options.parse_args()
    local, on_machine = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count() >= on_machine
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    # Own rows, as many on every rank: the last ones may be nodes that are not there. Columns are those of all ranks.
    row, column, x, labels = planted(options.nodes, options.classes, options.degree, options.features)
    each = -(-options.nodes // size)
    first, last = rank * each, min((rank + 1) * each, options.nodes)
    mine = (row >= first) & (row < last)
    edges = (row[mine] - first, column[mine])
    a = scipy.sparse.csr_matrix((numpy.ones(mine.sum(), "f4"), edges), (each, size * each))
    degrees = numpy.maximum(a.sum(axis=1), 1)
    graph = Graph(scipy.sparse.csr_matrix(a.multiply(1 / degrees).astype("f4")))
    own = torch.zeros(each, options.features)
    own[: last - first] = torch.from_numpy(x[first:last])
    own, labels = own.to(device), torch.from_numpy(labels[first:last]).to(device)
    # One node in five is trained on.
    trained = torch.arange(first, last, device=device) * 7 % 10 < 2
    total = torch.tensor([trained.sum(), (~trained).sum()], device=device)
    dist.all_reduce(total)

    torch.manual_seed(1)
    model = GraphSage(options.features, options.hidden, options.classes).to(device)
    model = DistributedDataParallel(model, device_ids=[local] if gpus else None)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    start = time.perf_counter()
    for _ in range(options.epochs):
        out = model(own, graph)[: last - first]
        # DistributedDataParallel takes the mean over ranks, which have different numbers of nodes.
        loss = cross_entropy(out[trained], labels[trained], reduction="sum") * size / total[0]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        right = (model(own, graph)[: last - first].argmax(1) == labels)[~trained].sum()
    sums = torch.stack([loss.detach() / size, right / total[1]])
    dist.all_reduce(sums)
    loss, accuracy = sums.tolist()
    seconds = time.perf_counter() - start
    if rank == 0:
        print(f"{size} ranks on {device.type}: loss {loss:.4f}, accuracy {accuracy:.4f}, {seconds:.2f} s", flush=True)
        assert accuracy > 0.8
    # Until threads of gloo have let go of the last tensors: later they would look for an interpreter that has ended.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
