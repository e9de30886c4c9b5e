"""A pruned layer: sparse weights of SciPy times a batch, checked against SciPy."""

import numpy
import scipy.sparse

import einsparse

random = numpy.random.default_rng(1)
weights = scipy.sparse.random(1024, 512, density=0.1, format="csr", dtype="f4", random_state=1)
batch = random.random((512, 64), dtype="f4")
bias = random.random(1024, dtype="f4")

text = "Y[m,n] = relu(W[m,k] * X[k,n] + bias[m])"
plan = einsparse.plan(text, W=weights, X=batch, bias=bias)
print(plan.explain().split("Kernels")[0])

y = plan.run(X=batch, bias=bias)
wanted = numpy.maximum(weights @ batch + bias[:, None], 0)
numpy.testing.assert_allclose(y, wanted, rtol=1e-5)

# New values for the same pattern: the next step of training.
weights.data *= 0.5
plan.update_values(W=weights.data)
plan.run(X=batch, bias=bias, out=y)
numpy.testing.assert_allclose(y, numpy.maximum(weights @ batch + bias[:, None], 0), rtol=1e-5)
print("as SciPy computes it")
