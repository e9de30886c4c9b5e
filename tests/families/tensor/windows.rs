//! Affine indices on a GPU: convolutions by plans over index arrays, equal to loops; replayed with new values, next to
//! sparse and dynamic operands.

use einsparse::dynamic::{Dynamic, SparsityHint};
use einsparse::formats::{AnySparse, Format, bf16, f16};
use einsparse::{Context, Determinism, Graph, Operand, Options, Plan, Scalar, einsum};

use crate::support::dense::{nan, upload};
use crate::support::runs::{finish, plan_and_run, sampled_plan_of};
use crate::support::windows::{entries, full_where_stored};
use crate::support::{by_loops, gpu, gpu_alone, on_both, whole, windows_agree};

/// Expressions over four axes must use the general kernels.
fn general<T: Scalar>(text: &str, plan: &Plan<T>) {
    if text.starts_with("C[n,x,y,f]") {
        assert!(plan.variant().starts_with("einsum"), "{text}: {plan}");
    }
}

#[test]
fn windows_are_what_loops_give() {
    let Some(gpu) = gpu() else { return };
    windows_agree::<f32>(&gpu, general);
    windows_agree::<f64>(&gpu, general);
    // 16-bit types have a specialized kernel.
    windows_agree::<f16>(&gpu, |_, _| ());
    windows_agree::<bf16>(&gpu, |_, _| ());
}

const TEXT: &str = "C[n,x,y,f] = A[n,2*x+i,y+2*j,m] * B[i,j,m,f]";
const A: [usize; 4] = [2, 9, 12, 8];
const B: [usize; 4] = [3, 3, 8, 16];

#[test]
fn captured_windows_are_replayed_with_new_values() {
    let Some(gpu) = gpu_alone() else { return };
    let (stream, b) = (gpu.stream().unwrap(), whole(&B, 40));
    let on_gpu = gpu.upload_dense(&b.map(|x| x as f32)).unwrap();
    let mut a = gpu.zeros::<f32>(&A).unwrap();
    let mut c = gpu.zeros::<f32>(&[2, 4, 8, 16]).unwrap();
    // The plan and its arrays outlive the operands that it was made of.
    let (_plan, mut graph) = {
        let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&on_gpu).into())];
        let plan = gpu.plan(TEXT).operands(&operands).build().unwrap();
        let graph = Graph::capture(stream.raw(), |_| plan.run(&operands, &mut c, &stream));
        (plan, graph.unwrap())
    };
    for seed in [50, 60, 70] {
        let values = whole(&A, seed);
        a.write(&values.map(|x| x as f32)).unwrap();
        c.write(&nan(&[2, 4, 8, 16])).unwrap();
        // SAFETY: operands, output and plan live past the wait below.
        unsafe { graph.launch(stream.raw()) }.unwrap();
        stream.synchronize().unwrap();
        let wanted = by_loops(TEXT, &[("A", values), ("B", b.clone())]);
        assert_eq!(c.to_dense().unwrap().map(f64::from), wanted, "{seed}");
    }
}

/// One sparse factor, two sparse factors, and a sparse output, together with an operand that is read at an affine
/// index.
fn beside_sums(context: &Context) {
    let (s, a) = (AnySparse::from(entries(&[5, 4])), whole(&[12, 6], 3));
    let dense = s.to_dense().unwrap();
    for format in [Format::Coo, Format::Csr] {
        let s = s.convert(format).unwrap();
        for text in ["C[x,n] = S[x,i] * A[2*x+i,n]", "C[x,n] = S[x,i] * T[x,i] * A[x+i,n]"] {
            let two = text.contains('T');
            let c = match two {
                true => einsum!(*context, text, S = &s, T = &s, A = &a),
                false => einsum!(*context, text, S = &s, A = &a),
            };
            let mut all = vec![("S", dense.clone()), ("A", a.clone())];
            all.extend(two.then(|| ("T", dense.clone())));
            let found = c.unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found.to_dense().unwrap(), by_loops(text, &all), "{text}, {format}");
        }
        let mut out = context.upload(&s).unwrap();
        let b = whole(&[3, 6, 4], 4);
        let text = "S[x,f] = A[x+2*i,n] * B[i,n,f]";
        let [on_a, on_b] = upload(context, [&a, &b]);
        let operands: [(&str, Operand<'_, f64>); 2] =
            [("A", (&on_a).into()), ("B", (&on_b).into())];
        let plan = sampled_plan_of(context, text, &operands, &out);
        finish(context, |stream| plan.run(&operands, &mut out, stream));
        let full = by_loops(text, &[("S", dense.clone()), ("A", a.clone()), ("B", b)]);
        full_where_stored(text, &out, &dense, &full);
    }
}

on_both! {
    sparse_operands_stand_beside_sums: cpu [beside_sums], gpu [beside_sums];
}

/// A dynamic operand may always be used as the dense tensor that it is.
#[test]
fn dynamic_operands_may_be_read_at_sums() {
    let Some(gpu) = gpu() else { return };
    let (a, b) = (whole(&A, 5), whole(&B, 6));
    let [on_a, on_b] = [&a, &b].map(|d| gpu.upload_dense(&d.map(f16::from_f64)).unwrap());
    let wanted = by_loops(TEXT, &[("A", a), ("B", b)]);
    for expected in [SparsityHint::MicroTiles(0.1), SparsityHint::Elements(0.02)] {
        let active = Dynamic::new(&on_a).expecting(expected);
        let operands = [("A", active.into()), ("B", (&on_b).into())];
        for determinism in [Determinism::default(), Determinism::Relaxed] {
            let options = Options::default().determinism(determinism);
            let (plan, c) = plan_and_run(&gpu, TEXT, &operands, &options);
            let found = c.to_dense().unwrap().map(f16::to_f64);
            assert_eq!(found, wanted, "{plan}");
        }
    }
}
