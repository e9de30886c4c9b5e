//! Batches of products over unstructured nonzeros in which each item has its own values, or its own pattern.

use super::transposed::{matrix, product};
use crate::support::einsum::{Given, agrees, integer};
use crate::support::{gpu, on_both, spread};
use einsparse::formats::{Coo, CooPattern, Csr, Dense, f16};
use einsparse::raw::RawSpmm;
use einsparse::{Context, Operand, Options, Scalar};

/// Each item of a batch has its own values, passed by addresses.
#[test]
fn each_of_a_batch_may_have_its_values() {
    let Some(gpu) = gpu() else { return };
    let (n, items) = (20, 3);
    for transposed in [false, true] {
        let csr = matrix::<f32>(spread(&[3, 0, 5, 9, 1], 9));
        let nnz = csr.values().len();
        let (m, k) = if transposed { (9, 5) } else { (5, 9) };
        let stride = (nnz + 8).next_multiple_of(4);
        let all = Dense::from_fn([items, stride], |i| integer(i[0] * 5 + i[1]) as f32).unwrap();
        let all_there = gpu.upload_dense(&all).unwrap();
        let a = gpu.upload(&csr).unwrap();
        let value = |z: usize, k: usize, j: usize| integer(z * 31 + k * 13 + j * 5);
        let b = Dense::from_fn([items, k, n], |i| value(i[0], i[1], i[2]) as f32).unwrap();
        let b = gpu.upload_dense(&b).unwrap();
        let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let text = if transposed {
            "C[z,m,n] = A[k,m] * B[z,k,n]"
        } else {
            "C[z,m,n] = A[m,k] * B[z,k,n]"
        };
        let plan = gpu.plan(text).operands(&operands).build().unwrap();
        let c = gpu.zeros::<f32>(&[items, m, n]).unwrap();
        let raw = RawSpmm::default()
            .columns(a.columns_address().unwrap())
            .values(all_there.address().unwrap())
            .value_stride(stride)
            .b(b.address().unwrap())
            .ldb(n)
            .c(c.address().unwrap())
            .ldc(n);
        let stream = gpu.stream().unwrap();
        // SAFETY: the tensors have the sizes that the plan requires, and live past the wait.
        unsafe { plan.run_raw(&raw, stream.raw()).unwrap() };
        stream.synchronize().unwrap();
        let c = c.to_dense().unwrap();
        for z in 0..items {
            let own = all.values()[z * stride..][..nnz].to_vec();
            let own = Csr::new(csr.pattern().clone(), own).unwrap();
            let wanted = product(&own, transposed, n, |k, j| value(z, k, j));
            let found = c.values()[z * m * n..][..m * n].iter().map(|&x| f64::from(x));
            assert!(found.eq(wanted), "{transposed} {z}");
        }
    }
}

/// Each item of a batch has its own pattern, in one launch: `A[z,m,k]` in COO.
fn patterns_of_their_own<T: Scalar>(context: &Context) {
    let (items, m, k) = (4, 6, 11);
    let lens = [[3, 0, 11, 2, 0, 1], [0; 6], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 9]];
    let all: Vec<Csr<T>> = lens.iter().map(|lens| matrix(spread(lens, k))).collect();
    let mut coords = vec![Vec::new(); 3];
    let mut values = Vec::new();
    for (z, csr) in all.iter().enumerate() {
        for row in 0..m {
            for p in csr.pattern().row(row) {
                let place = [z as u32, row as u32, csr.pattern().columns()[p]];
                coords.iter_mut().zip(place).for_each(|(c, i)| c.push(i));
                values.push(csr.values()[p]);
            }
        }
    }
    let pattern = CooPattern::new(vec![items, m, k], coords).unwrap();
    let a = Given::Sparse(Coo::new(pattern, values).unwrap().into());
    let text = "C[z,m,n] = relu(A[z,m,k] * B[z,k,n] + bias[n])";
    for n in [1, 8, 65] {
        let given = [
            ("A", a.clone()),
            ("B", Given::integers(&[items, k, n], 0)),
            ("bias", Given::integers(&[n], 0)),
        ];
        agrees::<T, T>(context, text, &given, &Options::default(), (|n| n, &n));
    }
}

on_both! {
    each_of_a_batch_may_have_its_pattern: cpu [patterns_of_their_own::<f32>],
        gpu [patterns_of_their_own::<f32>, patterns_of_their_own::<f16>];
}
