"""Einsums over sparse tensors on NVIDIA GPUs or the CPU.

    c = einsparse.einsum("C[m,n] = A[m,k] * B[k,n]", A=a, B=b)

Sparse operands are SciPy's or PyTorch's matrices, or what `sparse` makes of them. Dense ones are arrays with
`__dlpack__` (NumPy, PyTorch, CuPy): they are read where they lie, and decide whether the GPU or the CPU computes. Their
rows are contiguous. Arrays of integers are index arrays, and Python's numbers are factors.
"""

from ._einsparse import Plan, Sparse, Tensor, __version__

__all__ = ["Plan", "Sparse", "Tensor", "einsum", "explain", "plan", "sparse", "__version__"]


def plan(
    expression,
    operands=None,
    /,
    *,
    format=None,
    tf32=False,
    strict_zeros=False,
    static_weights=False,
    variant=None,
    alignment=None,
    **named,
):
    """Plans an expression for operands of these formats, shapes and strides; `Plan.run` runs it, many times.

    Operands are given by their names, or in a dict where a name is one of the words below. One that requires a gradient
    is refused: there are none yet, so give `operand.detach()`.

    format: the format of sparse operands, such as "groupcoo" or "bsr:32x32", or a dict by their names
    tf32: f32 is rounded to TF32 in front of the multiplication, for Tensor Cores
    strict_zeros: no implicit zero is ever multiplied
    static_weights: the plan may keep the values of the sparse operand in a faster form; `update_values` takes new ones
    variant: one kernel by its name
    alignment: elements to which later operands are aligned, if less than those given

    ValueError says what does not fit, RuntimeError what the GPU's driver refused.
    """
    return Plan(
        expression,
        _bound(operands, named, format),
        tf32=tf32,
        strict_zeros=strict_zeros,
        static_weights=static_weights,
        variant=variant,
        alignment=alignment,
    )


def einsum(expression, operands=None, /, *, format=None, stream=None, **named):
    """Runs an expression once and returns the output, an array of the library that the dense operands are of.

    For `+=` the output is among the operands and is added to in a copy. Of many runs `plan` does the first part once.
    """
    bound = _bound(operands, named, format)
    made = Plan(expression, bound)
    out = None
    if made.accumulates and made.out_name in bound:
        start = bound[made.out_name]
        out = start.clone() if hasattr(start, "clone") else start.copy()
    return made.run({name: bound[name] for name in made.operands}, out=out, stream=stream)


def explain(expression, operands=None, /, **options):
    """How an expression would run: its indirect form, the kernel, its rivals, and why others were refused.

    Takes what `plan` takes.
    """
    return plan(expression, operands, **options).explain()


def sparse(matrix, format=None):
    """A sparse operand of SciPy's or PyTorch's matrix, converted to `format` and checked once, for several plans."""
    return _sparse("matrix", matrix, format)


def _sparse(name, matrix, format):
    if isinstance(matrix, Sparse):
        if format is not None:
            raise ValueError(f"operand `{name}`: is {matrix.format} already: give the format where it is made")
        return matrix
    kind, index, values = _parts(name, matrix)
    device, number = values.__dlpack_device__()
    # They are copied in any case: those that came over a network may begin anywhere.
    index, values = [_aligned(array) for array in index], _aligned(values)
    return Sparse(kind, matrix, index, values, format, number if device in (2, 13) else None, name)


def _bound(operands, named, format):
    operands = {} if operands is None else operands
    if not isinstance(operands, dict):
        raise TypeError(f"operands are given by their names or in a dict, not as a {type(operands).__name__}")
    for name in operands.keys() & named.keys():
        raise ValueError(f"operand `{name}`: is given twice, in the dict and as a keyword")
    bound = {**operands, **named}
    for name, operand in bound.items():
        own = format.get(name) if isinstance(format, dict) else format
        if _is_sparse(operand):
            bound[name] = _sparse(name, operand, own)
    return bound


def _is_sparse(operand):
    layout = str(getattr(operand, "layout", ""))
    return layout.startswith("torch.sparse_") or (hasattr(operand, "format") and hasattr(operand, "tocsr"))


def _aligned(array):
    return array if getattr(getattr(array, "flags", None), "aligned", True) else array.copy()


def _parts(name, matrix):
    """Kind, index arrays and values of a matrix, by the names that SciPy and PyTorch have for them."""
    layout = str(getattr(matrix, "layout", ""))
    if layout.startswith("torch.sparse_"):
        kind = layout[len("torch.sparse_") :]
        matrix = matrix.detach()
        if kind == "coo":
            matrix = matrix.coalesce()
            return kind, list(matrix.indices()), matrix.values()
        if kind == "csc":
            return kind, [matrix.ccol_indices(), matrix.row_indices()], matrix.values()
        return kind, [matrix.crow_indices(), matrix.col_indices()], matrix.values()
    if not hasattr(matrix, "tocsr"):
        raise TypeError(f"operand `{name}`: a {type(matrix).__name__} is no sparse matrix of SciPy or PyTorch")
    if matrix.format not in ("csr", "csc", "bsr", "coo"):
        matrix = matrix.tocsr()
    if matrix.format == "coo":
        return "coo", list(getattr(matrix, "coords", None) or (matrix.row, matrix.col)), matrix.data
    return matrix.format, [matrix.indptr, matrix.indices], matrix.data
