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
#[path = "models/interaction.rs"]
mod interaction;
#[path = "models/mixing.rs"]
mod mixing;
use einsparse::Context;
fn main() -> einsparse::Result<()> {
    let cpu = Context::cpu();
    let atoms = atoms::Atoms::liquid([15, 20, 10], 5.03)?;
    println!("{} edges, cell {:?}", atoms.receivers.len(), atoms.cell);
    let least = atoms
        .receivers
        .iter()
        .zip(&atoms.senders)
        .zip(&atoms.shifts)
        .map(|((&r, &s), n)| {
            (0..3)
                .map(|d| {
                    (atoms.positions[r as usize][d] - atoms.positions[s as usize][d]
                        + n[d] as f64 * atoms.cell[d][d])
                        .powi(2)
                })
                .sum::<f64>()
        })
        .fold(9.9, f64::min)
        .sqrt();
    println!("least {least}");
    for (rows, c, n) in [
        (160_000usize, 64usize, 1408usize),
        (160_000, 1408, 64),
        (160_000, 8, 64),
        (160_000, 64, 8),
        (27_000, 128, 128),
        (3000, 128, 16),
    ] {
        let input = cpu.zeros::<f32>(&[rows, c])?;
        let out = cpu.zeros::<f32>(&[rows, n])?;
        let w = cpu.zeros::<f32>(&[1, c, n])?;
        let q: Vec<u32> = (0..rows as u32).collect();
        let t = vec![0u32; rows];
        let len = [rows];
        let ops = [
            ("In", (&input).into()),
            ("W", (&w).into()),
            ("Q", (&len[..], &q[..]).into()),
            ("I", (&len[..], &q[..]).into()),
            ("T", (&len[..], &t[..]).into()),
            ("Out", (&out).into()),
        ];
        let plan = cpu
            .plan("Out[Q[p],n] = In[I[p],c] * W[T[p],c,n]")
            .operands(&ops)
            .build()?;
        println!(
            "{rows} {c} {n}: {:?}",
            plan.choice().candidates().take(3).collect::<Vec<_>>()
        );
    }
    let all = einsparse::ops::Couplings::natural(2)?;
    let cg = cpu.upload(all.tensor::<f32>()?)?;
    let a = cpu.zeros::<f32>(&[3000, 9, 128])?;
    let p = cpu.zeros::<f32>(&[3000, 35, 128])?;
    let plan = cpu
        .plan("Out[n,k,u] = CG[i,j,k] * A[n,i,u] * B[n,j,u]")
        .operands(&[
            ("CG", (&cg).into()),
            ("A", (&a).into()),
            ("B", (&a).into()),
            ("Out", (&p).into()),
        ])
        .build()?;
    println!(
        "product {:?}",
        plan.choice().candidates().take(4).collect::<Vec<_>>()
    );
    let plan = cpu
        .plan("Out[n,i,u] += CG[i,j,k] * G[n,k,u] * B[n,j,u]")
        .operands(&[
            ("CG", (&cg).into()),
            ("G", (&p).into()),
            ("B", (&a).into()),
            ("Out", (&a).into()),
        ])
        .build()?;
    println!(
        "by first {:?}",
        plan.choice().candidates().take(4).collect::<Vec<_>>()
    );
    let dy = cpu.zeros::<f32>(&[160_000, 9])?;
    let plan = cpu
        .plan("Out[e,j] += A[e,j]")
        .operands(&[("A", (&dy).into()), ("Out", (&dy).into())])
        .build()?;
    println!(
        "sum {:?}",
        plan.choice().candidates().take(4).collect::<Vec<_>>()
    );
    let (b, r, e) = (
        cpu.zeros::<f32>(&[160_000, 8])?,
        cpu.zeros::<f32>(&[8])?,
        cpu.zeros::<f32>(&[3000])?,
    );
    let to: Vec<u32> = (0..160_000u32).map(|e| e * 3000 / 160_000).collect();
    let len = [160_000usize];
    let plan = cpu
        .plan("Out[Q[e]] += B[e,b] * R[b]")
        .operands(&[
            ("B", (&b).into()),
            ("R", (&r).into()),
            ("Q", (&len[..], &to[..]).into()),
            ("Out", (&e).into()),
        ])
        .build()?;
    println!(
        "pairs {:?}",
        plan.choice().candidates().take(4).collect::<Vec<_>>()
    );
    let f = cpu.zeros::<f64>(&[3000, 3])?;
    let s = cpu.zeros::<f64>(&[3000])?;
    let plan = cpu
        .plan("Out[n,d] += S[n] * V[n,d]")
        .operands(&[("S", (&s).into()), ("V", (&f).into()), ("Out", (&f).into())])
        .build()?;
    println!(
        "kick {:?}",
        plan.choice().candidates().take(4).collect::<Vec<_>>()
    );
    Ok(())
}
