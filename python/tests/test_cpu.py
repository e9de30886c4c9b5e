"""Against SciPy and NumPy, on the CPU."""

import gc

import numpy
import pytest
import scipy.sparse

import einsparse

SPMM = "C[m,n] = A[m,k] * B[k,n]"
FORMATS = "csr csc coo ell sell groupcoo groupcoo:4 groupcoo:hybrid bsr:4x2 blockgroupcoo:4x4 bitmap".split()


def matrix(rows=37, columns=29, kind="csr", dtype="f4", seed=1):
    random = numpy.random.default_rng(seed)
    a = random.integers(-4, 5, (rows, columns)) * (random.random((rows, columns)) < 0.2)
    return scipy.sparse.coo_matrix(a.astype(dtype)).asformat(kind)


def dense(rows, columns, dtype="f4", seed=2):
    return numpy.random.default_rng(seed).integers(-4, 5, (rows, columns)).astype(dtype)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil"])
def test_every_kind_of_scipy(kind):
    a, b = matrix(kind=kind), dense(29, 8)
    c = einsparse.einsum(SPMM, A=a, B=b)
    assert type(c) is numpy.ndarray and c.dtype == b.dtype
    numpy.testing.assert_array_equal(c, a @ b)


class LikePyTorch:
    """What a sparse tensor of PyTorch has; the tests with PyTorch itself are in test_gpu.py."""

    def __init__(self, a):
        self.a, self.shape, self.layout = a, a.shape, f"torch.sparse_{a.format}"

    def detach(self):
        return self

    coalesce = detach

    def values(self):
        return self.a.data

    def indices(self):
        return numpy.stack(self.a.coords)

    def crow_indices(self):
        return self.a.indptr.astype("i8")

    def col_indices(self):
        return self.a.indices.astype("i8")

    ccol_indices, row_indices = crow_indices, col_indices


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr"])
def test_every_layout_of_pytorch(kind):
    a, b = matrix(kind=kind), dense(29, 8)
    numpy.testing.assert_array_equal(einsparse.einsum(SPMM, A=LikePyTorch(a), B=b), a @ b)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_and_new_values(format):
    a, b = matrix(), dense(29, 8)
    plan = einsparse.plan(SPMM, A=a, B=b, format=format)
    numpy.testing.assert_array_equal(plan.run(B=b), a @ b)
    a.data *= 3
    plan.update_values(A=a.data)
    numpy.testing.assert_array_equal(plan.run(B=b), a @ b)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_every_type(dtype):
    a, b = matrix(dtype="f4"), dense(29, 8, dtype)
    a.data = a.data.astype(dtype)
    c = einsparse.einsum(SPMM, A=a, B=b)
    assert c.dtype == b.dtype
    numpy.testing.assert_array_equal(c, a.astype("f8") @ b.astype("f8"))


def test_unsorted_rows_keep_the_order_of_their_values():
    index, starts = numpy.array([3, 0, 2, 1]), numpy.array([0, 3, 4])
    a = scipy.sparse.csr_matrix((numpy.array([1.0, 2.0, 3.0, 4.0]), index, starts), shape=(2, 4))
    assert not a.has_sorted_indices
    plan = einsparse.plan("y[m] = A[m,k] * x[k]", A=a, x=numpy.ones(4))
    numpy.testing.assert_array_equal(plan.run(x=numpy.array([1.0, 10.0, 100.0, 1000.0])), [1302.0, 40.0])
    plan.update_values(A=numpy.array([5.0, 6.0, 7.0, 8.0]))
    numpy.testing.assert_array_equal(plan.run(x=numpy.array([1.0, 10.0, 100.0, 1000.0])), [5706.0, 80.0])


def test_a_matrix_from_a_network_may_begin_anywhere():
    a, b = matrix(), dense(29, 8)

    def moved(array):
        place = numpy.empty(array.nbytes + 1, "u1")[1:].view(array.dtype)
        place[:] = array
        assert not place.flags.aligned
        return place

    away = scipy.sparse.csr_matrix((moved(a.data), moved(a.indices), moved(a.indptr)), a.shape)
    away.data, away.indices, away.indptr = moved(a.data), moved(a.indices), moved(a.indptr)
    numpy.testing.assert_array_equal(einsparse.einsum(SPMM, A=away, B=b), a @ b)
    with pytest.raises(ValueError, match="`B`: address"):
        einsparse.einsum(SPMM, A=a, B=moved(b.ravel()).reshape(b.shape))


def test_an_output_is_written_in_place():
    a, b = matrix(), dense(29, 8)
    wide = numpy.full((37, 12), 9, "f4")
    plan = einsparse.plan(SPMM, A=a, B=b, C=wide[:, :8])
    assert plan.run(B=b, out=wide[:, :8]).base is wide
    numpy.testing.assert_array_equal(wide[:, :8], a @ b)
    assert (wide[:, 8:] == 9).all()


def test_accumulation_factors_and_index_arrays():
    a, b, c = matrix(), dense(29, 8), dense(37, 8, seed=3)
    text = "C[m,n] += s * A[m,k] * B[k,n]"
    before = c.copy()
    numpy.testing.assert_array_equal(einsparse.einsum(text, A=a, B=b, C=c, s=numpy.float32(2)), before + 2 * (a @ b))
    numpy.testing.assert_array_equal(c, before)
    plan = einsparse.plan(text, A=a, B=b, s=2.0)
    assert plan.accumulates and plan.operands == ["B"]
    with pytest.raises(ValueError, match="`C`.*out"):
        plan.run(B=b)
    plan.run(B=b, out=c, s=3.0)
    numpy.testing.assert_array_equal(c, before + 3 * (a @ b))
    rows = numpy.array([5, 0, 7])
    gathered = einsparse.einsum("Y[p,n] = B[R[p],n]", R=rows, B=b)
    numpy.testing.assert_array_equal(gathered, b[rows])


def test_read_only_arrays_are_read_and_not_written():
    a, b, c = matrix(), dense(29, 8), numpy.zeros((37, 8), "f4")
    b.flags.writeable = c.flags.writeable = False
    plan = einsparse.plan(SPMM, A=a, B=b)
    numpy.testing.assert_array_equal(plan.run(B=b), a @ b)
    with pytest.raises(ValueError, match="`C` is read-only"):
        plan.run(B=b, out=c)


def test_ours_goes_out_without_a_copy():
    class Opaque:
        """An array of a library that nobody knows."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    a, b = matrix(), dense(29, 8)
    c = einsparse.einsum(SPMM, A=a, B=Opaque(b))
    assert type(c) is einsparse.Tensor and c.shape == (37, 8) and c.dtype == "float32"
    assert c.__dlpack_device__() == (1, 0)
    first, second = numpy.from_dlpack(c), numpy.from_dlpack(c)
    assert first.ctypes.data == second.ctypes.data
    del c
    gc.collect()
    numpy.testing.assert_array_equal(first, a @ b)
    with pytest.raises(BufferError):
        einsparse.einsum(SPMM, A=a, B=Opaque(b)).__dlpack__(copy=True)
    # A capsule that nobody takes.
    einsparse.einsum(SPMM, A=a, B=Opaque(b)).__dlpack__()


def test_operands_are_given_back():
    import sys

    a, b = matrix(), dense(29, 8)
    plan = einsparse.plan(SPMM, A=a, B=b)
    before = sys.getrefcount(b)
    for _ in range(10):
        plan.run(B=b)
    assert sys.getrefcount(b) == before


def test_one_sparse_operand_serves_several_plans():
    a = einsparse.sparse(matrix(), "groupcoo:4")
    assert (a.format, a.shape, a.nnz) == ("groupcoo:4", (37, 29), matrix().nnz)
    for columns in (1, 8):
        b = dense(29, columns)
        numpy.testing.assert_array_equal(einsparse.einsum(SPMM, A=a, B=b), matrix() @ b)


def test_a_plan_explains_itself():
    text = einsparse.explain(SPMM, A=matrix(), B=dense(29, 8), format="groupcoo:4")
    assert "C[m,n] = A[m,k] * B[k,n]" in text and "AV[p,q]" in text and "refused" in text


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (dict(expression="C[m,n] = A[m,k * B[k,n]"), ValueError, "expected"),
        (dict(B=dense(28, 8)), ValueError, "`k`.*29.*28"),
        (dict(B=dense(29, 8, "f8")), ValueError, "`A`.*type"),
        (dict(B=dense(8, 29).T), ValueError, r"`B`.*strides \[1, 29\]"),
        (dict(B="text"), TypeError, "`B`"),
        (dict(format="csv"), ValueError, "csv"),
        (dict(variant="none"), ValueError, "none"),
        (dict(A=scipy.sparse.coo_matrix(([1.0, 2.0], ([0, 0], [1, 1])), (37, 29))), ValueError, "more than once"),
    ],
)
def test_mistakes_are_exceptions_with_the_words_of_the_library(wrong, error, words):
    given = {"expression": SPMM, "A": matrix(), "B": dense(29, 8), **wrong}
    with pytest.raises(error, match=words):
        einsparse.plan(given.pop("expression"), **given)


def test_mistakes_of_a_run_are_exceptions():
    a, b = matrix(29, 29), dense(29, 8)
    plan = einsparse.plan(SPMM, A=a, B=b)
    with pytest.raises(ValueError, match=r"\[29, 8\].*\[29, 4\]"):
        plan.run(B=dense(29, 4))
    with pytest.raises(ValueError, match="overlap"):
        plan.run(B=b, out=b)
    with pytest.raises(ValueError, match="`A`.*update_values"):
        plan.run(A=einsparse.sparse(a), B=b)
    with pytest.raises(ValueError, match="`B`.*given"):
        plan.run()
    with pytest.raises(ValueError, match="values"):
        plan.update_values(A=numpy.ones(3, "f4"))
    with pytest.raises(TypeError, match="a.data"):
        plan.update_values(A=a)
    with pytest.raises(ValueError, match="`Z`"):
        plan.update_values(Z=a.data)

@pytest.mark.parametrize("names", [("out", "stream"), ("format", "tf32"), ("operands", "expression"), ("by_name", "self")])
def test_operands_of_any_name(names):
    first, second = names
    a, b = matrix(), dense(29, 8)
    text = f"C[m,n] = {first}[m,k] * {second}[k,n]"
    numpy.testing.assert_array_equal(einsparse.einsum(text, {first: a, second: b}), a @ b)
    plan = einsparse.plan(text, {first: a, second: b})
    out = numpy.empty((37, 8), "f4")
    assert plan.run({second: b}, out=out) is out
    numpy.testing.assert_array_equal(out, a @ b)
    plan.update_values({first: 2 * a.data})
    numpy.testing.assert_array_equal(plan.run({second: b}), 2 * (a @ b))
    assert first in einsparse.explain(text, {first: a, second: b})


def test_an_operand_is_given_once():
    a, b = matrix(), dense(29, 8)
    for call in (
        lambda: einsparse.einsum(SPMM, {"A": a, "B": b}, B=b),
        lambda: einsparse.plan(SPMM, A=a, B=b).run({"B": b}, B=b),
        lambda: einsparse.plan(SPMM, A=a, B=b).update_values({"A": a.data}, A=a.data),
    ):
        with pytest.raises(ValueError, match="operand `[AB]`: is given twice"):
            call()
    with pytest.raises(TypeError, match="in a dict.*csr_matrix|in a dict.*csr_array"):
        einsparse.einsum(SPMM, a)
    with pytest.raises(ValueError, match="`C`.*`out`"):
        einsparse.plan(SPMM, A=a, B=b).run(B=b, C=dense(37, 8))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_indices_of_every_type(dtype):
    rows, v = numpy.array([2, 0, 1], dtype), dense(3, 1).ravel()
    numpy.testing.assert_array_equal(einsparse.einsum("C[p] = V[R[p]]", R=rows, V=v), v[rows])


@pytest.mark.parametrize("dtype, value", [("u4", 2**32 - 1), ("i8", 2**32 - 1), ("u8", 2**32 - 1), ("i4", 3), ("i1", 100)])
def test_an_index_past_its_axis_is_refused(dtype, value):
    rows = numpy.array([2, 0, value], dtype)
    with pytest.raises(ValueError, match=rf"R\[2\] = {value} .*axis 0 of `V\[R\[p\]\]`, which has 3"):
        einsparse.einsum("C[p] = V[R[p]]", R=rows, V=dense(3, 1).ravel())
    columns = numpy.array([0, value], dtype)
    a = scipy.sparse.csr_matrix((3, 29), dtype="f4")
    a.data, a.indices, a.indptr = numpy.ones(2, "f4"), columns, numpy.array([0, 2, 2, 2], dtype)
    if value > 28:
        with pytest.raises(ValueError, match=rf"operand `A`: .*\[1\] = {value} must be below 29"):
            einsparse.einsum(SPMM, A=a, B=dense(29, 8))


@pytest.mark.parametrize("dtype, value", [("i4", -1), ("i1", -1), ("i8", -1), ("i8", 2**32), ("u8", 2**63)])
def test_an_index_of_more_than_32_bits_is_refused(dtype, value):
    with pytest.raises(ValueError, match=rf"operand `R`: index array \[1\] = {value}, .*below 4294967295"):
        einsparse.einsum("C[p] = V[R[p]]", R=numpy.array([2, value], dtype), V=dense(3, 1).ravel())
    a = scipy.sparse.csr_matrix((3, 29), dtype="f4")
    a.data, a.indices, a.indptr = numpy.ones(2, "f4"), numpy.array([0, value], dtype), numpy.array([0, 2, 2, 2])
    with pytest.raises(ValueError, match=rf"operand `A`: indices \[1\] = {value}"):
        einsparse.einsum(SPMM, A=a, B=dense(29, 8))
    with pytest.raises(ValueError, match=rf"operand `matrix`: indices \[1\] = {value}"):
        einsparse.sparse(a)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "bool", "complex64"])
def test_types_are_named(dtype):
    a, b = matrix(), dense(29, 8)
    words = rf"`B`: has elements of {dtype}; accepted are float32, float64, float16 and bfloat16"
    with pytest.raises(ValueError, match=words):
        einsparse.plan(SPMM, A=a, B=b.astype(dtype))
    a.data = a.data.astype(dtype)
    for call in (lambda: einsparse.einsum(SPMM, A=a, B=b), lambda: einsparse.sparse(a)):
        with pytest.raises(ValueError, match=rf"has elements of {dtype}; accepted are"):
            call()
    if dtype in ("bool", "complex64"):
        with pytest.raises(ValueError, match=rf"`R`: index array of {dtype}; accepted are integers"):
            einsparse.einsum("C[p] = V[R[p]]", R=numpy.zeros(2, dtype), V=dense(3, 1).ravel())
    with pytest.raises(ValueError, match="`R`: index array of float32; accepted are integers"):
        einsparse.einsum("C[p] = V[R[p]]", R=numpy.zeros(2, "f4"), V=dense(3, 1).ravel())


def test_names_of_messages_are_those_of_the_caller():
    a, b, s = matrix(), dense(29, 8), 2.0
    plan = einsparse.plan("C[m,n] = s * A[m,k] * B[k,n] + v[n]", A=a, B=b, s=s, v=dense(8, 1).ravel())
    with pytest.raises(ValueError, match="operand `v`: was not given"):
        plan.run(B=b)
    with pytest.raises(ValueError, match="operand `B`: was not given"):
        plan.run(v=dense(8, 1).ravel())
    with pytest.raises(ValueError, match="`A`"):
        einsparse.plan(SPMM, B=b)


class Learned:
    """A tensor of PyTorch that gradients are wanted of."""

    requires_grad = True

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        return getattr(self.of, name)


def test_gradients_are_refused_at_every_entry():
    a, b, c = matrix(), dense(29, 8), dense(37, 8)
    plan = einsparse.plan(SPMM, A=a, B=b)
    sparse = Learned(LikePyTorch(a))
    calls = {
        "A": [
            lambda: einsparse.einsum(SPMM, A=sparse, B=b),
            lambda: einsparse.plan(SPMM, A=sparse, B=b),
            lambda: einsparse.explain(SPMM, A=sparse, B=b),
            lambda: einsparse.Plan(SPMM, {"A": einsparse.sparse(a), "B": b}).update_values({"A": Learned(a.data)}),
            lambda: plan.update_values(A=Learned(a.data)),
        ],
        "matrix": [lambda: einsparse.sparse(sparse)],
        "B": [
            lambda: einsparse.einsum(SPMM, A=a, B=Learned(b)),
            lambda: einsparse.plan(SPMM, A=a, B=Learned(b)),
            lambda: einsparse.explain(SPMM, A=a, B=Learned(b)),
            lambda: plan.run(B=Learned(b)),
        ],
        "C": [
            lambda: plan.run(B=b, out=Learned(c)),
            lambda: einsparse.einsum("C[m,n] += A[m,k] * B[k,n]", A=a, B=b, C=Learned(c)),
        ],
    }
    for name, calls in calls.items():
        for call in calls:
            with pytest.raises(ValueError, match=rf"operand `{name}`: requires a gradient.*`{name}.detach\(\)`"):
                call()
    numpy.testing.assert_array_equal(plan.run(B=b), a @ b)
