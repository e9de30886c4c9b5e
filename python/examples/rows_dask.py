"""A sparse matrix times a dense one on Dask: each worker process multiplies its rows of A, checked against SciPy.

    python rows_dask.py

Starts a cluster of two processes on this machine. `Client("tcp://scheduler:8786")` takes one that runs.
"""

import numpy
import scipy.sparse
from dask.distributed import Client, LocalCluster

import einsparse


class Rows:
    """Rows of A on one worker, kept there with their plan: an actor of Dask."""

    def __init__(self, rows, columns):
        like = numpy.zeros((rows.shape[1], columns), "f4")
        self.plan = einsparse.plan("C[m,n] = A[m,k] * B[k,n]", A=rows, B=like)

    def multiply(self, b):
        # What came over a network may begin anywhere; dense operands are read where they lie.
        return self.plan.run(B=numpy.require(b, requirements="A"))


def deal(a, workers):
    """Where the rows of each worker but the last end, so that all have about as many entries."""
    return numpy.searchsorted(a.indptr, a.nnz * numpy.arange(1, workers) / workers)


def main():
    random = numpy.random.default_rng(1)
    # The first rows have most entries.
    places = (20_000 * random.random(500_000) ** 2).astype("i4"), random.integers(5_000, size=500_000, dtype="i4")
    a = scipy.sparse.csr_matrix((random.random(500_000, "f4"), places), (20_000, 5_000))
    b = random.random((5_000, 32), "f4")
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            workers = list(client.scheduler_info()["workers"])
            ends = [0, *deal(a, len(workers)), a.shape[0]]
            parts = [a[first:last] for first, last in zip(ends, ends[1:])]
            # A is sent once; of each product only B and the rows of C travel.
            actors = [client.submit(Rows, part, 32, workers=w, actor=True) for part, w in zip(parts, workers)]
            actors = client.gather(actors)
            c = numpy.concatenate([found.result() for found in [actor.multiply(b) for actor in actors]])
    numpy.testing.assert_allclose(c, a @ b, rtol=1e-4)
    said = " and ".join(f"{part.shape[0]} rows with {part.nnz} entries" for part in parts)
    print(f"{len(parts)} workers, {said}: as SciPy computes it", flush=True)


if __name__ == "__main__":
    main()
