//! CP decomposition of a sparse tensor with one component by alternating least squares. Each step is an MTTKRP (Kolda
//! and Bader, SIAM Review 51(3), 2009, section 3.4). The tensor is built from one component, which the result must
//! reproduce.

use einsparse::formats::{AnySparse, Coo, Dense};
use einsparse::{Context, ops};

const SHAPE: [usize; 3] = [4000, 3000, 2000];

/// The planted component. Few of its elements are nonzero, so the tensor is sparse.
fn planted(axis: usize) -> Vec<(u32, f64)> {
    let places = (axis..SHAPE[axis]).step_by(41);
    places.map(|i| (i as u32, 1.0 + (i % 5) as f64)).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn main() -> einsparse::Result<()> {
    let (mut coords, mut values) = (vec![Vec::new(); 3], Vec::new());
    let [first, second, third] = [0, 1, 2].map(planted);
    for (i, a) in &first {
        for (j, b) in &second {
            for (k, c) in &third {
                let place = coords.iter_mut().zip([i, j, k]);
                place.for_each(|(axis, at)| axis.push(*at));
                values.push(a * b * c);
            }
        }
    }
    let ctx = Context::new();
    let tensor = Coo::from_entries(SHAPE.to_vec(), coords, values)?;
    let there = ctx.upload(&tensor)?;
    let mut factors = SHAPE.map(|extent| vec![1.0; extent]);
    let mut scale = 0.0;
    for step in 0..6 {
        let mode = step % 3;
        let matrix = |axis: usize| Dense::new([SHAPE[axis], 1], factors[axis].clone());
        let others = (0..3).filter(|&axis| axis != mode).map(matrix);
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let m = ops::mttkrp(&ctx, &there, mode, &others)?.to_dense()?;
        // The other two factors have unit length after their first update, so this norm is the scale.
        scale = norm(m.values());
        factors[mode] = m.values().iter().map(|x| x / scale).collect();
    }
    let mut largest = 0.0f64;
    for (index, value) in AnySparse::from(tensor.clone()).entries() {
        let own = (0..3).map(|axis| factors[axis][index[axis]]).product::<f64>();
        largest = largest.max((scale * own - value).abs() / value);
    }
    let all = norm(tensor.values());
    println!("{} entries, largest relative error {largest:.1e}", tensor.nnz());
    assert!(largest < 1e-10 && (scale - all).abs() < 1e-10 * all);
    Ok(())
}
