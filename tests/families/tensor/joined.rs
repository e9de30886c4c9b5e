//! Sparse-sparse joins on the GPU, whose lists must equal those of the CPU; and products over hybrid GroupCOO.

use crate::support::runs::plan_and_run;
use crate::support::{gpu, small};
use einsparse::formats::{AnySparse, Coo, CooPattern, Csr, CsrPattern, Dense, convert, generate};
use einsparse::{Context, Operand, Options};

fn random(m: usize, k: usize, density: f64, seed: u64) -> AnySparse<f32> {
    let pattern = generate::uniform(m, k, density, seed).unwrap();
    let values = generate::small_integers(pattern.columns().len(), seed);
    Csr::new(pattern, values).unwrap().into()
}

/// Compares every list of the two contexts, and the values of a run if a kernel supports the joined expression.
fn assert_same(gpu: &Context, text: &str, operands: &[(&str, AnySparse<f32>)]) {
    let host: Vec<(&str, Operand<'_, f32>)> =
        operands.iter().map(|(n, a)| (*n, a.into())).collect();
    let cpu = Context::unchecked_cpu();
    let found = gpu.position_lists(text, &host).unwrap();
    let wanted = cpu.position_lists(text, &host).unwrap();
    assert_eq!(found.rows, wanted.rows, "{text}");
    assert!(found == wanted, "{text}: {} rows", wanted.rows);
    let uploaded: Vec<_> = operands.iter().map(|(n, a)| (*n, gpu.upload(a).unwrap())).collect();
    let on_gpu: Vec<(&str, Operand<'_, f32>)> =
        uploaded.iter().map(|(n, a)| (*n, a.into())).collect();
    let run = |context: &Context, operands: &[(&str, Operand<'_, f32>)]| {
        let (_, out) = plan_and_run(context, text, operands, &Options::default());
        out.to_dense().unwrap()
    };
    assert_eq!(run(gpu, &on_gpu), run(&cpu, &host), "{text}");
}

#[test]
fn entries_that_meet_are_those_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let most = if small() { 60 } else { 700 };
    for (m, k, n, density) in
        [(1, 1, 1, 1.0), (37, 53, 29, 0.2), (0, 5, 4, 0.5), (most, 300, most, 0.05)]
    {
        let (a, b) = (random(m, k, density, 3), random(k, n, density, 4));
        for (own, other) in [("csr", "csr"), ("groupcoo:3", "ell"), ("csc", "groupcoo:hybrid")] {
            let own = a.convert(own.parse().unwrap()).unwrap();
            let other = b.convert(other.parse().unwrap()).unwrap();
            let both = [("A", own), ("B", other)];
            assert_same(&gpu, "C[m,n] = A[m,k] * B[k,n]", &both);
            assert_same(&gpu, "C[n,m] = A[m,k] * B[k,n]", &both);
        }
        // Zeros inside blocks are skipped.
        let blocks = a.convert("bsr:2x3".parse().unwrap()).unwrap();
        let both = [("A", blocks), ("B", b.clone())];
        assert_same(&gpu, "C[m,n] = A[m,k] * B[k,n]", &both);
        let same = [("A", a.clone()), ("B", random(m, k, density, 9))];
        assert_same(&gpu, "C[m,n] = A[m,n] * B[m,n]", &same);
        assert_same(&gpu, "C[m] = A[m,k] * B[m,k]", &same);
        assert_same(&gpu, "C[] = A[m,k] * B[m,k]", &same);
        let three = [("A", a), ("B", b), ("E", random(n, 31, density, 5))];
        assert_same(&gpu, "C[m,n] = A[m,k] * B[k,j] * E[j,n]", &three);
    }
}

/// Lists of all combinations, and steps of a path over several sparse factors.
#[test]
fn factors_that_share_no_index_or_occur_twice() {
    let Some(gpu) = gpu() else { return };
    let (a, b) = (random(40, 30, 0.1, 3), random(20, 50, 0.1, 4));
    let apart = [("A", a.clone()), ("B", b)];
    assert_same(&gpu, "C[m,n] = A[m,k] * B[j,n]", &apart);
    assert_same(&gpu, "C[k,m] = A[m,k] * B[j,n]", &apart);
    assert_same(&gpu, "C[m,n] = A[m,k] * A[n,k]", &[("A", a)]);
    let own = [40, 30, 20, 50].windows(2).zip(1..);
    let own = own.map(|(w, seed)| random(w[0], w[1], 0.2, seed));
    let chain: Vec<_> = ["A", "B", "D"].into_iter().zip(own).collect();
    assert_same(&gpu, "C[i,l] = A[i,j] * B[j,k] * D[k,l]", &chain);
    assert_same(&gpu, "C[i] = A[i,j] * B[j,k] * D[k,l]", &chain);
}

/// One key that all entries share: one row has all the work.
#[test]
fn one_key_meets_everything() {
    let Some(gpu) = gpu() else { return };
    let n = if small() { 70 } else { 1500 };
    meet(&gpu, n, n);
    // One entry with more terms than 16 bits count.
    meet(&gpu, 1, if small() { 90 } else { 70_001 });
}

fn meet(gpu: &Context, m: usize, n: usize) {
    let column = CsrPattern::new(m, 3, (0..=m as u32).collect(), vec![1; m]).unwrap();
    let row =
        CsrPattern::new(3, n, vec![0, 0, n as u32, n as u32], (0..n as u32).collect()).unwrap();
    let values = |count| generate::small_integers(count, 1);
    let a = Csr::new(column, values(m)).unwrap();
    let b = Csr::new(row, values(n)).unwrap();
    assert_same(gpu, "C[n,m] = A[m,k] * B[k,n]", &[("A", a.into()), ("B", b.into())]);
}

/// Positions past 2^32: keys have two words, in the search and in the sort.
#[test]
fn long_keys_have_two_words() {
    let Some(gpu) = gpu() else { return };
    let n = if small() { 300 } else { 5000u32 };
    let spread = |by: u32, at: u32| (0..n).map(|i| i.wrapping_mul(by) % at).collect::<Vec<u32>>();
    let tensor = |by: u32| {
        let mut places: Vec<[u32; 3]> = spread(by, 40)
            .into_iter()
            .zip(spread(by + 2, 3_000_000))
            .zip(spread(by + 4, 2_000_000))
            .map(|((i, j), k)| [i, j % 50 * 60_000, k % 50 * 40_000])
            .collect();
        places.sort_unstable();
        places.dedup();
        let coords = (0..3).map(|axis| places.iter().map(|p| p[axis]).collect());
        let pattern = CooPattern::new(vec![40, 3_000_000, 2_000_000], coords.collect()).unwrap();
        let values = generate::small_integers(places.len(), 7);
        AnySparse::Coo(Coo::new(pattern, values).unwrap())
    };
    let both = [("A", tensor(7919)), ("B", tensor(104_729))];
    let host: Vec<(&str, Operand<'_, f32>)> = both.iter().map(|(n, a)| (*n, a.into())).collect();
    for text in ["C[i] = A[i,j,k] * B[i,j,k]", "C[h,i] = A[i,j,k] * B[h,j,k]"] {
        let found = gpu.position_lists(text, &host).unwrap();
        let wanted = Context::unchecked_cpu().position_lists(text, &host).unwrap();
        assert!(wanted.rows > 0 && found == wanted, "{text}: {} rows", wanted.rows);
    }
    // The sort key itself has two words: C has 6 * 10^12 positions.
    let text = "C[j,k] = A[i,j,k] * B[i,j,k]";
    let found = gpu.position_lists(text, &host).unwrap();
    assert!(found == Context::unchecked_cpu().position_lists(text, &host).unwrap());
}

/// Products over hybrid groups equal those of CSR, for rows of every class.
#[test]
fn hybrid_groups_have_the_product_of_csr() {
    let Some(gpu) = gpu() else { return };
    for (n, seed) in [(32, 1), (128, 2), (17, 3)] {
        let pattern = generate::rmat(if small() { 7 } else { 10 }, 6, seed).unwrap();
        let values: Vec<f32> = generate::small_integers(pattern.columns().len(), seed);
        let csr = Csr::new(pattern, values).unwrap();
        let b =
            Dense::from_fn([csr.shape()[1], n], |i| ((i[0] * 7 + i[1]) % 5) as f32 - 2.0).unwrap();
        let hybrid = convert::csr_to_hybrid_group_coo(&csr).unwrap();
        assert!(hybrid.pattern().classes().len() > 1, "{:?}", hybrid.pattern().classes());
        let run = |a: AnySparse<f32>| {
            let (a, b) = (gpu.upload(a).unwrap(), gpu.upload_dense(&b).unwrap());
            let operands = [("A", (&a).into()), ("B", (&b).into())];
            let (_, c) =
                plan_and_run(&gpu, "C[m,n] = A[m,k] * B[k,n]", &operands, &Options::default());
            c.to_dense().unwrap()
        };
        assert_eq!(run(hybrid.into()), run(csr.clone().into()), "n = {n}");
    }
}
