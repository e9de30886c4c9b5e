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
use crate::offer::bind::find;
use crate::offer::{
    Answer, Compiled, Offer, Question, Run, Unfit, ZerosRule, leading, multiplied_as,
};
use crate::tensor::{AnyOperand, AnyTensor, volume};

const NAME: &str = "conv";
/// Max multiplied rows per pair, if they exceed `MANY` rows: beyond this, the kernel for any expression computes less.
const WASTE: usize = 8;
const MANY: usize = 1 << 18;

/// Returns the offers for an expression.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let refuse = |reason: String| Answer::refused(NAME, reason);
    let form = match question.indirect.convolution() {
        Ok(form) => form,
        Err(reason) => return refuse(reason),
    };
    if !question.types.alike() {
        return refuse("its outputs have the type of the operands".into());
    }
    if question.options.zeros == ZerosRule::Strict {
        return refuse("multiplies zeros for rows without a term at a matrix".into());
    }
    let found = match Found::new(question, form) {
        Ok(found) => Arc::new(found),
        Err(unfit) => return unfit.answer(NAME),
    };
    let dtype = multiplied_as(question.types.operands, question.options.precision);
    let of = |dtype| conv_rows(dtype, question.machine);
    let any = of(question.types.operands).find(|row| row.vector == 1);
    let mut offers = Vec::new();
    for row in of(dtype).chain(any.filter(|row| row.dtype != dtype)) {
        if !found.aligned.is_multiple_of(row.vector as usize) {
            continue;
        }
        let cost = predict_convolution(row, &found.work(row), question.machine);
        let found = Arc::clone(&found);
        offers.push(Offer::of(row, cost, move |device| {
            Made::new(device, [Some(row), any], Arc::clone(&found))
        }));
    }
    let refused = not_here(dtype, question.machine);
    if offers.is_empty() && refused.is_empty() {
        return refuse(format!("has no kernel for {}", question.types.operands.name()));
    }
    Ok(Answer { offers, refused })
}

/// Expression bound to its lists.
#[derive(Debug)]
struct Found {
    form: ConvolutionForm,
    /// Map on the CPU.
    map: KernelMap,
    channels: [usize; 2],
    /// Largest power of two up to 16 that divides the row strides of input and weights, in elements.
    aligned: usize,
    work: Gathers,
}

/// Returns the lists of a map.
fn lists<'o>(
    operands: &'o [(&str, AnyOperand<'_>)],
    form: &ConvolutionForm,
) -> Result<[&'o [u32]; 3], Unfit> {
    let mut lists: [&[u32]; 3] = [&[]; 3];
    for (to, name) in lists.iter_mut().zip(&form.lists) {
        match find(operands, name)? {
            AnyOperand::Index(_, data) => *to = *data,
            _ => return Err(format!("requires `{name}` as a list of numbers").into()),
        }
    }
    Ok(lists)
}

impl Found {
    fn new(question: &Question<'_, '_>, form: ConvolutionForm) -> Result<Found, Unfit> {
        let operands = question.operands();
        let shape = |name: &str| Ok::<_, Error>(find(operands, name)?.shape().to_vec());
        let (input, weights) = (shape(&form.input)?, shape(&form.weights)?);
        let out = question.extents.out();
        let (&[inputs, c], &[offsets, ..], &[outputs, n]) = (&input[..], &weights[..], out) else {
            return Err("takes matrices of rows and a stack of matrices".into());
        };
        let lists = lists(operands, &form)?;
        if [offsets, c, n].contains(&0) {
            return Err("has no kernel for operands without elements".into());
        }
        let names = [0, 1, 2].map(|i| form.lists[i].as_str());
        let described = MapLists { names, lists, extents: [outputs, inputs, offsets] };
        let map = KernelMap::of_lists(&described)?;
        let counts = map.counts()?;
        if counts.multiplied > MANY.max(counts.pairs * WASTE) {
            let (rows, terms) = (counts.multiplied, counts.pairs);
            let why = format!("multiplies 64 rows at a time, here {rows} rows for {terms} terms");
            return Err(why.into());
        }
        let lines =
            [leading(operands, &form.input, c), leading(operands, &form.weights, weights[2])];
        let shapes = [&input[..], &weights[..], &[outputs, n]];
        let elements: f64 = shapes.iter().map(|shape| volume(shape) as f64).sum();
        let bytes = elements * question.types.operands.bytes() as f64;
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
            form,
        })
    }

    fn work(&self, row: &Row) -> Gathers {
        Gathers { turns: turns(row, self.form.turned), ..self.work }
    }
}

/// Kernel, and the map on its GPU.
#[derive(Debug)]
struct Made {
    found: Arc<Found>,
    product: ConvProduct,
    map: KernelMap,
}

impl Made {
    fn new(
        device: &Arc<Device>,
        rows: [Option<&'static Row>; 2],
        found: Arc<Found>,
    ) -> Result<Made> {
        let finish = ConvFinish { relu: false, accumulate: found.form.mode == Mode::Accumulate };
        let shape = (found.map.volume(), found.form.turned, finish);
        Ok(Made {
            product: ConvProduct::new(device, rows, found.channels, shape)?,
            map: found.map.on(device)?,
            found,
        })
    }
}

impl Compiled for Made {
    fn variant(&self) -> &'static str {
        self.product.row().name
    }

    fn bytes(&self) -> usize {
        self.product.bytes() + self.map.bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let form = &self.found.form;
        let Arrays::Device(arrays, _) = self.map.arrays() else {
            return Err(Error::elsewhere(&form.output));
        };
        let (input, ld_input) = run.tensor(&form.input)?;
        let (weights, ld_weights) = run.tensor(&form.weights)?;
        let alpha = run.factor()?;
        let raw = RawConv {
            input,
            ld_input,
            weights,
            ld_weights,
            bias: 0,
            out: out.address().or_elsewhere(&form.output)?,
            ld_out: out.leading(),
            alpha: alpha as f32,
        };
        self.product.run(&self.map, arrays, &raw, queue)
    }
}

impl fmt::Display for Made {
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
