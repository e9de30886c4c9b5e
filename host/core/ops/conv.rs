//! Sparse 3-D convolution.

use std::sync::{Arc, OnceLock};

use crate::device::Stream;
use crate::driver::DeviceMemory;
use crate::error::{Error, Refusal, Result};
use crate::families::gather_gemm::conv::not_here;
use crate::families::gather_gemm::cpu::{HostConv, weight_gradient};
use crate::families::gather_gemm::kernel_map::{Arrays, KernelMap, MapArrays};
use crate::families::gather_gemm::turns;
use crate::families::gather_gemm::{
    ConvFinish, ConvProduct, RawConv, RawWeights, WeightGradient, conv_rows,
};
use crate::kernel::Queue;
use crate::machine::Machine;
use crate::offer::{Precision, ZerosRule, multiplied_as};
use crate::operator::{Operator, Run};
use crate::registry::{Dtype, Row, Scalar};
use crate::tensor::{AnyTensor, Tensor};

/// Options of a [`SparseConv3d`].
///
/// ```
/// use std::sync::Arc;
/// use einsparse::ops::{ConvOptions, KernelMap, SparseConv3d};
/// let ctx = einsparse::Context::cpu();
/// let map = Arc::new(KernelMap::submanifold(&ctx, &[[0, 0, 0, 0]], [3, 3, 3])?);
/// let options = ConvOptions { relu: true, ..ConvOptions::default() };
/// assert_eq!(SparseConv3d::<f32>::new(&map, [4, 8], &options)?.variant(), "cpu");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConvOptions {
    /// Precision of f32 products.
    pub precision: Precision,
    /// Applies ReLU to the output, after the bias is added.
    pub relu: bool,
    /// [`ZerosRule::Strict`] refuses kernels that multiply zeros with the weights in place of missing neighbors. All
    /// GPU kernels do this.
    pub zeros: ZerosRule,
    /// Uses only the kernel of this name for the forward pass.
    pub variant: Option<String>,
}

/// `Out[o,m] = Map[o,i,t] * In[i,c] * W[t,c,m]`: a sparse convolution in three dimensions over a [`KernelMap`] (Graham
/// et al., arXiv 1711.10275; Insum, section 2, states it as one indirect Einsum). `In` is `[inputs, c]`, `W` is
/// `[volume, c, m]`, `Out` is `[outputs, m]`. Sums are kept in f32. Every row of the output is overwritten once.
/// Results are bitwise deterministic.
///
/// ```
/// use std::sync::Arc;
/// use einsparse::formats::Dense;
/// use einsparse::ops::{ConvOptions, KernelMap, SparseConv3d};
/// let ctx = einsparse::Context::cpu();
/// let voxels = [[0, 0, 0, 0], [0, 0, 0, 1], [0, 5, 5, 5]];
/// let map = Arc::new(KernelMap::submanifold(&ctx, &voxels, [3, 3, 3])?);
/// let conv = SparseConv3d::<f32>::new(&map, [1, 1], &ConvOptions::default())?;
/// let input = ctx.upload_dense(&Dense::new([3, 1], vec![1.0, 10.0, 100.0])?)?;
/// let ones = ctx.upload_dense(&Dense::new([27, 1, 1], vec![1.0; 27])?)?;
/// let mut out = ctx.zeros(&[3, 1])?;
/// let stream = ctx.stream()?;
/// conv.forward(&input, &ones, None, &mut out, &stream)?;
/// stream.synchronize()?;
/// assert_eq!(out.to_dense()?.values(), [11.0, 11.0, 100.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SparseConv3d<T> {
    map: Arc<KernelMap>,
    channels: [usize; 2],
    options: ConvOptions,
    /// Kernels of the forward pass and of the gradient of the input.
    operator: Operator<[ConvProduct; 2]>,
    /// Kernels of the gradient of the weights with their workspace, created at the first call: one for the pairs of the
    /// map, one for a map that is rebuilt.
    weights: [OnceLock<WeightGradient>; 2],
    element: std::marker::PhantomData<fn() -> T>,
}

/// Role of an operand. A gradient has the shape of its operand.
#[derive(Clone, Copy, Debug)]
enum Part {
    Input,
    Weights,
    Bias,
    Output,
}

impl<T: Scalar> SparseConv3d<T> {
    /// Plans a convolution of `channels[0]` to `channels[1]` channels in the map's context.
    ///
    /// # Errors
    /// [`Error::NoKernel`] with the reasons if no kernel of the context supports the convolution.
    pub fn new(
        map: &Arc<KernelMap>,
        channels: [usize; 2],
        options: &ConvOptions,
    ) -> Result<SparseConv3d<T>> {
        let operator = Operator::new(map.context(), |device| {
            map.shadow()?;
            let [c, m] = channels;
            let make = |turned: bool, channels: [usize; 2], relu: bool| {
                let variant = options.variant.as_deref().filter(|_| !turned);
                let machine = device.machine();
                let rows = choose(T::DTYPE, machine, options, channels, turned, variant)?;
                let finish = ConvFinish { relu, accumulate: false };
                ConvProduct::new(device, rows, channels, (map.volume(), turned, finish))
            };
            Ok([make(false, [c, m], options.relu)?, make(true, [m, c], false)?])
        })?;
        Ok(SparseConv3d {
            map: Arc::clone(map),
            channels,
            options: options.clone(),
            operator,
            weights: Default::default(),
            element: std::marker::PhantomData,
        })
    }

    /// Returns the name of the kernel of the forward pass; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(|[forward, _]| forward.row().name)
    }

    /// Returns the device memory in bytes, map and operands excluded.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(|products| {
            let gradients = self.weights.iter().filter_map(OnceLock::get);
            let gradients = gradients.map(WeightGradient::bytes).sum::<usize>();
            products.iter().map(ConvProduct::bytes).sum::<usize>() + gradients
        })
    }

    /// Queues the forward pass; `bias` is `[m]`.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::OtherContext`] if an operand does not match the planned convolution.
    pub fn forward(
        &self,
        input: &Tensor<T>,
        weights: &Tensor<T>,
        bias: Option<&Tensor<T>>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        self.check(&run, "input", input.any(), Part::Input)?;
        self.check(&run, "weights", weights.any(), Part::Weights)?;
        self.check(&run, "out", out.any(), Part::Output)?;
        if let Some(bias) = bias {
            self.check(&run, "bias", bias.any(), Part::Bias)?;
        }
        self.product(run, 0, [input, weights], bias, out)
    }

    /// Refuses an operand that does not match the planned convolution.
    fn check(
        &self,
        run: &Run<'_, [ConvProduct; 2]>,
        name: &str,
        tensor: &AnyTensor,
        part: Part,
    ) -> Result<()> {
        let ([c, m], map) = (self.channels, &*self.map);
        match part {
            Part::Input => run.check(name, tensor, &[map.inputs(), c]),
            Part::Weights => run.check(name, tensor, &[map.volume(), c, m]),
            Part::Bias => run.check(name, tensor, &[m]),
            Part::Output => run.check(name, tensor, &[map.outputs(), m]),
        }
    }

    /// Returns the map in device memory, and its arrays. On a CPU context: those of the simulated GPU.
    fn on_device(&self, transposed: bool) -> Result<(&KernelMap, &MapArrays<DeviceMemory>)> {
        let own = self.map.shadow()?.unwrap_or(&self.map);
        let map = if transposed { own.transposed()? } else { own };
        match map.arrays() {
            Arrays::Device(arrays, _) => Ok((map, arrays)),
            Arrays::Host(_) => Err(Error::elsewhere("map")),
        }
    }

    /// Queues `dIn[i,c] = Map[o,i,t] * dOut[o,m] * W[t,c,m]`. The first call creates the transposed map.
    ///
    /// # Errors
    /// See [`SparseConv3d::forward`].
    pub fn backward_input(
        &self,
        weights: &Tensor<T>,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        self.check(&run, "weights", weights.any(), Part::Weights)?;
        self.check(&run, "dy", dy.any(), Part::Output)?;
        self.check(&run, "dx", dx.any(), Part::Input)?;
        self.product(run, 1, [dy, weights], None, dx)
    }

    /// Queues one of the two products: 0 is the forward pass, 1 the gradient of the input.
    fn product(
        &self,
        run: Run<'_, [ConvProduct; 2]>,
        which: usize,
        [input, weights]: [&Tensor<T>; 2],
        bias: Option<&Tensor<T>>,
        out: &mut Tensor<T>,
    ) -> Result<()> {
        let raw = RawConv {
            input: input.place(),
            ld_input: input.leading(),
            weights: weights.place(),
            ld_weights: weights.leading(),
            bias: bias.map_or(0, |bias| bias.place()),
            out: out.place(),
            ld_out: out.leading(),
            alpha: 1.0,
        };
        run.queue(
            |products, queue| {
                let (map, arrays) = self.on_device(which == 1)?;
                products[which].run(map, arrays, &raw, queue)
            },
            || {
                let map = if which == 1 { self.map.transposed()? } else { &self.map };
                let Arrays::Host(arrays) = map.arrays() else {
                    return Err(Error::elsewhere("map"));
                };
                let [c, m] = self.channels;
                let conv = HostConv {
                    map: &arrays.get(),
                    channels: if which == 0 { [c, m] } else { [m, c] },
                    input: input.any(),
                    weights: weights.any(),
                    turned: which == 1,
                    bias: bias.map(|bias| &bias.any),
                    relu: which == 0 && self.options.relu,
                };
                conv.run(&mut out.any);
                Ok(())
            },
        )
    }

    /// Queues `dW[t,c,m] = Map[o,i,t] * In[i,c] * dOut[o,m]`. `dw` has the type of the operands, or f32 like the sums,
    /// as an `nn::Sgd` requires.
    ///
    /// The first call distributes the map's pairs to thread blocks. If a [`KernelMapBuilder`] has rebuilt the map, or a
    /// CUDA graph rebuilds it, every position is multiplied at every offset, whether it is a pair or not. For a scan of
    /// a room these are 2.3 times as many rows. If a graph captured the gradient before the first rebuild of the map,
    /// the map is fixed to its pairs, and later rebuilds are refused.
    ///
    /// # Errors
    /// See [`SparseConv3d::forward`]; [`Error::ElementType`] for another type. Also [`Error::Capture`] in a capture if
    /// this is the first call, or the first call since a rebuild.
    ///
    /// [`KernelMapBuilder`]: super::KernelMapBuilder
    pub fn backward_weight<Out: Scalar>(
        &self,
        input: &Tensor<T>,
        dy: &Tensor<T>,
        dw: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        self.check(&run, "input", input.any(), Part::Input)?;
        self.check(&run, "dy", dy.any(), Part::Output)?;
        self.check(&run, "dw", dw.any(), Part::Weights)?;
        if Out::DTYPE != T::DTYPE && Out::DTYPE != Dtype::F32 {
            let expected = format!("{} or f32", T::DTYPE.name());
            return Err(Error::dtype("dw", expected, Out::DTYPE.name()));
        }
        let raw = RawWeights {
            input: input.place(),
            ld_input: input.leading(),
            gradient: dy.place(),
            ld_gradient: dy.leading(),
            ld_out: dw.leading(),
            out: dw.place(),
            wide: Out::DTYPE == Dtype::F32,
        };
        run.queue(
            |_, queue| self.weight_gradient(&raw, queue),
            || {
                let Arrays::Host(arrays) = self.map.arrays() else {
                    return Err(Error::elsewhere("map"));
                };
                weight_gradient(&arrays.get(), self.channels, [input.any(), dy.any()], &mut dw.any);
                Ok(())
            },
        )
    }

    fn weight_gradient(&self, raw: &RawWeights, queue: Queue<'_>) -> Result<()> {
        let (map, arrays) = self.on_device(false)?;
        let mut order = map.order();
        let every = order.is_rebuilt();
        let kernels = match self.weights[usize::from(every)].get() {
            Some(made) => made,
            None if queue.stream().is_capturing()? => {
                let reason = "has a gradient of weights to deal, which a capture cannot: ask for it once before, behind a \
                              rebuild if the capture has one";
                return Err(Error::capture("map", reason));
            }
            None => {
                let dtype = multiplied_as(T::DTYPE, self.options.precision);
                let device = map.context().planned_on()?;
                let made = WeightGradient::new(device, dtype, (map, arrays, every), self.channels)?;
                self.weights[usize::from(every)].get_or_init(|| made)
            }
        };
        if !every {
            order.hold(queue.stream())?;
        }
        order.read(queue.stream(), || kernels.run(map, arrays, raw, queue))
    }
}

/// Selects the kernels for these channels. The first one is a kernel of whole vectors if there is one. Among those, it
/// computes the fewest unused columns, then the fewest column tiles, and then reads the weights without a
/// transposition. The second one, if the first reads whole vectors, reads operands of any alignment.
fn choose(
    dtype: Dtype,
    machine: &Machine,
    options: &ConvOptions,
    [_, columns]: [usize; 2],
    turned: bool,
    variant: Option<&str>,
) -> Result<[Option<&'static Row>; 2]> {
    let strict = options.zeros == ZerosRule::Strict;
    let own = multiplied_as(dtype, options.precision);
    let mut tried = not_here(own, machine);
    let mut rows: Vec<&'static Row> = Vec::new();
    // Full f32 replaces TF32 if no kernel supports TF32.
    let none = conv_rows(own, machine).next().is_none();
    let full = conv_rows(dtype, machine).filter(|_| none && own != dtype);
    for row in conv_rows(own, machine).chain(full.collect::<Vec<_>>()) {
        let reason = if variant.is_some_and(|name| name != row.name) {
            "another is asked for"
        } else if strict {
            "multiplies zeros for missing neighbours, and Strict is asked for"
        } else {
            rows.push(row);
            continue;
        };
        tried.push(Refusal::of(row.name, reason));
    }
    rows.sort_by_key(|row| {
        let tiles = columns.div_ceil(row.columns as usize);
        let area = tiles * row.columns as usize;
        let turns = turns(row, turned);
        (row.vector == 1, area, tiles, turns)
    });
    let Some(&first) = rows.first() else {
        let indirect = format!("Out[o,m] = Map[o,i,t] * In[i,c] * W[t,c,m] in {}", own.name());
        return Err(Error::no_kernel(indirect, tried));
    };
    // Full f32 replaces TF32 if rows are not aligned.
    let any = conv_rows(dtype, machine).find(|row| row.vector == 1);
    let any = any.filter(|_| first.vector > 1 && variant.is_none());
    Ok([Some(first), any])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPUs without `wgmma` gather each input row once for 128 channels, also those with 99 KB of shared memory.
    #[test]
    fn kernels_have_the_columns_of_the_output() {
        let large = Machine::scaled(84, 1_700_000, 0.9e12, 6 << 20);
        for machine in [large, large.with_shared_bytes(99 << 10)] {
            let of = |dtype, precision, columns, turned| {
                let options = ConvOptions { precision, ..ConvOptions::default() };
                let rows = choose(dtype, &machine, &options, [columns; 2], turned, None);
                rows.unwrap()[0].unwrap().name
            };
            for (columns, name) in [(64, "n64"), (65, "n128"), (128, "n128"), (192, "n64")] {
                let full = |dtype, turned| of(dtype, Precision::Full, columns, turned);
                assert_eq!(full(Dtype::F16, false), format!("conv_mma_f16_{name}"));
                assert_eq!(full(Dtype::Bf16, true), format!("conv_mma_bf16_t_{name}"));
                let tf32 = of(Dtype::F32, Precision::Tf32, columns, false);
                assert_eq!(tf32, format!("conv_mma_tf32_t_{name}"));
            }
        }
    }
}
