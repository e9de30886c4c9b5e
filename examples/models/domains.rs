//! The force field over ranks, by domains. Each rank has the atoms of a part of space and the edges to them, and
//! receives rows of other ranks' atoms. Edges do not change: an atom never changes its rank.

use std::mem;
use std::ops::Range;
use std::thread;

use einsparse::formats::CsrPattern;
use einsparse::group::{Group, GroupSum, Halo, Partition, Sharded};
use einsparse::nn::BiasGradient;
use einsparse::{Context, Precision, Result, Scalar, Stream, Tensor};

use super::atoms::Atoms;
use super::common::largest_error;
use super::dynamics;
use super::force_field::ForceField;
use super::interaction::ROWS;

/// Atoms of other ranks where edges of this rank start.
pub struct Neighbours<T: Scalar> {
    group: Group,
    pub positions: Sent<f64>,
    /// Features between both layers. Those of the first layer depend only on species.
    pub features: Sent<T>,
    own_sum: BiasGradient<T, T>,
    sum: GroupSum<T>,
    /// `[1]`: energy of all atoms of all ranks, eV.
    pub energy: Tensor<T>,
}

/// Exchange of rows of a tensor `[atoms, ...]` between ranks.
pub struct Sent<T: Scalar> {
    halo: Halo<T>,
    /// Stores the tensor while its rows are sent.
    sharded: Sharded<Tensor<T>>,
}

impl<T: Scalar> Neighbours<T> {
    /// Distributes atoms, ordered along an axis of space. Returns own atoms with their neighbours, and the exchange.
    pub fn new(group: &Group, all: &Atoms, channels: usize) -> Result<(Atoms, Self)> {
        let deal = Partition::even(all.count(), group.size());
        let own = deal.range(group.rank());
        let (atoms, held) = domain(all, own.clone());
        let pattern = CsrPattern::new(1, all.count(), vec![0, held.len() as u32], held)?;
        let neighbours = Neighbours {
            group: group.clone(),
            positions: Sent::new(group, &pattern, &deal, 3)?,
            features: Sent::new(group, &pattern, &deal, ROWS * channels)?,
            own_sum: BiasGradient::new(group.context(), [own.len(), 1])?,
            sum: GroupSum::new(group, &[1])?,
            energy: group.context().zeros(&[1])?,
        };
        Ok((atoms, neighbours))
    }

    /// Adds the exchange to a field. A first run without it makes the plans: no rank may allocate while another sends.
    pub fn join(
        self,
        field: &mut ForceField<T>,
        positions: &mut Tensor<f64>,
        s: &Stream,
    ) -> Result<()> {
        let alone = field.run(positions, s).and(s.synchronize());
        self.group.all_ok(alone)?;
        field.neighbours = Some(self);
        Ok(())
    }

    /// Queues the sum of all ranks' energies.
    pub fn add_up(&mut self, energy: &Tensor<T>, s: &Stream) -> Result<()> {
        let energy = energy.part(0, &[energy.shape()[0], 1])?;
        self.own_sum.backward_bias(&energy, &mut self.energy, s)?;
        self.sum.run(&mut self.energy, s)
    }
}

impl<T: Scalar> Sent<T> {
    fn new(group: &Group, pattern: &CsrPattern, deal: &Partition, width: usize) -> Result<Self> {
        let halo = Halo::new(group, pattern, deal, width)?.with_add()?;
        let sharded = halo.tensor()?;
        Ok(Sent { halo, sharded })
    }

    /// Queues the transfer of other ranks' rows to this rank.
    pub fn bring(&mut self, rows: &mut Tensor<T>, s: &Stream) -> Result<()> {
        self.with(rows, |halo, rows| halo.exchange(rows, s))
    }

    /// Queues the transfer of gradients to the owners of their rows, which add them.
    pub fn take_back(&mut self, rows: &mut Tensor<T>, s: &Stream) -> Result<()> {
        self.with(rows, |halo, rows| halo.add(rows, s))
    }

    fn with(
        &mut self,
        rows: &mut Tensor<T>,
        send: impl Fn(&Halo<T>, &mut Sharded<Tensor<T>>) -> Result<()>,
    ) -> Result<()> {
        let shape = rows.shape().to_vec();
        rows.reshape(self.sharded.with_halo().shape())?;
        mem::swap(rows, self.sharded.with_halo_mut());
        let sent = send(&self.halo, &mut self.sharded);
        mem::swap(rows, self.sharded.with_halo_mut());
        rows.reshape(&shape)?;
        sent
    }
}

/// Returns some atoms with the edges to them and the atoms where these start, in global order, and their indices.
fn domain(all: &Atoms, own: Range<usize>) -> (Atoms, Vec<u32>) {
    let before = |end: usize| all.receivers.partition_point(|&to| (to as usize) < end);
    let edges = before(own.start)..before(own.end);
    let mut held: Vec<u32> = (own.start as u32..own.end as u32).collect();
    held.extend(&all.senders[edges.clone()]);
    held.sort_unstable();
    held.dedup();
    let place = |atom: u32| held.partition_point(|&other| other < atom);
    let start = place(own.start as u32);
    let receivers = all.receivers[edges.clone()].iter();
    let senders = all.senders[edges.clone()].iter();
    let atoms = Atoms {
        positions: held.iter().map(|&at| all.positions[at as usize]).collect(),
        species: held.iter().map(|&at| all.species[at as usize]).collect(),
        cell: all.cell,
        receivers: receivers.map(|to| to - own.start as u32).collect(),
        senders: senders.map(|&from| place(from) as u32).collect(),
        shifts: all.shifts[edges].to_vec(),
        own: start..start + own.len(),
        neighbours: all.neighbours,
    };
    (atoms, held)
}

/// Returns the energy of all atoms, and the gradient by the positions of own atoms.
fn evaluate<T: Scalar>(
    group: &Group,
    all: &Atoms,
    channels: usize,
    cutoff: f64,
) -> Result<(f64, Vec<f64>)> {
    let (ctx, stream) = (group.context(), group.context().stream()?);
    let (mut atoms, others) = Neighbours::<T>::new(group, all, channels)?;
    let mut field = ForceField::new(ctx, &atoms, channels, cutoff, Precision::Full)?;
    // Positions of other ranks' atoms must be received; NaN detects rows that are not.
    let own = atoms.own.clone();
    let unknown = (0..atoms.count()).filter(|at| !own.contains(at));
    unknown.for_each(|at| atoms.positions[at] = [f64::NAN; 3]);
    let mut positions = atoms.upload(ctx)?;
    others.join(&mut field, &mut positions, &stream)?;
    field.run(&mut positions, &stream)?;
    stream.synchronize()?;
    let energy = field.neighbours.iter().map(|others| others.energy.to_dense());
    let energy = energy.map(|e| Ok(e?.values()[0].to_f64())).sum::<Result<f64>>()?;
    let gradient = field.gradient.to_dense()?;
    let gradient = gradient.values()[3 * own.start..3 * own.end].to_vec();
    group.barrier()?;
    Ok((energy, gradient))
}

/// Largest error of energy and forces over ranks, one thread each, against one rank.
pub fn error<T: Scalar>(
    contexts: &[Context],
    atoms: &Atoms,
    channels: usize,
    cutoff: f64,
) -> Result<f64> {
    let once = || -> Result<Vec<_>> {
        let groups = Group::local(contexts)?;
        thread::scope(|scope| {
            let start = |group| scope.spawn(move || evaluate::<T>(&group, atoms, channels, cutoff));
            let ranks: Vec<_> = groups.into_iter().map(start).collect();
            let ranks = ranks.into_iter().map(|rank| rank.join().expect("a rank panicked"));
            ranks.collect()
        })
    };
    let ranks = once()?;
    assert!(ranks == once()?, "two runs differ");
    let (energy, gradient) = dynamics::evaluate::<T>(&contexts[0], atoms, channels, cutoff)?;
    let energy = energy.iter().sum::<f64>();
    let found: Vec<f64> = ranks.iter().flat_map(|(_, own)| own.clone()).collect();
    let energies = ranks.iter().map(|(found, _)| largest_error(&[*found], &[energy]));
    Ok(energies.fold(largest_error(&found, &gradient), f64::max))
}
