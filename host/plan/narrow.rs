//! Plans over 8-bit operands, whose output is wider.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use einsparse_formats::{AnySparse, E4m3, E5m2, Element};
use einsparse_kernels::abi::Operation;
use einsparse_kernels::table::{Row, kernels};

use super::bind::{device_tensor, elsewhere, find, scalar_value, wrong};
use crate::context::Context;
use crate::cpu;
use crate::device::{Device, Stream};
use crate::einsum::{Activation, Einsum};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, Orientation, SpmmForm, rewrite, rewrite_dense};
use crate::launch::{Extents, Matrix, Panels, RawSpmm};
use crate::registry::{Dtype, Scalar, block_of, takes_blocks};
use crate::tensor::{Operand, SparseTensor, Tensor};

/// An element type of 8 bits: [`E4m3`], [`E5m2`] or `i8`.
pub trait Narrow: Scalar {
    /// What the CPU sums in: f32, or f64, which is exact for integers.
    type Wide: Element;
}

impl Narrow for E4m3 {
    type Wide = f32;
}
impl Narrow for E5m2 {
    type Wide = f32;
}
impl Narrow for i8 {
    type Wide = f64;
}

/// Terms of a row that an i32 holds the sum of, whatever 8-bit integers they are products of.
const MOST_TERMS: u64 = (1 << 17) - 1;

/// An expression over 8-bit operands, bound to formats, shapes and a kernel. The output is f16, bf16 or f32; of `i8`
/// operands also i32. A scalar factor undoes the quantisation.
///
/// fp8 is summed in f32. Hopper's Tensor Cores keep about 14 bits of a sum of fp8 products, so every 128 terms of it are added to
/// f32 registers. `i8` is summed exactly: rows of more than 131071 stored terms are refused.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Bsr, BsrPattern, Dense, E4m3, Element};
/// let ctx = Context::cpu();
/// let pattern = BsrPattern::new(2, 4, (2, 2), vec![0, 1], vec![1])?;
/// let a = [1.0, 0.5, 2.0, -3.0].map(E4m3::from_f64);
/// let a = ctx.upload(Bsr::new(pattern, a.to_vec())?)?;
/// let b = Dense::from_fn(vec![3, 4], |i| E4m3::from_f64((i[0] + i[1]) as f64))?; // [n, k]
/// let b = ctx.upload_dense(&b)?;
/// let operands = [("A", (&a).into()), ("B", (&b).into()), ("s", 0.25.into())];
/// let plan = ctx.plan_narrow::<E4m3, f32>("C[m,n] = s * A[m,k] * B[n,k]", &operands)?;
/// let mut c = ctx.zeros::<f32>(plan.out_shape())?;
/// let stream = ctx.stream()?;
/// plan.run(&operands, &mut c, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(c.to_dense()?.values(), &[0.875, 1.25, 1.625, -1.25, -1.5, -1.75]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct NarrowPlan<In, Out> {
    context: Context,
    einsum: Einsum,
    indirect: IndirectEinsum,
    out_shape: Vec<usize>,
    shapes: BTreeMap<String, Vec<usize>>,
    exec: Exec,
    types: PhantomData<(In, Out)>,
}

#[derive(Debug)]
enum Exec {
    Cpu,
    Gpu(Box<Panels>, SpmmForm),
}

impl Context {
    /// Plans an expression over operands of 8 bits into an output of type `Out`. On a GPU `C[m,n] (= | +=) A[m,k] * B[n,k]` with A
    /// made of blocks of 32 x 32, or of multiples of 64 x 64, and B dense with rows of multiples of 16 elements: the Tensor
    /// Cores want both operands contiguous along k. ReLU or GELU and scalar factors are allowed; for an i32 output
    /// factors are whole numbers, and there is no activation.
    ///
    /// # Errors
    /// What parsing and checking find; [`Error::NoKernel`] for an output type that has no kernel, and on a GPU for another form,
    /// format or order of axes; [`Error::Overflow`] for rows of `i8` that i32 may not hold the sums of.
    pub fn plan_narrow<In: Narrow, Out: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, In>)],
    ) -> Result<NarrowPlan<In, Out>> {
        let einsum = Einsum::parse(text)?;
        let shapes: BTreeMap<String, Vec<usize>> = operands
            .iter()
            .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
            .collect();
        let out_shape = einsum.check(&shapes)?.out().to_vec();
        let indirect = match super::sparse_among(&einsum, operands)? {
            Some((name, format)) => rewrite(&einsum, name, &format)?,
            None => rewrite_dense(&einsum)?,
        };
        let refuse = |reason: String| Error::NoKernel {
            indirect: indirect.to_string(),
            tried: vec![Refusal {
                name: "narrow".into(),
                reason,
            }],
        };
        output_of::<In, Out>(&einsum).map_err(refuse)?;
        let exec = match self.device() {
            None => Exec::Cpu,
            Some(device) => gpu::<In, Out>(device, &indirect, operands, &out_shape)?,
        };
        Ok(NarrowPlan {
            context: self.clone(),
            einsum,
            indirect,
            out_shape,
            shapes,
            exec,
            types: PhantomData,
        })
    }
}

/// Why the output cannot be of this type.
fn output_of<In: Narrow, Out: Scalar>(einsum: &Einsum) -> std::result::Result<(), String> {
    match (In::DTYPE, Out::DTYPE) {
        (_, Dtype::F16 | Dtype::Bf16 | Dtype::F32) => Ok(()),
        (Dtype::Int8, Dtype::Int32) if einsum.epilogue.activation == Activation::Identity => Ok(()),
        (Dtype::Int8, Dtype::Int32) => Err("an int32 output has no activation".into()),
        (own, out) => Err(format!(
            "products of {} are f16, bf16 or f32, of int8 also int32, not {}",
            own.name(),
            out.name()
        )),
    }
}

/// The kernel for an expression, with its lists.
fn gpu<In: Narrow, Out: Scalar>(
    device: &Device,
    indirect: &IndirectEinsum,
    operands: &[(&str, Operand<'_, In>)],
    out_shape: &[usize],
) -> Result<Exec> {
    let refuse = |tried| Error::NoKernel {
        indirect: indirect.to_string(),
        tried,
    };
    let wanted = Orientation {
        dense_columns: true,
        ..Orientation::default()
    };
    let form = indirect.as_spmm().filter(|f| f.order == wanted && f.bias.is_none() && f.gate.is_none());
    let (Some(form), &[m, n]) = (form, out_shape) else {
        return Err(refuse(vec![Refusal {
            name: "narrow".into(),
            reason: "8-bit operands on a GPU: C[m,n] (=|+=) A[m,k] * B[n,k] with A made of blocks; \
                     Context::cpu() runs every expression"
                .into(),
        }]));
    };
    let Operand::Sparse(a) = find(operands, &form.sparse)? else {
        return Err(Error::Operand {
            name: form.sparse.clone(),
            reason: "upload it to the context before planning".into(),
        });
    };
    let block = block_of(&a.format());
    let row = choose(In::DTYPE, block, device.machine().wgmma > 0.0).map_err(refuse)?;
    let (Some(runs), Some(columns)) = (a.runs(), crate::strips::block_columns(a.host())) else {
        return Err(refuse(Vec::new()));
    };
    let terms = u64::from(runs.longest) * block.1 as u64;
    if In::DTYPE == Dtype::Int8 && terms > MOST_TERMS {
        return Err(Error::Overflow {
            what: "terms of a row of int8".into(),
            value: terms.into(),
            limit: MOST_TERMS.into(),
        });
    }
    let matrix = Matrix::Sparse {
        runs,
        columns,
        block,
        stored: a.host().slots() / (block.0 * block.1).max(1),
    };
    let k = a.shape()[1];
    let launch = Panels::new(device, row, form.clone(), Extents { m, k, n, items: 1 }, matrix, Out::DTYPE)?;
    Ok(Exec::Gpu(Box::new(launch), form))
}

/// The row whose pieces the blocks can be cut into, or why each row is none.
fn choose(
    dtype: Dtype,
    block: (usize, usize),
    hopper: bool,
) -> std::result::Result<&'static Row, Vec<Refusal>> {
    let mut refused = Vec::new();
    let rows = kernels()
        .iter()
        .filter(|row| row.operation == Operation::Narrow && row.dtype == dtype);
    for row in rows {
        let (pm, pk) = row.block;
        let reason = if !hopper {
            "is made of wgmma, which compute capability 9.0 has".into()
        } else if !takes_blocks(row, block, false) {
            let (bm, bk) = block;
            format!("is for {pm} x {pk} pieces, the operand has {bm} x {bk}")
        } else {
            return Ok(row);
        };
        refused.push(Refusal {
            name: row.name.into(),
            reason,
        });
    }
    Err(refused)
}

impl<In: Narrow, Out: Scalar> NarrowPlan<In, Out> {
    /// Shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.out_shape
    }

    /// The expression as parsed.
    pub fn einsum(&self) -> &Einsum {
        &self.einsum
    }

    /// The expression with the format written in.
    pub fn indirect(&self) -> &IndirectEinsum {
        &self.indirect
    }

    /// Name of the kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        match &self.exec {
            Exec::Cpu => "cpu",
            Exec::Gpu(launch, _) => launch.row().name,
        }
    }

    /// Device bytes this plan holds beside the operands.
    pub fn workspace_bytes(&self) -> usize {
        match &self.exec {
            Exec::Cpu => 0,
            Exec::Gpu(launch, _) => launch.bytes(),
        }
    }

    /// Runs on `stream` into `out`. On a GPU nothing is allocated and nothing waited for; the rules for several streams are
    /// those of [`Plan::run`](super::Plan::run).
    ///
    /// # Errors
    /// Operands of another shape, pattern or context than planned, a factor of an i32 output that is no whole number;
    /// output untouched.
    pub fn run(
        &self,
        operands: &[(&str, Operand<'_, In>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(operands, out)?;
        match &self.exec {
            Exec::Cpu => self.run_cpu(operands, out),
            Exec::Gpu(launch, form) => {
                if !stream.belongs_to(self.context.expect_device()?) {
                    return Err(elsewhere("stream"));
                }
                let raw = self.bind(launch, form, operands, out)?;
                // SAFETY: shapes, pattern and places were checked; the tensors are borrowed for the call, and
                // device memory is freed only after the work queued on the context.
                unsafe { launch.run(&raw, stream.raw()) }
            }
        }
    }

    /// Runs on raw device addresses and a raw stream, for users of other CUDA crates.
    ///
    /// # Safety
    /// As [`Plan::run_raw`](super::Plan::run_raw), with A and B of type `In` and C of type `Out`.
    ///
    /// # Errors
    /// As [`Plan::run_raw`](super::Plan::run_raw), and a factor of an i32 output that is no whole number.
    pub unsafe fn run_raw(&self, raw: &RawSpmm, stream: crate::driver::RawStream<'_>) -> Result<()> {
        self.context.expect_device()?;
        whole_factor::<Out>(raw.alpha)?;
        match &self.exec {
            Exec::Cpu => Ok(()),
            // SAFETY: the caller's promise.
            Exec::Gpu(launch, _) => unsafe { launch.run(raw, stream) },
        }
    }

    fn check(&self, operands: &[(&str, Operand<'_, In>)], out: &Tensor<Out>) -> Result<()> {
        let mut alpha = 1.0;
        for factor in &self.einsum.scalars {
            alpha *= scalar_value(operands, factor)?;
        }
        whole_factor::<Out>(alpha)?;
        let differ = |name: &str, planned: &[usize], found: &[usize]| Error::Shape {
            index: name.into(),
            left: format!("planned with {planned:?}"),
            right: format!("run with {found:?}"),
        };
        for (name, operand) in operands {
            let planned = self.shapes.get(*name).ok_or_else(|| Error::Operand {
                name: name.to_string(),
                reason: "is not part of the plan".into(),
            })?;
            if planned != operand.shape() {
                return Err(differ(name, planned, operand.shape()));
            }
        }
        if self.out_shape != out.shape() {
            return Err(differ(&self.einsum.out.tensor, &self.out_shape, out.shape()));
        }
        Ok(())
    }

    /// The values of a sparse tensor of the planned pattern.
    fn values_of(&self, launch: &Panels, form: &SpmmForm, a: &SparseTensor<In>) -> Result<u64> {
        let device = self.context.expect_device()?;
        let columns = crate::strips::block_columns(a.host());
        let same = Some(a.format()) == form.format
            && a.runs().is_some_and(|runs| launch.fits(runs, columns));
        match a.device().filter(|arrays| arrays.device.is_same(device)) {
            Some(arrays) if same => Ok(arrays.values.address()),
            _ => Err(Error::Operand {
                name: form.sparse.clone(),
                reason: "has not the pattern, the format or the context that was planned".into(),
            }),
        }
    }

    fn bind(
        &self,
        launch: &Panels,
        form: &SpmmForm,
        operands: &[(&str, Operand<'_, In>)],
        out: &Tensor<Out>,
    ) -> Result<RawSpmm> {
        let device = self.context.expect_device()?;
        let values = match find(operands, &form.sparse)? {
            Operand::Sparse(a) => self.values_of(launch, form, a)?,
            other => return Err(wrong(&form.sparse, "an uploaded sparse tensor", other)),
        };
        match find(operands, &form.dense)? {
            Operand::Dense(b) if b.device().is_some_and(|on| on.is_same(device)) => {}
            Operand::Dense(_) => return Err(elsewhere(&form.dense)),
            other => return Err(wrong(&form.dense, "an uploaded dense tensor", other)),
        }
        let (b, ldb) = device_tensor(operands, &form.dense)?;
        let name = &self.einsum.out.tensor;
        if !out.device().is_some_and(|on| on.is_same(device)) {
            return Err(elsewhere(name));
        }
        let mut alpha = 1.0;
        for factor in &form.scalars {
            alpha *= scalar_value(operands, factor)?;
        }
        Ok(RawSpmm {
            columns: 0,
            values,
            b,
            ldb,
            c: out.address().ok_or_else(|| elsewhere(name))?,
            ldc: out.leading(),
            bias: 0,
            gate: 0,
            ldg: 0,
            alpha,
        })
    }

    /// The operands widened, the expression as it is, one rounding.
    fn run_cpu(
        &self,
        operands: &[(&str, Operand<'_, In>)],
        out: &mut Tensor<Out>,
    ) -> Result<()> {
        let name = &self.einsum.out.tensor;
        let sparse = widened_sparse(operands);
        let dense = widened_dense(operands, name)?;
        let mut bound = cpu::Operands::new();
        for tensor in &sparse {
            bound.sparse(&self.indirect, tensor)?;
        }
        for (name, shape, strides, values) in &dense {
            bound.strided(name, shape, strides, values)?;
        }
        for (name, operand) in operands {
            match operand {
                Operand::Index(shape, data) => {
                    bound.index(name, shape, data)?;
                }
                Operand::Scalar(x) => {
                    bound.scalar(name, *x);
                }
                _ => {}
            }
        }
        let (shape, leading) = (out.shape().to_vec(), out.leading());
        let own = out.host_mut().ok_or_else(|| elsewhere(name))?;
        let mut wide: Vec<In::Wide> = own.iter().map(|x| In::Wide::from_f64(x.to_f64())).collect();
        let output = cpu::Output::with_row_stride(&shape, leading, &mut wide)?;
        cpu::run(&self.indirect, &bound, output)?;
        let width = shape.last().copied().unwrap_or(1);
        for (to, from) in own.chunks_mut(leading.max(1)).zip(wide.chunks(leading.max(1))) {
            for (to, from) in to.iter_mut().zip(from).take(width) {
                *to = Out::from_f64(from.to_f64());
            }
        }
        Ok(())
    }
}

/// An i32 output is a whole multiple of whole sums.
fn whole_factor<Out: Scalar>(alpha: f64) -> Result<()> {
    if Out::DTYPE != Dtype::Int32 || alpha == f64::from(alpha as i32) {
        return Ok(());
    }
    Err(Error::Operand {
        name: "scalar factors".into(),
        reason: format!("their product is {alpha}, and an int32 output takes an int32"),
    })
}

fn widen<In: Narrow>(x: In) -> In::Wide {
    In::Wide::from_f64(x.to_f64())
}

fn widened_sparse<In: Narrow>(operands: &[(&str, Operand<'_, In>)]) -> Vec<AnySparse<In::Wide>> {
    let sparse = |operand: &Operand<'_, In>| match operand {
        Operand::Sparse(a) => Some(a.host().map_values(widen)),
        Operand::HostSparse(a) => Some(a.map_values(widen)),
        _ => None,
    };
    operands.iter().filter_map(|(_, o)| sparse(o)).collect()
}

/// Name, extents, strides and values.
type Widened<'a, T> = (&'a str, Vec<usize>, Vec<usize>, Vec<T>);

fn widened_dense<'a, In: Narrow>(
    operands: &[(&'a str, Operand<'_, In>)],
    output: &str,
) -> Result<Vec<Widened<'a, In::Wide>>> {
    let mut all = Vec::new();
    for (name, operand) in operands.iter().filter(|(name, _)| *name != output) {
        let (strides, values) = match operand {
            Operand::Dense(d) => (d.strides(), d.host().ok_or_else(|| elsewhere(name))?),
            Operand::HostDense(d) => (d.strides(), d.values()),
            _ => continue,
        };
        let values = values.iter().map(|&x| widen(x)).collect();
        all.push((*name, operand.shape().to_vec(), strides, values));
    }
    Ok(all)
}

impl<In: Narrow, Out: Scalar> fmt::Display for NarrowPlan<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exec {
            Exec::Cpu => write!(f, "cpu: {} on {}", self.indirect, self.context),
            Exec::Gpu(launch, _) => write!(
                f,
                "{}: {} into {}, {}",
                launch.row().name,
                In::NAME,
                Out::NAME,
                launch.describe()
            ),
        }
    }
}
