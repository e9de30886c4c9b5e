//! Molecular dynamics with [`ForceField`]: steps of velocity Verlet, and checks of conserved quantities.

use std::time::Instant;

use einsparse::formats::Dense;
use einsparse::formats::generate::random_values;
use einsparse::{Context, Precision, Result, Scalar, Stream, Tensor};

use super::atoms::{Atoms, rotation, turned};
use super::common::{Measured, Memory, Run, largest_error};
use super::domains;
use super::force_field::ForceField;
use super::interaction::messages;
use super::mixing::Plans;

/// Boltzmann's constant times 300 K, eV.
const HEAT: f64 = 0.02585;
/// Mass of an atom, unified atomic mass units.
const MASS: f64 = 16.0;
/// Time step in femtoseconds.
const STEP: f64 = 0.25;
/// Energy checks per run. Between them atoms move less than the difference of the list's radius and the cutoff.
const LOOKS: usize = 20;
/// A femtosecond in units of Angstrom, eV and atomic mass.
const FEMTOSECOND: f64 = 1.0 / 10.1805;

/// Positions and velocities in f64: f32 would lose the changes of a step.
pub struct Dynamics<T: Scalar> {
    field: ForceField<T>,
    plans: Plans<f64>,
    pub positions: Tensor<f64>,
    velocities: Tensor<f64>,
    /// For each atom the time step, and minus half of it over the mass.
    times: [Tensor<f64>; 2],
}

const ALONG: &str = "Out[n,d] += S[n] * V[n,d]";

impl<T: Scalar> Dynamics<T> {
    /// Creates atoms at 300 K; `step` is in femtoseconds.
    pub fn new(ctx: &Context, atoms: &Atoms, field: ForceField<T>, step: f64) -> Result<Self> {
        let count = atoms.count();
        let drawn = random_values::<f64>(3 * count, 17);
        let mean = [0, 1, 2].map(|d| drawn.iter().skip(d).step_by(3).sum::<f64>() / count as f64);
        let size = (HEAT / MASS).sqrt();
        let of_all = |value: f64| ctx.upload_dense(&Dense::new([count], vec![value; count])?);
        let step = step * FEMTOSECOND;
        let velocity = |at: &[usize]| size * (drawn[3 * at[0] + at[1]] - mean[at[1]]);
        let mut own = Dynamics {
            field,
            plans: Plans::new(ctx, Precision::Full),
            positions: atoms.upload(ctx)?,
            velocities: ctx.upload_dense(&Dense::from_fn([count, 3], velocity)?)?,
            times: [of_all(step)?, of_all(-0.5 * step / MASS)?],
        };
        let stream = ctx.stream()?;
        own.field.run(&mut own.positions, &stream)?;
        stream.synchronize()?;
        Ok(own)
    }

    /// Runs half a step of the velocities, one of the positions, new forces, and the other half.
    pub fn step(&mut self, s: &Stream) -> Result<()> {
        self.kick(s)?;
        let factors = [("S", (&self.times[0]).into()), ("V", (&self.velocities).into())];
        self.plans.run(ALONG, &factors, &mut self.positions, s)?;
        self.field.run(&mut self.positions, s)?;
        self.kick(s)
    }

    fn kick(&mut self, s: &Stream) -> Result<()> {
        let factors = [("S", (&self.times[1]).into()), ("V", (&self.field.gradient).into())];
        self.plans.run(ALONG, &factors, &mut self.velocities, s)
    }

    /// Lists edges for the current positions, on the host. A step captured before is no longer valid.
    pub fn relist(
        &mut self,
        ctx: &Context,
        (atoms, radius): (&mut Atoms, f64),
        field: impl Fn(&Atoms) -> Result<ForceField<T>>,
    ) -> Result<()> {
        let positions = self.positions.to_dense()?;
        atoms.positions = positions.values().as_chunks::<3>().0.to_vec();
        atoms.connect(radius);
        self.field = field(atoms)?;
        let stream = ctx.stream()?;
        self.field.run(&mut self.positions, &stream)?;
        stream.synchronize()
    }

    /// Returns potential and kinetic energy, eV, after all work.
    pub fn energies(&self) -> Result<[f64; 2]> {
        let potential = self.field.energy.to_dense()?;
        let velocities = self.velocities.to_dense()?;
        let squares: f64 = velocities.values().iter().map(|v| v * v).sum();
        let potential = potential.values().iter().map(|e| e.to_f64()).sum();
        Ok([potential, 0.5 * MASS * squares])
    }
}

/// Returns the energy of each atom, and the gradient by the positions.
pub fn evaluate<T: Scalar>(
    ctx: &Context,
    atoms: &Atoms,
    channels: usize,
    cutoff: f64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut field = ForceField::<T>::new(ctx, atoms, channels, cutoff, Precision::Full)?;
    let stream = ctx.stream()?;
    field.run(&mut atoms.upload(ctx)?, &stream)?;
    stream.synchronize()?;
    let energy = field.energy.to_dense()?;
    let energy = energy.values().iter().map(|e| e.to_f64()).collect();
    Ok((energy, field.gradient.to_dense()?.into_values()))
}

/// Largest difference of energies and forces between these atoms and the atoms rotated, translated and in another
/// order.
pub fn equivariance<T: Scalar>(
    ctx: &Context,
    atoms: &Atoms,
    channels: usize,
    cutoff: f64,
) -> Result<f64> {
    let turn = rotation([0.7, 1.1, -2.3]);
    let order: Vec<usize> = (0..atoms.count()).rev().collect();
    let other = atoms.seen(turn, [3.7, -1.9, 12.1]).renumbered(&order);
    let (energy, gradient) = evaluate::<T>(ctx, atoms, channels, cutoff)?;
    let (energy_there, gradient_there) = evaluate::<T>(ctx, &other, channels, cutoff)?;
    let rows = gradient.as_chunks::<3>().0;
    let rows = order.iter().flat_map(|&atom| turned(turn, rows[atom]));
    let forces = largest_error(&gradient_there, &rows.collect::<Vec<_>>());
    let energies: Vec<f64> = order.iter().map(|&atom| energy[atom]).collect();
    Ok(forces.max(largest_error(&energy_there, &energies)))
}

/// Largest error of energies and forces against f64 on the CPU.
pub fn error(ctx: &Context, atoms: &Atoms, channels: usize, cutoff: f64) -> Result<f64> {
    let found = evaluate::<f32>(ctx, atoms, channels, cutoff)?;
    let wanted = evaluate::<f64>(&Context::unchecked_cpu(), atoms, channels, cutoff)?;
    let energies = largest_error(&found.0, &wanted.0);
    Ok(energies.max(largest_error(&found.1, &wanted.1)))
}

/// Largest change of the total energy from its start, checked `LOOKS` times: relative to that energy, and to the
/// kinetic energy at the start. `between` is called after each check.
pub fn drift<T: Scalar>(
    ctx: &Context,
    dynamics: &mut Dynamics<T>,
    steps: usize,
    mut between: impl FnMut(&mut Dynamics<T>) -> Result<()>,
) -> Result<[f64; 2]> {
    let stream = ctx.stream()?;
    let [potential, kinetic] = dynamics.energies()?;
    let start = potential + kinetic;
    let mut worst = 0.0f64;
    for _ in 0..LOOKS {
        (0..steps.div_ceil(LOOKS)).try_for_each(|_| dynamics.step(&stream))?;
        stream.synchronize()?;
        let now: f64 = dynamics.energies()?.iter().sum();
        worst = worst.max((now - start).abs());
        between(dynamics)?;
    }
    Ok([worst / start.abs(), worst / kinetic])
}

/// Returns the drift of `steps` steps of a model with these channels and cutoff, and the final positions.
pub fn trajectory<T: Scalar>(
    ctx: &Context,
    atoms: &Atoms,
    (channels, cutoff): (usize, f64),
    steps: usize,
) -> Result<([f64; 2], Vec<f64>)> {
    let field = ForceField::<T>::new(ctx, atoms, channels, cutoff, Precision::Full)?;
    let mut dynamics = Dynamics::new(ctx, atoms, field, STEP)?;
    let drift = drift(ctx, &mut dynamics, steps, |_| Ok(()))?;
    Ok((drift, dynamics.positions.to_dense()?.into_values()))
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let small = Atoms::liquid([3, 3, 2], 4.0)?;
    let checked = error(ctx, &small, 16, 4.0)?;
    let turned = equivariance::<f32>(ctx, &small, 16, 4.0)?;
    let ranks = domains::error::<f32>(
        &[Context::unchecked_cpu(), Context::unchecked_cpu()],
        &small,
        16,
        4.0,
    )?;
    println!(
        "largest error {checked:.1e}; turned and moved {turned:.1e}; over two ranks {ranks:.1e}"
    );
    assert!(checked < 2e-5 && turned < 2e-5 && ranks < 2e-5);
    let moved = || trajectory::<f32>(ctx, &small, (8, 4.0), 2);
    assert!(moved()? == moved()?, "two runs differ");
    let (grid, channels, steps) = match run.toy {
        true => ([3, 3, 2], 8, 10),
        false => ([15, 20, 10], 128, 1000),
    };
    let (radius, cutoff) = if run.toy { (3.5, 3.3) } else { (5.03, 4.83) };
    let atoms = Atoms::liquid(grid, radius)?;
    let (count, edges) = (atoms.count(), atoms.receivers.len());
    for (precision, dtype) in [(Precision::Full, "f32"), (Precision::Tf32, "tf32")] {
        let memory = Memory::before(ctx);
        let field = |atoms: &Atoms| ForceField::<f32>::new(ctx, atoms, channels, cutoff, precision);
        let mut dynamics = Dynamics::new(ctx, &atoms, field(&atoms)?, STEP)?;
        let times = run.time(|stream| dynamics.step(stream))?;
        let (mut listed, mut spent) = (atoms.clone(), 0.0);
        dynamics = Dynamics::new(ctx, &atoms, field(&atoms)?, STEP)?;
        let [drift, of_kinetic] = drift(ctx, &mut dynamics, steps, |own| {
            let start = Instant::now();
            own.relist(ctx, (&mut listed, radius), field)?;
            spent += start.elapsed().as_secs_f64() * 1e3 / LOOKS as f64;
            Ok(())
        })?;
        let note = format!(
            "energy within {drift:.1e} of itself in {steps} steps of {STEP} fs, {of_kinetic:.1e} of the kinetic; \
             edges listed anew {LOOKS} times, {spent:.0} ms each; turned and moved {turned:.1e}; no twin: all \
             pairs would be {:.0} times as many edges",
            (count * count) as f64 / edges as f64
        );
        run.report(Measured {
            case: format!("molecular dynamics, {count} atoms, {edges} edges, {channels} channels"),
            dtype,
            times,
            work: (count as f64, "atoms"),
            twin: None,
            held: memory.since(ctx),
            error: Some(checked),
            note,
        });
    }
    let ([times, twin], error) = messages(run, &atoms, channels)?;
    run.report(Measured {
        case: format!(
            "messages of degrees up to 2, {count} atoms, {edges} edges, {channels} channels"
        ),
        dtype: "f32",
        times,
        work: (edges as f64, "edges"),
        twin: Some(("gathered, multiplied, summed".into(), twin)),
        held: None,
        error: Some(error),
        note: "forward".into(),
    });
    Ok(())
}
