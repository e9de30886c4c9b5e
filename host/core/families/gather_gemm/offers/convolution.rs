//! Offers for convolutions with lists, `Out[Q[p],n] += In[I[p],c] * W[T[p],c,n]`, by the kernels of
//! `ops::SparseConv3d`. Planning creates the kernel map from the lists.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::einsum::Mode;
use crate::error::{Elsewhere, Error, Result};
use crate::families::gather_gemm::conv::not_here;
use crate::families::gather_gemm::cost::conv::{Gathers, predict_convolution};
use crate::families::gather_gemm::kernel_map::{Arrays, KernelMap, MapLists};
use crate::families::gather_gemm::turns;
use crate::families::gather_gemm::{ConvFinish, ConvProduct, RawConv, conv_rows};
use crate::indirect::ConvolutionForm;
use crate::offer::{
    AnyOut, Executable, Offer, Offers, Request, Run, Slot, ZerosRule, leading, multiplied_as,
    refuse,
};
use crate::tensor::{AnyOperand, volume};

pub(crate) const NAME: &str = "conv";
/// Max multiplied rows per pair, if they exceed `MANY` rows: beyond this, the kernel for any expression computes less.
const WASTE: usize = 8;
const MANY: usize = 1 << 18;

/// Returns the offers for an expression.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let refused = |reason: &str| Err(refuse(NAME, reason));
    let form = request.indirect.convolution().map_err(|reason| refuse(NAME, reason))?;
    if !request.types.alike() {
        return refused("its outputs have the type of the operands");
    }
    if request.options.zeros == ZerosRule::Strict {
        return refused("multiplies zeros for rows without a term at a matrix");
    }
    let found = Arc::new(Found::new(request, form)?);
    let dtype = multiplied_as(request.types.operands, request.options.precision);
    let of = |dtype| conv_rows(dtype, request.machine);
    let any = of(request.types.operands).find(|row| row.vector == 1);
    let mut offers = Offers::new();
    for row in of(dtype).chain(any.filter(|row| row.dtype != dtype)) {
        if !found.aligned.is_multiple_of(row.vector as usize) {
            continue;
        }
        let cost = predict_convolution(row, &found.work(row), request.machine);
        let found = Arc::clone(&found);
        offers.push(Ok(Offer::of(row, cost, move |device| {
            ListedConvolution::new(device, [Some(row), any], Arc::clone(&found))
        })));
    }
    let not_here = not_here(dtype, request.machine);
    if offers.is_empty() && not_here.is_empty() {
        return refused(&format!("has no kernel for {}", request.types.operands.name()));
    }
    offers.extend(not_here.into_iter().map(Err));
    Ok(offers)
}

/// Expression bound to its lists.
#[derive(Debug)]
struct Found {
    form: ConvolutionForm,
    /// Slots of input and weights.
    slots: [Slot; 2],
    /// Map on the CPU.
    map: KernelMap,
    channels: [usize; 2],
    /// Largest power of two up to 16 that divides the row strides of input and weights, in elements.
    aligned: usize,
    work: Gathers,
}

/// Returns the lists of a map.
fn lists<'q>(request: &Request<'q, '_>, form: &ConvolutionForm) -> Result<[&'q [u32]; 3]> {
    let mut lists: [&[u32]; 3] = [&[]; 3];
    for (to, name) in lists.iter_mut().zip(&form.lists) {
        match request.operand(name)? {
            AnyOperand::Index(_, data) => *to = *data,
            _ => return Err(refuse(NAME, format!("requires `{name}` as a list of numbers"))),
        }
    }
    Ok(lists)
}

impl Found {
    fn new(request: &Request<'_, '_>, form: ConvolutionForm) -> Result<Found> {
        let operands = request.operands();
        let shape = |name: &str| Ok::<_, Error>(request.operand(name)?.shape().to_vec());
        let (input, weights) = (shape(&form.input)?, shape(&form.weights)?);
        let out = request.extents.out();
        let (&[inputs, c], &[offsets, ..], &[outputs, n]) = (&input[..], &weights[..], out) else {
            return Err(refuse(NAME, "takes matrices of rows and a stack of matrices"));
        };
        let lists = lists(request, &form)?;
        if [offsets, c, n].contains(&0) {
            return Err(refuse(NAME, "has no kernel for operands without elements"));
        }
        let names = [0, 1, 2].map(|i| form.lists[i].as_str());
        let described = MapLists { names, lists, extents: [outputs, inputs, offsets] };
        let map = KernelMap::of_lists(&described)?;
        let counts = map.counts()?;
        if counts.multiplied > MANY.max(counts.pairs * WASTE) {
            let (rows, terms) = (counts.multiplied, counts.pairs);
            let why = format!("multiplies 64 rows at a time, here {rows} rows for {terms} terms");
            return Err(refuse(NAME, why));
        }
        let lines =
            [leading(operands, &form.input, c), leading(operands, &form.weights, weights[2])];
        let shapes = [&input[..], &weights[..], &[outputs, n]];
        let elements: f64 = shapes.iter().map(|shape| volume(shape) as f64).sum();
        let bytes = elements * request.types.operands.bytes() as f64;
        Ok(Found {
            channels: [c, n],
            aligned: lines.iter().fold(16, |all, line| all.min(1 << line.trailing_zeros().min(4))),
            work: Gathers {
                pairs: counts.pairs,
                multiplied: counts.multiplied,
                stages: counts.stages,
                channels: [c, n],
                bytes: bytes + outputs as f64 * offsets as f64 * 4.0,
                turns: false,
            },
            map,
            slots: [request.slot(&form.input)?, request.slot(&form.weights)?],
            form,
        })
    }

    fn work(&self, row: &Row) -> Gathers {
        Gathers { turns: turns(row, self.form.turned), ..self.work }
    }
}

/// Kernel, and the map on its GPU.
#[derive(Debug)]
struct ListedConvolution {
    found: Arc<Found>,
    product: ConvProduct,
    map: KernelMap,
}

impl ListedConvolution {
    fn new(
        device: &Arc<Device>,
        rows: [Option<&'static Row>; 2],
        found: Arc<Found>,
    ) -> Result<ListedConvolution> {
        let finish = ConvFinish { relu: false, accumulate: found.form.mode == Mode::Accumulate };
        let shape = (found.map.volume(), found.form.turned, finish);
        Ok(ListedConvolution {
            product: ConvProduct::new(device, rows, found.channels, shape)?,
            map: found.map.on(device)?,
            found,
        })
    }
}

impl Executable for ListedConvolution {
    fn variant(&self) -> &'static str {
        self.product.row().name
    }

    fn bytes(&self) -> usize {
        self.product.bytes() + self.map.bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let name = run.of.output();
        let [input, weights] = self.found.slots;
        let Arrays::Device(arrays, _) = self.map.arrays() else {
            return Err(Error::elsewhere(name));
        };
        let (input, ld_input) = run.tensor(input)?;
        let (weights, ld_weights) = run.tensor(weights)?;
        let alpha = run.factor()?;
        let raw = RawConv {
            input,
            ld_input,
            weights,
            ld_weights,
            bias: 0,
            out: out.address().or_elsewhere(name)?,
            ld_out: out.leading(),
            alpha: alpha as f32,
        };
        self.product.run(&self.map, arrays, &raw, queue)
    }
}

impl fmt::Display for ListedConvolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.product.row();
        let Gathers { pairs, multiplied, .. } = self.found.work;
        write!(
            f,
            "{}: zeros = {:?}, {} rows multiplied for {} terms, {} threads, {} bytes of shared memory",
            row.name, row.zeros, multiplied, pairs, row.threads, row.shared_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::registry::Dtype;

    /// GPUs of compute capability 8.6 and 8.9 run kernels compiled for 8.0, with less shared memory.
    #[test]
    fn kernels_over_the_shared_memory_of_a_gpu_are_refused_with_both_numbers() {
        let large = Machine::scaled(84, 1_700_000, 0.9e12, 6 << 20);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let all: Vec<_> = conv_rows(dtype, &large).collect();
            let most = all.iter().map(|row| row.shared_bytes).max().unwrap();
            let small = large.with_shared_bytes(most - 1);
            let left: Vec<_> = conv_rows(dtype, &small).collect();
            let over: Vec<_> = all.into_iter().filter(|row| !left.contains(row)).collect();
            assert!(!left.is_empty() && left.iter().all(|row| row.shared_bytes < most));
            assert!(!over.is_empty(), "{}", dtype.name());
            let refused = not_here(dtype, &small);
            for row in over {
                let own = refused.iter().find(|refusal| refusal.name == row.name).unwrap();
                let both = [row.shared_bytes, most - 1].map(|bytes| format!("{bytes}"));
                assert!(both.iter().all(|bytes| own.reason.contains(bytes)), "{}", own.reason);
            }
        }
    }
}
