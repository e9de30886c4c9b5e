//! Rows of tensors, of the general family, of convolutions, of dynamic sparsity and of experts.

use super::{Made, NAN, Rows, names, values};
use crate::families::gather_gemm::conv::voxels;
use crate::families::gather_gemm::micro::{EXTENT, sample};
use crate::families::gather_gemm::pit_conv::{IMAGES, LAYERS};
use crate::prelude::*;
use einsparse::Precision;
use einsparse::dynamic::{
    ConvolutionAxis, ConvolutionOptions, Dynamic, DynamicConvolution, Gate, GroupedGemm,
    GroupedOptions, Matrices, Routing, SparsityHint,
};
use einsparse::einsum::Activation;
use einsparse::formats::{Coo, CooPattern, E4m3, SCALE_BLOCK, generate};
use einsparse::nn::{Encoder, EncoderOptions};
use einsparse::ops::{
    Aggregate, ConvOptions, KernelMap, MessagePassing, SampledTensor, SparseConv3d, Ttm,
    mttkrp_text,
};
use einsparse::registry::{self, kernels};
use std::cell::RefCell;
use std::sync::Arc;

const FOUR: [Dtype; 4] = [Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16];
const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];
const COLUMNS: [usize; 11] = [4, 8, 16, 17, 24, 32, 48, 64, 100, 128, 256];

pub fn run(rows: &mut Rows<'_>) -> Result<()> {
    for dtype in FOUR {
        by_dtype!(dtype, T => tensors::<T>(rows, dtype))?;
        by_dtype!(dtype, T => contractions::<T>(rows, dtype))?;
        by_dtype!(dtype, T => messages::<T>(rows, dtype))?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Tf32, Dtype::F32] {
        by_dtype!(dtype, T => convolutions::<T>(rows, dtype))?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Tf32] {
        by_dtype!(dtype, T => found::<T>(rows, dtype))?;
        by_dtype!(dtype, T => few::<T>(rows, dtype))?;
    }
    for dtype in HALVES {
        by_dtype!(dtype, T => experts::<T>(rows, dtype))?;
        by_dtype!(dtype, T => by_rule::<T>(rows, dtype))?;
    }
    Ok(())
}

/// Rows of the general family with this number of factors.
fn general(dtype: registry::Dtype, factors: usize) -> Vec<&'static str> {
    let own = kernels().iter().filter(|row| {
        row.module == "einsum" && row.dtype == dtype && row.items as usize == factors
    });
    own.map(|row| row.name).collect()
}

/// Random distinct nonzeros, in lexicographic order.
fn places(shape: &[usize], entries: usize) -> Result<CooPattern> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut place = || {
        let axes = shape.iter().map(|&n| rng.random_range(0..n as u32));
        axes.collect()
    };
    let mut all: Vec<Vec<u32>> = (0..entries).map(|_| place()).collect();
    all.sort_unstable();
    all.dedup();
    let axis = |axis: usize| all.iter().map(|place| place[axis]).collect();
    let coords = (0..shape.len()).map(axis).collect();
    Ok(CooPattern::new(shape.to_vec(), coords)?)
}

/// Measures MTTKRP of every mode, TTM, and products at the nonzeros.
fn tensors<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    let cases: [(&str, &[usize], usize); 4] = [
        ("tensor-1k-1M", &[1000, 1000, 1000], 1_000_000),
        ("tensor-100k-1M", &[100_000, 100_000, 100_000], 1_000_000),
        ("tensor-64-20k", &[64, 64, 64], 20_000),
        ("tensor4-1k-1M", &[1000, 1000, 1000, 1000], 1_000_000),
    ];
    for (name, shape, entries) in cases {
        let name = &format!("{name} {dtype}");
        rows.group("tensors", name, |rows| {
            let pattern = places(shape, entries)?;
            let count = pattern.coords()[0].len();
            let host = Coo::new(pattern, values::<T>(count, 0))?;
            let tensor = rows.context.upload(&host)?;
            let sampled = RefCell::new(rows.context.upload(host)?);
            for n in COLUMNS {
                let factors: Vec<Tensor<T>> =
                    shape.iter().map(|&extent| rows.dense(&[extent, n])).collect::<Result<_>>()?;
                let case = format!("{name} n{n}");
                mttkrp(rows, &case, &tensor, &factors)?;
                ttm(rows, &case, &tensor, &factors)?;
                if shape.len() == 3 {
                    at_entries(rows, &case, &tensor, &factors, &sampled)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn mttkrp<T: Scalar>(
    rows: &mut Rows<'_>,
    case: &str,
    tensor: &SparseTensor<T>,
    factors: &[Tensor<T>],
) -> Result<()> {
    let order = factors.len();
    for mode in [0, order - 1] {
        let others: Vec<usize> = (0..order).filter(|&axis| axis != mode).collect();
        let own: Vec<String> = others.iter().map(|axis| format!("F{axis}")).collect();
        let expression = mttkrp_text(order, mode, &own)?;
        let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("T", tensor.into())];
        let given = others.iter().map(|&axis| Operand::from(&factors[axis]));
        operands.extend(own.iter().map(String::as_str).zip(given));
        let case = format!("{case} mode {mode}");
        let general = general(T::DTYPE, order);
        let label = ["mttkrp", case.as_str()];
        rows.plan::<T, T>(label, &expression, &operands, &Options::default(), &general)?;
    }
    // One factor: pairs of axes index the rows of the output.
    if order == 3 && tensor.shape().iter().all(|&extent| extent <= 1000) {
        let operands = [("T", tensor.into()), ("F", (&factors[2]).into())];
        let general = general(T::DTYPE, 2);
        let case = format!("{case} to dense");
        let (label, expression) = (["ttm", case.as_str()], "Y[i,j,r] = T[i,j,k] * F[k,r]");
        rows.plan::<T, T>(label, expression, &operands, &Options::default(), &general)?;
    }
    Ok(())
}

fn ttm<T: Scalar>(
    rows: &mut Rows<'_>,
    case: &str,
    tensor: &SparseTensor<T>,
    factors: &[Tensor<T>],
) -> Result<()> {
    let n = factors[0].shape()[1];
    let axis = factors.len() - 1;
    let (context, stream) = (rows.context.clone(), rows.stream());
    let first = Ttm::new(&context, tensor, axis, n)?;
    let mut out = context.zeros::<T>(&[first.count(), n])?;
    let step = registry::find(first.variant()).map(|row| row.step);
    let mut own = names("mttkrp", T::DTYPE);
    own.retain(|name| registry::find(name).map(|row| row.step) == step);
    let make = |variant: Option<&str>| {
        let ttm = Ttm::with_variant(&context, tensor, axis, n, variant)?;
        let taken = ttm.variant();
        let stream = &stream;
        let run = move |out: &mut _| ttm.forward(tensor, &factors[axis], out, stream);
        Ok(Made::alone(taken, run))
    };
    rows.case(["ttm", case], (&mut out, NAN, T::DTYPE), &own, &make)
}

fn at_entries<T: Scalar>(
    rows: &mut Rows<'_>,
    case: &str,
    tensor: &SparseTensor<T>,
    factors: &[Tensor<T>],
    mut out: &RefCell<SparseTensor<T>>,
) -> Result<()> {
    let n = factors[0].shape()[1];
    let (context, stream) = (rows.context.clone(), rows.stream());
    let all: Vec<&Tensor<T>> = factors.iter().collect();
    let make = |_: Option<&str>| {
        let op = SampledTensor::new(&context, tensor, n)?;
        let (taken, all, stream) = (op.variant(), &all, &stream);
        let run = move |out: &mut &RefCell<_>| {
            op.forward(Some(tensor), all, &mut out.borrow_mut(), stream)
        };
        Ok(Made::alone(taken, run))
    };
    rows.case(["sampled_tensor", case], (&mut out, NAN, T::DTYPE), &[], &make)
}

/// Expressions that only the general family supports, and their numbers of factors.
const CONTRACTIONS: [(usize, &str); 21] = [
    (1, "O[i,r] = D[i,j,r]"),
    (1, "O[j,i,r] = D[i,j,r]"),
    (1, "O[i,j] = D[i,j,r]"),
    (1, "O[r] = X[i,r]"),
    (1, "C[TI[p],r] += X[TJ[p],r]"),
    (2, "C[TI[p],r] += V[p] * X[TJ[p],r]"),
    (2, "O[i,r] = P[i,k,l] * Q[l,k,r]"),
    (2, "O[i,j,r] = D[i,j,r] * E[r]"),
    (2, "O[i] = X[i,r] * Y[i,r]"),
    (2, "O[r] = X[i,r] * Y[i,r]"),
    (2, "S[p] = X[TI[p],r] * Y[TJ[p],r]"),
    (3, "C[TI[p],r] += V[p] * X[TJ[p],r] * Y[TK[p],r]"),
    (3, "C[TJ[p],r] += V[p] * X[TI[p],r] * Y[TK[p],r]"),
    (3, "S[p] = V[p] * X[TJ[p],r] * Y[TK[p],r]"),
    (3, "S[p] = X[TI[p],r] * Y[TJ[p],r] * Z[TK[p],r]"),
    (3, "O[i,r] = X[i,r] * Y[i,r] * E[r]"),
    (4, "C[TI[p],r] += V[p] * X[TJ[p],r] * Y[TK[p],r] * Z[TJ[p],r]"),
    (4, "S[p] = V[p] * X[TI[p],r] * Y[TJ[p],r] * Z[TK[p],r]"),
    (4, "C[TI[p],r] += V[p] * X[TJ[p],r] * Y[TK[p],r] * E[r]"),
    (5, "C[TI[p],r] += V[p] * X[TJ[p],r] * Y[TK[p],r] * Z[TJ[p],r] * E[r]"),
    (5, "S[p] = V[p] * X[TI[p],r] * Y[TJ[p],r] * Z[TK[p],r] * E[r]"),
];

fn contractions<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    const ENTRIES: usize = 200_000;
    const EXTENT: usize = 20_000;
    for n in [1, 3, 8, 32, 64, 100, 256] {
        let name = &format!("contractions-n{n} {dtype}");
        rows.group("einsum", name, |rows| {
            let mix =
                |i: usize, shift: u32| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift;
            let at = |i: usize, shift: u32| (mix(i, shift) % EXTENT as u64) as u32;
            let ti: Vec<u32> = (0..ENTRIES).map(|i| (i / 10) as u32).collect();
            let [tj, tk] = [40, 20].map(|s| (0..ENTRIES).map(|i| at(i, s)).collect::<Vec<_>>());
            let shape = [ENTRIES];
            let mut dense = Vec::new();
            for (name, shape) in [
                ("V", &[ENTRIES][..]),
                ("X", &[EXTENT, n]),
                ("Y", &[EXTENT, n]),
                ("Z", &[EXTENT, n]),
                ("P", &[64, 32, 32]),
                ("Q", &[32, 32, n]),
                ("D", &[64, 64, n]),
                ("E", &[n]),
            ] {
                dense.push((name, rows.dense::<T>(shape)?));
            }
            let mut given = dense.iter().map(|(name, tensor)| (*name, tensor.into()));
            let mut all: Vec<(&str, Operand<'_, T>)> = given.by_ref().take(1).collect();
            all.extend([
                ("TI", Operand::Index(&shape, &ti)),
                ("TJ", Operand::Index(&shape, &tj)),
                ("TK", Operand::Index(&shape, &tk)),
            ]);
            all.extend(given);
            all.push(("C", (&dense[1].1).into()));
            for (factors, expression) in CONTRACTIONS {
                let named = |name: &str| expression.contains(&format!("{name}["));
                let asked = |(name, _): &&(&str, Operand<'_, T>)| match *name {
                    "C" => expression.starts_with("C["),
                    name => named(&format!(" {name}")) || named(&format!("[{name}")),
                };
                let operands: Vec<_> = all.iter().filter(asked).cloned().collect();
                let general = general(T::DTYPE, factors);
                let case = format!("n{n} {dtype} {expression}");
                let label = ["einsum", case.as_str()];
                rows.plan::<T, T>(label, expression, &operands, &Options::default(), &general)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Measures the max over the messages of a graph.
fn messages<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    let name = &format!("rmat14 {dtype}");
    rows.group("message", name, |rows| {
        let pattern = generate::rmat(14, 16, SEED)?;
        let count = pattern.columns().len();
        let graph = Csr::new(pattern.clone(), values::<T>(count, 0))?;
        for n in [8, 32, 33, 64, 128, 256] {
            let (context, stream) = (rows.context.clone(), rows.stream());
            let x = rows.dense::<T>(&[pattern.cols(), n])?;
            let mut y = context.zeros::<T>(&[pattern.rows(), n])?;
            let make = |_: Option<&str>| {
                let layer = MessagePassing::new(&context, graph.clone(), n, Aggregate::Max)?;
                let (taken, x, stream) = (layer.variant(), &x, &stream);
                Ok(Made::alone(taken, move |y: &mut _| layer.forward(x, y, stream)))
            };
            let case = format!("{name} n{n}");
            rows.case(["message", &case], (&mut y, NAN, T::DTYPE), &[], &make)?;
        }
        Ok(())
    })
}

/// Measures forward sparse convolutions of a point cloud.
fn convolutions<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    let name = &format!("cloud {dtype}");
    rows.group("conv", name, |rows| {
        let (_, voxels) = voxels()?;
        let context = rows.context.clone();
        let map = KernelMap::submanifold(&context, &voxels, [3; 3])?;
        let map = Arc::new(map);
        let precision = precise(dtype).precision;
        let multiplied = match precision {
            Precision::Tf32 => registry::Dtype::Tf32,
            Precision::Full => T::DTYPE,
        };
        let own = [names("conv", multiplied), names("conv_simt", multiplied)].concat();
        for [c, m] in [
            [16, 16],
            [32, 32],
            [64, 64],
            [64, 128],
            [128, 64],
            [96, 96],
            [128, 128],
            [128, 192],
            [256, 256],
            [33, 65],
        ] {
            let stream = rows.stream();
            let x = rows.dense::<T>(&[voxels.len(), c])?;
            let w = rows.dense::<T>(&[27, c, m])?;
            let mut out = context.zeros::<T>(&[voxels.len(), m])?;
            let make = |variant: Option<&str>| {
                let options = ConvOptions {
                    precision,
                    variant: variant.map(str::to_owned),
                    ..ConvOptions::default()
                };
                let conv = SparseConv3d::<T>::new(&map, [c, m], &options)?;
                let (taken, x, w, stream) = (conv.variant(), &x, &w, &stream);
                let run = move |out: &mut _| conv.forward(x, w, None, out, stream);
                Ok(Made::alone(taken, run))
            };
            let case = format!("{name} {c} to {m}");
            rows.case(["conv", &case], (&mut out, NAN, T::DTYPE), &own, &make)?;
        }
        Ok(())
    })
}

/// Measures products with dynamic detection of empty micro-tiles.
fn found<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    for (height, width) in [(128, 1), (64, 1), (32, 1), (1, 64)] {
        for empty in [98, 90, 70, 50] {
            let name = &format!("micro{height}x{width}-e{empty} {dtype}");
            rows.group("pit", name, |rows| {
                let (a, _) = sample::<T>((height, width), empty)?;
                let a = rows.context.upload_dense(&a)?;
                let expected = SparsityHint::MicroTiles(1.0 - f64::from(empty) / 100.0);
                let a_found: Operand<'_, T> = Dynamic::new(&a).expecting(expected).into();
                for n in [256, 1024, 4096] {
                    let b = rows.dense::<T>(&[EXTENT, n])?;
                    let turned = rows.dense::<T>(&[n, EXTENT])?;
                    let (a, b) = (("A", a_found.clone()), ("B", (&b).into()));
                    let turned = ("B", (&turned).into());
                    for (expression, operands) in [
                        (SPMM, [a.clone(), b.clone()]),
                        ("C[m,n] = A[k,m] * B[k,n]", [a.clone(), b.clone()]),
                        ("C[m,n] = B[m,k] * A[k,n]", [turned, a.clone()]),
                        ("C[m,n] = B[k,m] * A[k,n]", [b, a]),
                    ] {
                        let mut others = Vec::new();
                        if expression == SPMM {
                            others = names("pit", T::DTYPE);
                            // These read a transposed operand.
                            others.retain(|name| !name.ends_with("1x64"));
                        }
                        let case = format!("{name} n{n} {expression}");
                        let label = ["pit", case.as_str()];
                        rows.plan::<T, T>(label, expression, &operands, &precise(dtype), &others)?;
                    }
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Measures products of few rows with empty columns.
fn few<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    for m in [1, 8, 16, 24, 32, 64] {
        for empty in [98, 90, 70] {
            let name = &format!("few{m}-e{empty} {dtype}");
            rows.group("pit_few", name, |rows| {
                for [k, n] in [
                    [4096, 4096],
                    [1024, 4096],
                    [11008, 4096],
                    [4096, 11008],
                    [4096, 1000],
                    [1024, 256],
                ] {
                    let mut rng = StdRng::seed_from_u64(SEED);
                    let there: Vec<bool> =
                        (0..k).map(|_| rng.random_range(0..100) >= empty).collect();
                    let mut host = values::<T>(m * k, 1);
                    for (i, value) in host.iter_mut().enumerate() {
                        if !there[i % k] {
                            *value = T::ZERO;
                        }
                    }
                    let a = Dense::new([m, k], host)?;
                    let a = rows.context.upload_dense(&a)?;
                    let expected = SparsityHint::MicroTiles(1.0 - f64::from(empty) / 100.0);
                    let b = rows.dense::<T>(&[k, n])?;
                    let own = Dynamic::new(&a).expecting(expected);
                    let operands = [("A", own.into()), ("B", (&b).into())];
                    let case = format!("{name} {k}x{n}");
                    let others = names("pit_few", T::DTYPE);
                    let label = ["pit_few", case.as_str()];
                    rows.plan::<T, T>(label, SPMM, &operands, &precise(dtype), &others)?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Measures rows times the matrices of their experts.
fn experts<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    let own = names("grouped", T::DTYPE);
    for (tokens, top, count, k, n) in [
        (4096, 1, 64, 768, 3072),
        (4096, 1, 64, 3072, 768),
        (4096, 2, 8, 1024, 4096),
        (512, 2, 8, 1024, 1024),
        (4096, 8, 64, 1024, 1536),
        (64, 2, 16, 1024, 1024),
        (4096, 1, 16, 512, 256),
        (4096, 1, 16, 512, 128),
        (1, 2, 8, 4096, 2048),
        (16, 8, 64, 1024, 768),
    ] {
        let name = &format!("experts{count}-{tokens}x{top}-{k}x{n} {dtype}");
        rows.group("grouped", name, |rows| {
            let (context, stream) = (rows.context.clone(), rows.stream());
            let mut routing = Routing::new(&context, [tokens, top], count)?;
            let chosen = (0..tokens * top).map(|i| (i * 7 % count) as i32).collect();
            let chosen = Dense::new([tokens, top], chosen)?;
            let chosen = context.upload_dense(&chosen)?;
            routing.run(&chosen, &stream)?;
            let a = rows.dense::<T>(&[tokens, k])?;
            let gates = [None, Some(Gate::Silu)];
            let stored = [
                (false, false, false),
                (true, false, false),
                (true, true, false),
                (true, true, true),
            ];
            let ways = gates.map(|gate| stored.map(|stored| (stored, gate)));
            for ((transposed, scaled, quantize), gate) in ways.concat() {
                let wide = n * (1 + usize::from(gate.is_some()));
                let w = rows.dense::<T>(&match (transposed, scaled) {
                    (_, true) => [0, wide, k],
                    (true, _) => [count, wide, k],
                    (false, _) => [count, k, wide],
                })?;
                let experts = if scaled { count } else { 0 };
                let codes = rows.dense::<E4m3>(&[experts, wide, k])?;
                let blocks = [wide, k].map(|extent| extent.div_ceil(SCALE_BLOCK));
                let scales = rows.dense::<f32>(&[experts, blocks[0], blocks[1]])?;
                let w = match scaled {
                    true => Matrices::Scaled(&codes, &scales),
                    false => Matrices::Plain(&w),
                };
                let mut out = context.zeros::<T>(&[tokens * top, n])?;
                let make = |variant: Option<&str>| {
                    let options = GroupedOptions {
                        k,
                        n,
                        gather: true,
                        scatter: false,
                        activation: Activation::Identity,
                        transposed,
                        gate,
                        scaled,
                        quantize,
                    };
                    let product = GroupedGemm::<T>::with_variant(&routing, &options, variant)?;
                    let (a, stream, routing) = (&a, &stream, &routing);
                    let taken = product.variants()[0];
                    let run = move |out: &mut _| product.forward(routing, a, w, None, out, stream);
                    Ok(Made::alone(taken, run))
                };
                let turned = if transposed { " transposed" } else { "" };
                let gated = if gate.is_some() { " gated" } else { "" };
                let scaled = match (scaled, quantize) {
                    (false, _) => "",
                    (true, false) => " e4m3",
                    (true, true) => " w8a8",
                };
                let case = format!("{name}{turned}{gated}{scaled}");
                rows.case(["grouped", &case], (&mut out, NAN, T::DTYPE), &own, &make)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Records the kernels of operations that select kernels by a rule, which no name overrides.
fn by_rule<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    let name = &format!("layers {dtype}");
    rows.group("encoder", name, |rows| {
        for width in [256, 512, 768, 1024, 2048] {
            for hidden in [2 * width, 4 * width] {
                for expected in [64, 256, 1024, 1600, 4096] {
                    let options = EncoderOptions {
                        items: 32,
                        distance: 128,
                        width,
                        heads: width / 64,
                        hidden,
                        epsilon: 1e-5,
                        most: None,
                        expected: Some(expected),
                    };
                    let layer = Encoder::<T>::new(&rows.context, &options)?;
                    let case = format!("{width}-{hidden} of {expected} {dtype}");
                    rows.chosen(["encoder", &case], &layer.variants())?;
                }
            }
        }
        Ok(())
    })?;
    rows.group("pit_conv", name, |rows| {
        for (size, width) in LAYERS.into_iter().chain([(112, 64), (14, 1024), (28, 64)]) {
            for (images, stride) in [(IMAGES, 1), (1, 1), (IMAGES, 2)] {
                for axis in [ConvolutionAxis::Channels, ConvolutionAxis::Filters] {
                    let options = ConvolutionOptions {
                        axis,
                        stride: [stride; 2],
                        ..ConvolutionOptions::default().same([3, 3])
                    };
                    let (a, b) = ([images, size, size, width], [3, 3, width, width]);
                    let own = DynamicConvolution::<T>::new(&rows.context, a, b, &options)?;
                    let case = format!("{images}x{size}x{width} by {stride} {axis:?} {dtype}");
                    rows.chosen(["pit_conv", &case], &own.variants())?;
                }
            }
        }
        Ok(())
    })
}
