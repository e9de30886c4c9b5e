//! Injected failures: each allocation of plans, runs and conversions in order, and the loss of the GPU. Each returns an
//! error, leaks nothing, and leaves later results unchanged.

use crate::support::assert_error;
use std::process::Command;
use std::sync::Arc;

use einsparse::driver::trial;
use einsparse::dynamic::{GroupedGemm, GroupedOptions, Routing};
use einsparse::formats::{
    AnySparse, Coo, CooPattern, Csr, CsrPattern, Dense, Format, f16, generate,
};
use einsparse::nn::{Moe, MoeInputs};
use einsparse::ops::{
    AttentionOptions, ConvGeometry, ConvOptions, HostSpmm, KernelMap, KernelMapBuilder,
    SparseAttention, SparseConv3d, SparseSoftmax,
};
use einsparse::raw::RawSpmm;
use einsparse::{
    Context, Error, Operand, Options, Result, Scalar, SparseTensor, Stream, Tensor, Weights,
};

use crate::support::dense::integers;
use crate::support::runs::plan_of;
use crate::support::skipping::{LEFT, RIGHT, TRANSPOSED};
use crate::support::{Rng, gpu, gpu_alone};

/// A name, and one sequence of calls from operands to values.
type Way<'w> = (&'static str, Box<dyn Fn() -> Result<Vec<f64>> + 'w>);

fn add<'w>(ways: &mut Vec<Way<'w>>, name: &'static str, way: impl Fn() -> Result<Vec<f64>> + 'w) {
    ways.push((name, Box::new(way)));
}

fn ones<T: Scalar>(shape: &[usize]) -> Dense<T> {
    integers(shape, 7)
}

fn pattern() -> CsrPattern {
    generate::uniform(130, 96, 0.2, 5).unwrap()
}

fn matrix<T: Scalar>(format: &str) -> AnySparse<T> {
    let pattern = pattern();
    let values = Rng(3).integers(pattern.columns().len());
    let csr = AnySparse::from(Csr::new(pattern, values).unwrap());
    csr.convert(format.parse::<Format>().unwrap()).unwrap()
}

fn values<T: Scalar>(tensor: &Tensor<T>) -> Result<Vec<f64>> {
    Ok(tensor.to_dense()?.map(T::to_f64).into_values())
}

fn sparse_values<T: Scalar>(tensor: &SparseTensor<T>) -> Result<Vec<f64>> {
    let host = tensor.to_host()?;
    Ok(host.values().iter().map(|x| x.to_f64()).collect())
}

/// Runs into an output of zeros and waits.
fn finish<T: Scalar>(
    context: &Context,
    shape: &[usize],
    run: impl FnOnce(&mut Tensor<T>, &Stream) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut out = context.zeros::<T>(shape)?;
    let stream = context.stream()?;
    let ran = run(&mut out, &stream);
    stream.synchronize()?;
    ran?;
    values(&out)
}

/// Builds and runs a plan over one sparse operand and dense ones of these shapes.
fn planned<T: Scalar>(
    context: &Context,
    text: &str,
    a: AnySparse<T>,
    dense: &[(&'static str, &[usize])],
    rule: Weights,
) -> Result<Vec<f64>> {
    let a = context.upload(a)?;
    let uploaded = |(name, shape): &(&'static str, &[usize])| -> Result<_> {
        Ok((*name, context.upload_dense(&ones::<T>(shape))?))
    };
    let dense: Vec<_> = dense.iter().map(uploaded).collect::<Result<_>>()?;
    let mut operands: Vec<(&str, Operand<'_, T>)> = vec![("A", (&a).into())];
    operands.extend(dense.iter().map(|(name, d)| (*name, d.into())));
    let options = Options::default().weights(rule);
    let plan = context.plan(text).operands(&operands).options(&options).build()?;
    finish(context, plan.out_shape(), |c, stream| plan.run(&operands, c, stream))
}

fn plans<'w>(context: &'w Context) -> Vec<Way<'w>> {
    const SPMM: &str = "C[m,n] = A[m,k] * B[k,n]";
    let each = Weights::EachRun;
    let mut ways: Vec<Way<'w>> = Vec::new();
    for format in ["csr", "coo", "ell", "groupcoo:4", "bsr:16x16", "blockgroupcoo:32x32"] {
        add(&mut ways, "a product", move || {
            planned::<f16>(context, SPMM, matrix(format), &[("B", &[96, 64])], each)
        });
    }
    add(&mut ways, "a product of kept values", move || {
        planned::<f16>(context, SPMM, matrix("csr"), &[("B", &[96, 64])], Weights::Static)
    });
    // Limits for work lists on the GPU, for lists that are copied with the chunks, and for an A that fits. A is
    // page-locked or not.
    for (limit, pinned) in
        [(9000, true), (9000, false), (4000, true), (4000, false), (1 << 20, false)]
    {
        add(&mut ways, "a product under a memory limit", move || {
            let a = matrix::<f32>("csr");
            let locked = if pinned { Some(context.pin(&a)?) } else { None };
            let b = context.upload_dense(&ones::<f32>(&[96, 32]))?;
            let a = locked.as_ref().map_or((&a).into(), Operand::from);
            let operands: [(&str, Operand<'_, f32>); 2] = [("A", a), ("B", (&b).into())];
            let options = Options::default().memory_limit(limit);
            let plan = context.plan(SPMM).operands(&operands).options(&options).build()?;
            finish(context, plan.out_shape(), |c, stream| plan.run(&operands, c, stream))
        });
    }
    for pinned in [true, false] {
        add(&mut ways, "a product through the host", move || {
            let a = matrix::<f32>("csr");
            let there = match pinned {
                true => context.pin(&a)?,
                false => context.upload(&a)?,
            };
            let mut c = Dense::zeros([130, 64])?;
            let mut product = HostSpmm::new(context, &there, 64, 1 << 18)?;
            product.run(&there, &ones::<f32>(&[96, 64]), &mut c)?;
            Ok(c.values().iter().map(|x| f64::from(*x)).collect())
        });
    }
    add(&mut ways, "a transposed product", move || {
        let text = "C[m,n] = A[k,m] * B[k,n]";
        planned::<f32>(context, text, matrix("csr"), &[("B", &[130, 64])], each)
    });
    add(&mut ways, "a chain", move || {
        let text = "C[m,n] = A[m,k] * B[k,l] * D[l,n]";
        planned::<f32>(context, text, matrix("csr"), &[("B", &[96, 32]), ("D", &[32, 24])], each)
    });
    add(&mut ways, "an expression of no family", move || {
        let text = "C[n] = A[m,k] * B[k,n] * D[m,n]";
        planned::<f32>(context, text, matrix("coo"), &[("B", &[96, 8]), ("D", &[130, 8])], each)
    });
    add(&mut ways, "MTTKRP", move || {
        let mut rng = Rng(9);
        let mut all: Vec<[u32; 3]> =
            (0..500).map(|_| [40, 30, 20].map(|n| (rng.word() % n) as u32)).collect();
        all.sort_unstable();
        all.dedup();
        let axis = |axis: usize| all.iter().map(|place| place[axis]).collect();
        let pattern = CooPattern::new(vec![40, 30, 20], (0..3).map(axis).collect())?;
        let count = pattern.coords()[0].len();
        let a = AnySparse::from(Coo::new(pattern, Rng(2).integers::<f32>(count))?);
        let text = "C[i,r] = A[i,j,k] * B[j,r] * D[k,r]";
        planned(context, text, a, &[("B", &[30, 32]), ("D", &[20, 32])], each)
    });
    add(&mut ways, "a sampled product", move || {
        let mut s = context.upload(matrix::<f32>("csr"))?;
        let (x, y) = (ones::<f32>(&[130, 64]), ones::<f32>(&[96, 64]));
        let (x, y) = (context.upload_dense(&x)?, context.upload_dense(&y)?);
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let plan = context
            .plan("S[m,n] = X[m,k] * Y[n,k]")
            .operands(&operands)
            .sparse_output(&s)
            .build()?;
        let stream = context.stream()?;
        let ran = plan.run(&operands, &mut s, &stream);
        stream.synchronize()?;
        ran?;
        sparse_values(&s)
    });
    add(&mut ways, "blocks from entries", move || {
        let a = context.upload(matrix::<f16>("csr"))?;
        sparse_values(&a.to_blocks("blockgroupcoo:16x16:4".parse()?)?)
    });
    ways
}

fn operators<'w>(context: &'w Context) -> Vec<Way<'w>> {
    let mut ways: Vec<Way<'w>> = Vec::new();
    for (name, skipping) in [
        ("micro-tiles on the left", LEFT),
        ("micro-tiles of a transposed matrix", TRANSPOSED),
        ("micro-tiles on the right", RIGHT),
    ] {
        add(&mut ways, name, move || {
            let product = skipping.try_plan::<f16>(context, [128, 96, 64])?;
            let stored = if skipping.by_columns { [96, 128] } else { [128, 96] };
            let a = context.upload_dense(&ones(&stored))?;
            let b = context.upload_dense(&ones(&[96, 64]))?;
            finish(context, &[128, 64], |c, stream| product.run([&a, &b], c, stream))
        });
    }
    add(&mut ways, "a grouped product", move || {
        let mut routing = Routing::new(context, [64, 2], 4)?;
        let choices = Dense::from_fn([64, 2], |i| ((i[0] + i[1]) % 4) as i32)?;
        let choices = context.upload_dense(&choices)?;
        let options = GroupedOptions {
            k: 128,
            n: 256,
            gather: true,
            scatter: true,
            ..GroupedOptions::default()
        };
        let product = GroupedGemm::<f16>::new(&routing, &options)?;
        let x = context.upload_dense(&ones(&[64, 128]))?;
        let weights = context.upload_dense(&ones(&[4, 128, 256]))?;
        finish(context, &[128, 256], |out, stream| {
            routing.run(&choices, stream)?;
            product.forward(&routing, &x, &weights, None, out, stream)
        })
    });
    add(&mut ways, "a layer of experts", move || {
        let o = crate::families::gather_gemm::expert_options([64, 2], 4, [128, 256]);
        let mut layer = Moe::<f16>::new(context, &o)?;
        let choices = Dense::from_fn([64, 2], |i| ((i[0] + i[1]) % 4) as i32)?;
        let choices = context.upload_dense(&choices)?;
        let weights = context.upload_dense(&Dense::from_fn([64, 2], |_| 0.5)?)?;
        let x = context.upload_dense(&ones(&[64, 128]))?;
        let up = context.upload_dense(&ones(&[4, 128, 256]))?;
        let down = context.upload_dense(&ones(&[4, 256, 128]))?;
        finish(context, &[64, 128], |out, stream| {
            layer.forward(
                &MoeInputs {
                    x: &x,
                    choices: &choices,
                    weights: &weights,
                    up: (&up).into(),
                    down: (&down).into(),
                },
                out,
                stream,
            )
        })
    });
    add(&mut ways, "a convolution", move || {
        let voxels: Vec<_> = (0..200).map(|i| [0, i % 7, i / 7 % 7, i / 49]).collect();
        let geometry = ConvGeometry::new([3; 3], [1; 3], [1; 3])?;
        let map = KernelMap::new(context, &voxels, &geometry)?;
        // On a CPU context, maps are built on the host only.
        if context.is_cuda() {
            let builder = KernelMapBuilder::new(context, voxels.len(), &geometry)?;
            let words = voxels.iter().flatten().copied().collect();
            let places = context.upload_dense::<i32>(&Dense::new([200, 4], words)?)?;
            let stream = context.stream()?;
            let built = builder.rebuild(&map, &places, &stream);
            stream.synchronize()?;
            built?;
        }
        let conv = SparseConv3d::<f16>::new(&Arc::new(map), [64, 64], &ConvOptions::default())?;
        let x = context.upload_dense(&ones(&[200, 64]))?;
        let weights = context.upload_dense(&ones(&[27, 64, 64]))?;
        finish(context, &[200, 64], |out, stream| conv.forward(&x, &weights, None, out, stream))
    });
    add(&mut ways, "a softmax", move || {
        let a = context.upload(matrix::<f32>("csr"))?;
        let mut out = context.upload(matrix::<f32>("csr"))?;
        let softmax = SparseSoftmax::new(context, &a, &Default::default())?;
        let stream = context.stream()?;
        let ran = softmax.forward(&a, &mut out, &stream);
        stream.synchronize()?;
        ran?;
        sparse_values(&out)
    });
    add(&mut ways, "attention", move || {
        let mask = context.upload(matrix::<f16>("csr"))?;
        let options = AttentionOptions {
            heads: 2,
            key_heads: None,
            dim: 64,
            scale: None,
            causal: None,
            lengths: None,
        };
        let attention = SparseAttention::<f16>::new(context, &[&mask], &options)?;
        let q = context.upload_dense(&ones(&[2, 130, 64]))?;
        let k = context.upload_dense(&ones(&[2, 96, 64]))?;
        finish(context, &[2, 130, 64], |out, stream| {
            attention.forward([&q, &k, &k], out, None, stream)
        })
    });
    ways
}

/// Makes each allocation fail once, in order. Returns the number of allocations.
fn survives(context: &Context, (name, way): &Way<'_>) -> usize {
    let wanted = way().unwrap_or_else(|e| panic!("{name}: {e}"));
    context.synchronize().unwrap();
    let held = trial::live();
    for turn in 1.. {
        trial::refuse(turn);
        let found = way();
        let is_past = trial::is_refusal_ahead();
        trial::refuse(0);
        context.synchronize().unwrap();
        assert_eq!(trial::live(), held, "{name}, allocation {turn}: memory is left");
        match found {
            Err(Error::OutOfMemory { wanted, .. }) => assert!(wanted > 0),
            // The kernel that a plan names is refused.
            Err(error @ Error::NoKernel { .. }) => {
                assert!(error.to_string().contains("memory"), "{name}: {error}");
            }
            Err(error) => panic!("{name}, allocation {turn}: {error}"),
            // Another kernel may not need the allocation.
            Ok(values) => assert!(values == wanted, "{name}, allocation {turn}: wrong"),
        }
        if is_past {
            return turn as usize - 1;
        }
    }
    unreachable!("allocations end");
}

#[test]
fn every_allocation_may_fail() {
    let Some(gpu) = gpu_alone() else { return };
    trial::watch();
    let mut all = 0;
    for way in plans(&gpu).iter().chain(&operators(&gpu)) {
        let count = survives(&gpu, way);
        println!("{}: {count} allocations", way.0);
        assert!(count > 0, "{}", way.0);
        all += count;
    }
    println!("{all} allocations");
}

#[test]
fn every_way_runs_on_the_cpu() {
    let cpu = Context::cpu();
    for (name, way) in plans(&cpu).iter().chain(&operators(&cpu)) {
        let found = way().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(found.iter().any(|x| *x != 0.0), "{name}");
    }
}

/// The product that a lost GPU cannot run.
fn product(context: &Context) -> Result<Vec<f64>> {
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let dense: [(&'static str, &[usize]); 1] = [("B", &[96, 64])];
    planned::<f32>(context, text, matrix("csr"), &dense, Weights::EachRun)
}

const CHILD: &str = "EINSPARSE_TEST_LOSES_THE_GPU";

/// In a separate process: after an access to an invalid address, every call in the context returns an error. A new
/// context works, or reports that the process must be restarted; another process is unaffected.
#[test]
fn a_lost_gpu_says_so() {
    let Some(own) = gpu() else { return };
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().unwrap();
        let before = product(&own).unwrap();
        let name = "gpu::failures::a_lost_gpu_says_so";
        let child = Command::new(program)
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let told =
            [child.stdout, child.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(child.status.success(), "{}\n{}", told[0], told[1]);
        assert!(product(&own).unwrap() == before);
        return;
    }
    drop(own);
    let wanted;
    {
        let context = Context::cuda(0).unwrap();
        wanted = product(&context).unwrap();
        let (a, b) = (matrix::<f32>("csr"), ones::<f32>(&[96, 64]));
        let a = context.upload(a).unwrap();
        let b = context.upload_dense(&b).unwrap();
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let text = "C[m,n] = A[m,k] * B[k,n]";
        let plan = plan_of::<f32>(&context, text, &operands, &Options::default());
        let mut c = context.zeros::<f32>(plan.out_shape()).unwrap();
        let stream = context.stream().unwrap();
        let raw = RawSpmm::default()
            .columns(a.columns_address().unwrap())
            .values(a.values_address().unwrap())
            .b(1 << 46)
            .ldb(64)
            .c(c.address().unwrap())
            .ldc(64)
            .alpha(1.0);
        // SAFETY: violated on purpose, the address of B is invalid. The process ends with this test.
        unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap();
        let said = |error: Error| {
            assert_error!(error, Error::Cuda { code: Some(700), .. });
        };
        said(stream.synchronize().unwrap_err());
        said(stream.synchronize().unwrap_err());
        said(context.synchronize().unwrap_err());
        said(context.zeros::<f32>(&[8]).unwrap_err());
        said(c.to_dense().unwrap_err());
        said(plan.run(&operands, &mut c, &stream).unwrap_err());
        said(context.upload_dense(&ones::<f32>(&[4])).unwrap_err());
        said(product(&context).unwrap_err());
    }
    match Context::cuda(0) {
        Ok(context) => assert!(product(&context).unwrap() == wanted),
        // Behavior of the drivers observed so far.
        Err(error) => assert_error!(error, Error::Cuda { code: Some(700..800), .. }),
    }
}
