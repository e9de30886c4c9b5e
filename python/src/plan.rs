//! Plans: created once from an expression and its operands, run many times.

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use einsparse::einsum::{Access, Einsum, IndexExpr};
use einsparse::{Context, Options, Precision, Weights, ZerosRule};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFloat, PyInt, PyTuple};

use crate::exchange::{Foreign, Order, gpu_of, hold, indices, is_of, take};
use crate::sparse::{Slots, Sparse};
use crate::typed::{Facts, Of, Typed};
use crate::{raise, unknown_type, with_element};

/// Expression bound to formats, shapes and a kernel.
///
/// `einsparse.plan` creates it.
#[pyclass(frozen, module = "einsparse")]
pub struct Plan {
    of: Box<dyn Typed>,
    /// Value orders of the sparse operands.
    slots: Vec<(String, Slots)>,
    facts: Facts,
    context: Context,
    gpu: Option<u32>,
    /// Names of the dense operands that `run` requires.
    #[pyo3(get)]
    operands: Vec<String>,
}

/// Extents and elements.
type IndexArray = (Vec<usize>, Vec<u32>);

/// Operands by kind.
#[derive(Default)]
pub struct Given<'py> {
    pub sparse: Vec<(String, Bound<'py, Sparse>)>,
    pub dense: Vec<(String, Bound<'py, PyAny>)>,
    pub indices: Vec<(String, IndexArray)>,
    pub numbers: Vec<(String, f64)>,
    /// Element type of the dense operands, or of the first sparse operand if no dense operand exists.
    pub dtype: Option<DLDataType>,
}

/// Collects the operands of a dict and of keywords by name.
fn named<'py>(
    dicts: [Option<&Bound<'py, PyDict>>; 2],
) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let mut all: Vec<(String, Bound<'py, PyAny>)> = Vec::new();
    for (name, object) in dicts.into_iter().flatten().flatten() {
        let name: String = name.extract()?;
        if all.iter().any(|(own, _)| *own == name) {
            return Err(PyValueError::new_err(format!(
                "operand `{name}`: is given twice, in the dict and as a keyword"
            )));
        }
        all.push((name, object));
    }
    Ok(all)
}

impl<'py> Given<'py> {
    fn of(operands: Vec<(String, Bound<'py, PyAny>)>) -> PyResult<Self> {
        let mut given = Given::default();
        for (name, object) in operands {
            given.add(name, object)?;
        }
        Ok(given)
    }

    fn add(&mut self, name: String, object: Bound<'py, PyAny>) -> PyResult<()> {
        if let Ok(sparse) = object.cast::<Sparse>() {
            self.sparse.push((name, sparse.clone()));
        } else if object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>() {
            self.numbers.push((name, object.extract()?));
        } else if object.hasattr(intern!(object.py(), "__dlpack__"))? {
            self.dense.push((name, object));
        } else if let Ok(number) = object.extract() {
            // NumPy scalars.
            self.numbers.push((name, number));
        } else {
            let kind = object.get_type();
            return Err(PyTypeError::new_err(format!(
                "operand `{name}`: a {kind} is no sparse matrix, has no `__dlpack__`, and is no number"
            )));
        }
        Ok(())
    }

    /// Moves index arrays from `dense` to `indices`, and returns the element type of the others.
    fn sort_out(&mut self, e: &Einsum) -> PyResult<DLDataType> {
        let [mut tensors, mut arrays] = [Vec::new(), Vec::new()];
        for access in std::iter::once(&e.out).chain(e.right()) {
            tensors.push(access.tensor.as_str());
            access.for_each_access(&mut |access| arrays.extend(index_arrays(access)));
        }
        for (name, object) in std::mem::take(&mut self.dense) {
            let own = take(&object, &name, gpu_of(&object, &name)?.map(|_| Order::NONE))?;
            let own = own.dtype()?;
            let whole = matches!(own.code, DLDataTypeCode::INT | DLDataTypeCode::UINT);
            if whole && tensors.contains(&name.as_str()) {
                return Err(unknown_type(&name, own));
            }
            if whole || arrays.contains(&name.as_str()) {
                let found = indices(&object, (&name, "index array"))?;
                self.indices.push((name, found));
            } else {
                self.dtype.get_or_insert(own);
                self.dense.push((name, object));
            }
        }
        let of_sparse = || self.sparse.first().map(|(_, sparse)| sparse.get().dtype);
        self.dtype = self.dtype.or_else(of_sparse);
        self.dtype.ok_or_else(|| PyValueError::new_err("no operand has values"))
    }
}

/// Returns the names of the arrays in the brackets of an access.
fn index_arrays(access: &Access) -> impl Iterator<Item = &str> {
    access.indices.iter().filter_map(|index| match index {
        IndexExpr::Access(array) => Some(array.tensor.as_str()),
        _ => None,
    })
}

#[pymethods]
impl Plan {
    // Python callers pass options by keyword.
    #[allow(clippy::too_many_arguments)]
    #[new]
    #[pyo3(signature = (
        expression, operands, *, tf32=false, strict_zeros=false, static_weights=false, variant=None, alignment=None
    ))]
    fn new(
        py: Python<'_>,
        expression: &str,
        operands: &Bound<'_, PyDict>,
        tf32: bool,
        strict_zeros: bool,
        static_weights: bool,
        variant: Option<String>,
        alignment: Option<usize>,
    ) -> PyResult<Self> {
        let mut given = Given::of(named([Some(operands), None])?)?;
        let dtype = given.sort_out(&Einsum::parse(expression).map_err(raise)?)?;
        let gpu = match (given.dense.first(), given.sparse.first()) {
            (Some((name, object)), _) => gpu_of(object, name)?,
            (None, sparse) => sparse.and_then(|(_, sparse)| sparse.get().gpu),
        };
        let options = Options::default()
            .precision(if tf32 { Precision::Tf32 } else { Precision::Full })
            .zeros(if strict_zeros { ZerosRule::Strict } else { ZerosRule::Dense })
            .weights(if static_weights { Weights::Static } else { Weights::EachRun })
            .variant(variant.as_deref())
            .alignment(alignment);
        let context = crate::context(gpu)?;
        let slots = given.sparse.iter();
        let slots =
            slots.map(|(name, sparse)| (name.clone(), sparse.get().order.clone())).collect();
        let mut names: Vec<String> = given.dense.iter().map(|(name, _)| name.clone()).collect();
        let first = given.dense.first().map(|(name, _)| name.clone());
        let of = with_element!(dtype, first.as_deref().unwrap_or("values"), T => {
            let of = Of::<T>::new(py, (&context, expression), given, &options)?;
            Ok(Box::new(of) as Box<dyn Typed>)
        })?;
        let facts = of.facts();
        names.retain(|name| *name != facts.out);
        Ok(Plan { of, slots, facts, context, gpu, operands: names })
    }

    /// Runs the plan and returns the output.
    ///
    /// Sparse operands and index arrays are those of the plan, and so are numbers that are not given.
    ///
    /// Parameters
    /// ----------
    /// operands : dict, optional
    ///     Dense operands and numbers by name, for names that are `out` or `stream`.
    /// out : array, optional
    ///     Array for the output. The default is a new array of the library of the operands.
    /// stream : int or stream, optional
    ///     CUDA stream on which a GPU's work is queued: a handle, or a stream of PyTorch or CuPy. The default is the
    ///     current stream of PyTorch or CuPy for their operands, otherwise the default stream.
    /// **by_name
    ///     Dense operands and numbers by name.
    ///
    /// Returns
    /// -------
    /// array
    ///     `out`, or the new array.
    #[pyo3(signature = (operands=None, /, *, out=None, stream=None, **by_name))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        operands: Option<&Bound<'py, PyDict>>,
        out: Option<Bound<'py, PyAny>>,
        stream: Option<Bound<'py, PyAny>>,
        by_name: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given = Given::of(named([operands, by_name])?)?;
        if let Some((name, _)) = given.sparse.first() {
            return Err(PyValueError::new_err(format!(
                "operand `{name}` is part of the plan; `update_values` takes new values of it"
            )));
        }
        let name = &self.facts.out;
        if given.dense.iter().any(|(own, _)| own == name) {
            return Err(PyValueError::new_err(format!(
                "operand `{name}` is the output of the plan: give it as `out`"
            )));
        }
        let first = given.dense.first().map(|(_, object)| object.clone());
        let like = first.or_else(|| out.clone());
        let order =
            self.gpu.map(|gpu| Order::of(stream.as_ref(), like.as_ref(), gpu)).transpose()?;
        let (out, target) = self.output(py, out, like.as_ref(), order)?;
        let to = target.range()?;
        let mut dense = Vec::with_capacity(given.dense.len());
        for (own, object) in given.dense {
            let foreign = take(&object, &own, order)?;
            hold(&object, order)?;
            let from = foreign.range()?;
            if from.start < to.end && to.start < from.end {
                return Err(PyValueError::new_err(format!(
                    "operand `{own}` and the output `{name}` overlap in memory, or lie among each other"
                )));
            }
            dense.push((own, foreign));
        }
        let stream = match order {
            Some(order) => order.stream(),
            None => self.context.stream().map_err(raise)?,
        };
        hold(&out, order)?;
        self.of.run(py, &given.numbers, dense, target, &stream)?;
        Ok(out)
    }

    /// Replaces values of the sparse operands; the patterns do not change.
    ///
    /// Values on a GPU are copied there, after the work on the current stream of PyTorch or CuPy. They pass through the
    /// host if the format was converted, or if it has blocks that extend past the edge of the matrix.
    ///
    /// Parameters
    /// ----------
    /// operands : dict, optional
    ///     New values by name, in the order of the values that the plan was given (`a.data`, `a.values()`).
    /// **by_name
    ///     New values by name.
    #[pyo3(signature = (operands=None, /, **by_name))]
    fn update_values(
        &self,
        py: Python<'_>,
        operands: Option<&Bound<'_, PyDict>>,
        by_name: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        for (name, array) in named([operands, by_name])? {
            let own = self.slots.iter().find(|(own, _)| *own == name);
            let (_, slots) = own.ok_or_else(|| {
                PyValueError::new_err(format!("operand `{name}`: is no sparse operand of the plan"))
            })?;
            if !array.hasattr("__dlpack__")? {
                let kind = array.get_type();
                return Err(PyTypeError::new_err(format!(
                    "operand `{name}`: an array of its values is wanted (`a.data`, `a.values()`), not a {kind}"
                )));
            }
            self.of.update_values(py, (&name, slots), &array)?;
        }
        Ok(())
    }

    /// Returns the expression, its indirect form, the kernel, the other candidates, and why kernels were refused.
    fn explain(&self) -> String {
        self.of.explain()
    }

    fn __repr__(&self) -> String {
        format!("einsparse.Plan({}, on {})", self.facts.variant, self.context)
    }

    /// Name of the output.
    #[getter]
    fn out_name(&self) -> &str {
        &self.facts.out
    }

    /// Shape of the output.
    #[getter]
    fn out_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.facts.shape)
    }

    /// Whether runs add to the output (`+=`). If so, `run` requires `out`.
    #[getter]
    fn accumulates(&self) -> bool {
        self.facts.accumulates
    }

    /// Name of the kernel, or `cpu` without a GPU.
    #[getter]
    fn variant(&self) -> &str {
        self.facts.variant
    }
}

impl Plan {
    /// Returns the given output, or a new one, as a writable tensor.
    fn output<'py>(
        &self,
        py: Python<'py>,
        given: Option<Bound<'py, PyAny>>,
        like: Option<&Bound<'py, PyAny>>,
        order: Option<Order>,
    ) -> PyResult<(Bound<'py, PyAny>, Foreign)> {
        let name = &self.facts.out;
        let (out, order) = match given {
            Some(out) => (out, order),
            None => (self.fresh(py, like)?, order.map(|_| Order::NONE)),
        };
        let target = take(&out, name, order)?;
        match target.is_read_only() {
            true => Err(PyValueError::new_err(format!("operand `{name}` is read-only"))),
            false => Ok((out, target)),
        }
    }

    /// Creates an output of the library of `like`.
    fn fresh<'py>(
        &self,
        py: Python<'py>,
        like: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Facts { out: name, shape, .. } = &self.facts;
        if self.facts.accumulates {
            return Err(PyValueError::new_err(format!(
                "operand `{name}`: is added to by `+=` and must be given as `out`"
            )));
        }
        let shape = PyTuple::new(py, shape)?;
        if let Some(like) = like {
            if is_of(like, "torch")? {
                return like.call_method1(intern!(py, "new_empty"), (shape,));
            }
            static NUMPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            static CUPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            for (package, empty) in [("numpy", &NUMPY), ("cupy", &CUPY)] {
                if is_of(like, package)? {
                    let dtype = like.getattr(intern!(py, "dtype"))?;
                    return empty.import(py, package, "empty")?.call1((shape, dtype));
                }
            }
        }
        Ok(Bound::new(py, self.of.zeros()?)?.into_any())
    }
}
