//! Runs of SDDMM at unstructured nonzeros: raw addresses, graphs, refusals.

use super::{COLUMNS, Case, GAP, LENS};
use crate::support::assert_error;
use crate::support::dense::upload;
use crate::support::rows::named;
use crate::support::runs::sampled_plan_of;
use crate::support::{gpu, gpu_alone, spread};
use einsparse::formats::{Csr, Dense, f16};
use einsparse::raw::RawSddmm;
use einsparse::{Context, Error, Graph};

#[test]
fn raw_addresses_write_the_values_and_nothing_around_them() {
    let Some(gpu) = gpu() else { return };
    let case = Case::<f32>::integers(&LENS, 40);
    let [x, y] = upload(&gpu, [&case.x, &case.y]);
    let s = gpu.upload(&case.s).unwrap();
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let plan = sampled_plan_of(&gpu, "S[m,n] = X[m,k] * Y[n,k]", &operands, &s);
    let entries = case.s.values().len();
    let guarded = Dense::new([entries + 2 * GAP], vec![77.0f32; entries + 2 * GAP]).unwrap();
    let out = gpu.upload_dense(&guarded).unwrap();
    let mut raw = RawSddmm::default()
        .columns(s.columns_address().unwrap())
        .x(x.address().unwrap())
        .ldx(40)
        .y(y.address().unwrap())
        .ldy(40)
        .mask(0)
        .values(out.address().unwrap() + 4 * GAP as u64)
        .alpha(3.0);
    let stream = gpu.stream().unwrap();
    // SAFETY: the addresses are those of operands of the planned shapes, all alive until the stream is synchronized.
    unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap();
    stream.synchronize().unwrap();
    let found = out.to_dense().unwrap();
    let (inside, around) = (GAP..GAP + entries, |i: usize| i < GAP || i >= GAP + entries);
    assert!((0..found.values().len()).filter(|&i| around(i)).all(|i| found.values()[i] == 77.0));
    for (place, &found) in case.places().into_iter().zip(&found.values()[inside]) {
        assert_eq!(f64::from(found), 3.0 * case.sum(place).0);
    }
    raw.ldx = 36;
    // SAFETY: the call is refused before anything is launched.
    let narrow = unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap_err();
    assert_error!(narrow, Error::RowStride { found: 36, .. });
    raw.mask = raw.values;
    // SAFETY: as for the refused call above.
    let mask = unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap_err();
    assert_error!(mask, Error::OutOfRange { name, .. } if name == "address of the mask");
}

#[test]
fn a_captured_run_is_replayed() {
    let Some(gpu) = gpu_alone() else { return };
    let case = Case::<f16>::integers(&LENS, 64);
    let [x, y] = upload(&gpu, [&case.x, &case.y]);
    let mut s = gpu.upload(&case.s).unwrap();
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let plan = sampled_plan_of(&gpu, "S[m,n] += X[m,k] * Y[n,k]", &operands, &s);
    let stream = gpu.stream().unwrap();
    let mut graph = Graph::capture(stream.raw(), |_| plan.run(&operands, &mut s, &stream)).unwrap();
    for _ in 0..2 {
        // SAFETY: operands, output and plan live past the wait below.
        unsafe { graph.launch(stream.raw()) }.unwrap();
    }
    stream.synchronize().unwrap();
    let found = s.to_host().unwrap();
    let old = case.s.values();
    for ((place, found), old) in case.places().into_iter().zip(found.values()).zip(old) {
        let wanted = 2.0 * case.sum(place).0 + old.to_f64();
        assert_eq!(found.to_f64(), wanted, "{place:?}");
    }
}

#[test]
fn entries_refuse_orders_and_variants_that_are_not_there() {
    let gpu = gpu();
    let cpu = Context::unchecked_cpu();
    let case = Case::<f32>::integers(&LENS, 8);
    let context = gpu.as_deref().unwrap_or(&cpu);
    let x = context.upload_dense(&case.x).unwrap();
    let y = context.upload_dense(&Dense::<f32>::zeros([8, COLUMNS]).unwrap()).unwrap();
    let s = context.upload(&case.s).unwrap();
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    match context.plan("S[m,n] = X[m,k] * Y[k,n]").operands(&operands).sparse_output(&s).build() {
        Ok(plan) => {
            // There is no specialized kernel; the general kernels run the expression.
            let general = |name: &str| name == "cpu" || name.starts_with("einsum_");
            assert!(general(plan.variant()), "{}", plan.variant());
            assert!(plan.choice().candidates.iter().all(|c| general(c.name)));
            let reads = |r: &einsparse::error::Refusal| r.reason.contains("reads [m,k] and [n,k]");
            assert!(plan.choice().refused.iter().any(reads));
        }
        Err(Error::NoKernel { tried, .. }) => {
            assert!(tried.iter().any(|(_, reason)| reason == "reads [m,k] and [n,k]"));
        }
        Err(other) => panic!("{other}"),
    }
    let options = named("sddmm_nowhere");
    let operands = [("X", (&x).into()), ("Y", (&x).into())];
    let small = context.upload(Csr::new(spread(&[1; 16], 16), vec![0.0f32; 16]).unwrap()).unwrap();
    let text = "S[m,n] = X[m,k] * Y[n,k]";
    let unknown = context
        .plan(text)
        .operands(&operands)
        .sparse_output(&small)
        .options(&options)
        .build()
        .unwrap_err();
    assert!(unknown.to_string().contains("no kernel has this name"), "{unknown}");
}
