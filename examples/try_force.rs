//! Scratch.
#![allow(missing_docs, dead_code)]
#[path = "models/atoms.rs"]
mod atoms;
#[path = "models/common.rs"]
mod common;
#[path = "models/dynamics.rs"]
mod dynamics;
#[path = "models/force_field.rs"]
mod force_field;
#[path = "models/mixing.rs"]
mod mixing;
use einsparse::Context;
fn main() -> einsparse::Result<()> {
    let cpu = Context::cpu();
    let atoms = atoms::Atoms::liquid([3, 3, 2], 4.0)?;
    let (e, g) = dynamics::evaluate::<f64>(&cpu, &atoms, 8, 3.9)?;
    println!("{} edges, {e:?}\n{g:?}", atoms.receivers.len());
    let energy = |at: &atoms::Atoms| -> einsparse::Result<f64> {
        Ok(dynamics::evaluate::<f64>(&cpu, at, 8, 3.9)?.0.iter().sum())
    };
    for (atom, d) in [(0, 0), (3, 1), (7, 2), (11, 0)] {
        let mut moved = atoms.clone();
        moved.positions[atom][d] += 1e-5;
        let a = energy(&moved)?;
        moved.positions[atom][d] -= 2e-5;
        println!("{} {}", (a - energy(&moved)?) / 2e-5, g[atom * 3 + d]);
    }
    println!(
        "turned {:e}",
        dynamics::equivariance::<f64>(&cpu, &atoms, 8, 3.9)?
    );
    println!(
        "turned f32 {:e}",
        dynamics::equivariance::<f32>(&cpu, &atoms, 8, 3.9)?
    );
    println!("error f32 {:e}", dynamics::error(&cpu, &atoms, 8, 3.9)?);
    let t = std::time::Instant::now();
    dynamics::run(&common::Run {
        context: cpu,
        toy: true,
        ..Default::default()
    })?;
    println!("{:?}", t.elapsed());
    Ok(())
}
