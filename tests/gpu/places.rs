//! Errors of a run before any launch: streams and tensors of another context, invalid raw operands, and kernels that
//! are not in the table. In addition, a scalar factor that is not finite.

use crate::support::dense::upload;
use crate::support::gpu;
use crate::support::rows::{named, products_here};
use crate::support::runs::plan_and_run;
use einsparse::formats::{Csr, CsrPattern, Dense};
use einsparse::raw::RawSpmm;
use einsparse::registry::WalkKind;
use einsparse::{Context, Error, Operand, Stream};

const TEXT: &str = "C[m,n] = s * A[m,k] * B[k,n] + bias[n]";

/// Three rows; the second has no nonzeros.
fn matrix() -> Csr<f32> {
    let pattern = CsrPattern::new(3, 4, vec![0, 2, 2, 3], vec![0, 3, 1]).unwrap();
    Csr::new(pattern, vec![1.0, 2.0, 3.0]).unwrap()
}

fn name_of(error: Error) -> String {
    error.name().unwrap_or_else(|| panic!("{error}")).to_owned()
}

#[test]
fn another_place_is_refused() {
    let Some(gpu) = gpu() else { return };
    let cpu = Context::cpu();
    let (b, bias) = (Dense::zeros([4, 32]).unwrap(), Dense::zeros([32]).unwrap());
    let a = gpu.upload(matrix()).unwrap();
    let [on_gpu, bias] = upload(&gpu, [&b, &bias]);
    let on_cpu = cpu.upload_dense(&b).unwrap();
    let with = |b| -> [(&str, Operand<'_, f32>); 4] {
        [("A", (&a).into()), ("B", b), ("bias", (&bias).into()), ("s", 1.0.into())]
    };
    let good = with((&on_gpu).into());
    let plan = gpu.plan(TEXT).operands(&good).build().unwrap();
    let mut c = gpu.zeros(&[3, 32]).unwrap();
    let run = |operands: &[(&str, Operand<'_, f32>)], c: &mut _, stream: &Stream| {
        name_of(plan.run(operands, c, stream).unwrap_err())
    };
    let stream = gpu.stream().unwrap();
    assert_eq!(run(&good, &mut c, &cpu.stream().unwrap()), "stream");
    assert_eq!(run(&with((&on_cpu).into()), &mut c, &stream), "B");
    assert_eq!(run(&good, &mut cpu.zeros(&[3, 32]).unwrap(), &stream), "C");

    let raw = RawSpmm::default()
        .columns(a.columns_address().unwrap())
        .values(a.values_address().unwrap())
        .b(on_gpu.address().unwrap())
        .ldb(32)
        .c(c.address().unwrap())
        .ldc(32)
        .bias(bias.address().unwrap());
    let refused = |raw| {
        // SAFETY: each of these calls returns an error before any launch.
        name_of(unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap_err())
    };
    assert_eq!(refused(raw.ldc(0)), "C");
    assert_eq!(refused(raw.ldb(28)), "B");
    assert_eq!(refused(raw.bias(0)), "bias");
    assert_eq!(refused(raw.values(raw.values + 4)), "values of A");
}

/// A row without nonzeros has no product, so an infinite factor does not change it, on every row of the table as on the
/// CPU.
#[test]
fn an_infinite_factor_meets_only_entries() {
    let Some(gpu) = gpu() else { return };
    let b = Dense::from_fn([4, 32], |i| i[1] as f32 + 1.0).unwrap();
    let bias = Dense::from_fn([32], |i| i[0] as f32).unwrap();
    let a = gpu.upload(matrix()).unwrap();
    let [b, bias] = upload(&gpu, [&b, &bias]);
    let operands: [(&str, Operand<'_, f32>); 4] = [
        ("A", (&a).into()),
        ("B", (&b).into()),
        ("bias", (&bias).into()),
        ("s", f64::INFINITY.into()),
    ];
    let rows = products_here().filter(|r| r.walk == WalkKind::Csr && r.dtype.name() == "f32");
    for row in rows {
        let (_, c) = plan_and_run(&gpu, TEXT, &operands, &named(row.name));
        let c = c.to_dense().unwrap();
        for n in 0..32 {
            assert_eq!(c.get(&[0, n]), Some(f32::INFINITY), "{}", row.name);
            assert_eq!(c.get(&[1, n]), Some(n as f32), "{}", row.name);
        }
    }
}

#[test]
fn a_kernel_that_does_not_exist_is_named() {
    let options = named("spmm_of_dreams");
    let (a, b) = (matrix(), Dense::<f32>::zeros([4, 2]).unwrap());
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let error = Context::cpu()
        .plan("C[m,n] = A[m,k] * B[k,n]")
        .operands(&operands)
        .options(&options)
        .build()
        .unwrap_err();
    let Error::NoKernel { tried, .. } = error else { panic!("{error}") };
    assert_eq!(tried.len(), 1);
    assert_eq!(tried[0].0, "spmm_of_dreams");
}
