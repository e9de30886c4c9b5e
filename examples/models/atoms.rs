//! Atoms similar to those of a liquid, in a periodic box, and edges between atoms that are close to each other.

use std::ops::Range;

use einsparse::formats::Dense;
use einsparse::formats::generate::random_values;
use einsparse::ops::{Edges, PeriodicCell};
use einsparse::{Context, Result, Tensor};

/// Atoms, and edges sorted by receiver. Lengths are in Angstrom.
#[derive(Clone, Debug)]
pub struct Atoms {
    pub positions: Vec<[f64; 3]>,
    pub species: Vec<usize>,
    pub cell: [[f64; 3]; 3],
    /// Atoms that receive; the others belong to other ranks.
    pub own: Range<usize>,
    /// Receivers, counted from the first own atom.
    pub receivers: Vec<u32>,
    pub senders: Vec<u32>,
    pub shifts: Vec<[i32; 3]>,
    /// Mean number of edges of an atom at the start. Sums over edges are divided by it, even if it changes later.
    pub neighbours: f64,
}

/// Number of species.
pub const SPECIES: usize = 4;
/// Atoms per cubic Angstrom, as in water.
const DENSITY: f64 = 0.1;

impl Atoms {
    /// Creates a grid of atoms, each slightly displaced, with edges between all atoms closer than `radius`.
    pub fn liquid(grid: [usize; 3], radius: f64) -> Result<Atoms> {
        let count = grid.iter().product();
        let spacing = (1.0 / DENSITY).cbrt();
        let moves = random_values::<f64>(3 * count, 11);
        let position = |atom: usize| {
            let at = [atom / (grid[1] * grid[2]), atom / grid[2] % grid[1], atom % grid[2]];
            [0, 1, 2].map(|d| (at[d] as f64 + 0.05 * moves[3 * atom + d]) * spacing)
        };
        let mut cell = [[0.0; 3]; 3];
        (0..3).for_each(|d| cell[d][d] = grid[d] as f64 * spacing);
        let mut atoms = Atoms {
            positions: (0..count).map(position).collect(),
            species: (0..count).map(|atom| atom * 7 % 5 % SPECIES).collect(),
            cell,
            own: 0..count,
            receivers: Vec::new(),
            senders: Vec::new(),
            shifts: Vec::new(),
            neighbours: 0.0,
        };
        atoms.connect(radius);
        atoms.neighbours = atoms.receivers.len() as f64 / atoms.count() as f64;
        Ok(atoms)
    }

    pub fn count(&self) -> usize {
        self.positions.len()
    }

    /// Uploads the positions, `[atoms, 3]`.
    pub fn upload(&self, ctx: &Context) -> Result<Tensor<f64>> {
        let values = self.positions.as_flattened().to_vec();
        ctx.upload_dense(&Dense::new([self.count(), 3], values)?)
    }

    /// Lists the edges between atoms closer than `radius`, including periodic images. The cell is rectangular.
    pub fn connect(&mut self, radius: f64) {
        let side = [0, 1, 2].map(|d| self.cell[d][d]);
        let images = side.map(|side| (radius / side).ceil() as i32);
        let square = |v: [f64; 3]| v.iter().map(|x| x * x).sum::<f64>();
        (self.receivers, self.senders, self.shifts) = Default::default();
        for (to, a) in self.positions.iter().enumerate() {
            for (from, b) in self.positions.iter().enumerate() {
                let apart = [0, 1, 2].map(|d| a[d] - b[d]);
                // In large boxes only the nearest image can be close.
                let nearest = [0, 1, 2].map(|d| -(apart[d] / side[d]).round() as i32);
                let reach =
                    [0, 1, 2].map(|d| if side[d] > 2.0 * radius { 0 } else { images[d] + 1 });
                let range = |d: usize| nearest[d] - reach[d]..=nearest[d] + reach[d];
                let all = range(0)
                    .flat_map(|x| range(1).flat_map(move |y| range(2).map(move |z| [x, y, z])));
                for shift in all {
                    let vector = [0, 1, 2].map(|d| apart[d] + f64::from(shift[d]) * side[d]);
                    let itself = to == from && shift == [0; 3];
                    if !itself && square(vector) < radius * radius {
                        self.receivers.push(to as u32);
                        self.senders.push(from as u32);
                        self.shifts.push(shift);
                    }
                }
            }
        }
    }

    pub fn edges(&self) -> Edges<'_> {
        Edges {
            receivers: &self.receivers,
            senders: &self.senders,
            nodes: [self.own.len(), self.count()],
        }
    }

    pub fn periodic(&self) -> PeriodicCell<'_> {
        PeriodicCell { vectors: self.cell, shifts: &self.shifts }
    }

    /// Returns the atoms rotated by a matrix, then translated.
    pub fn seen(&self, turn: [[f64; 3]; 3], by: [f64; 3]) -> Atoms {
        let turned = |v: &[f64; 3]| turned(turn, *v);
        let moved = |v: &[f64; 3]| {
            let v = turned(v);
            [0, 1, 2].map(|d| v[d] + by[d])
        };
        Atoms {
            positions: self.positions.iter().map(moved).collect(),
            cell: self.cell.each_ref().map(turned),
            ..self.clone()
        }
    }

    /// Returns the atoms in another order: `order[atom]` is the new index of an atom.
    pub fn renumbered(&self, order: &[usize]) -> Atoms {
        let mut other = self.clone();
        for (atom, &to) in order.iter().enumerate() {
            other.positions[to] = self.positions[atom];
            other.species[to] = self.species[atom];
        }
        let number = |list: &[u32]| list.iter().map(|&atom| order[atom as usize] as u32).collect();
        let (to, from): (Vec<u32>, Vec<u32>) = (number(&self.receivers), number(&self.senders));
        let mut edges: Vec<usize> = (0..to.len()).collect();
        edges.sort_by_key(|&edge| to[edge]);
        other.receivers = edges.iter().map(|&edge| to[edge]).collect();
        other.senders = edges.iter().map(|&edge| from[edge]).collect();
        other.shifts = edges.iter().map(|&edge| self.shifts[edge]).collect();
        other
    }
}

/// Rotates a vector by a matrix.
pub fn turned(turn: [[f64; 3]; 3], v: [f64; 3]) -> [f64; 3] {
    turn.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
}

/// Rotation by angles about z, y and z again.
pub fn rotation([a, b, c]: [f64; 3]) -> [[f64; 3]; 3] {
    let about_z = |t: f64| [[t.cos(), -t.sin(), 0.0], [t.sin(), t.cos(), 0.0], [0.0, 0.0, 1.0]];
    let about_y = [[b.cos(), 0.0, b.sin()], [0.0, 1.0, 0.0], [-b.sin(), 0.0, b.cos()]];
    let times = |a: [[f64; 3]; 3], b: [[f64; 3]; 3]| {
        a.map(|row| [0, 1, 2].map(|d| (0..3).map(|k| row[k] * b[k][d]).sum()))
    };
    times(about_z(a), times(about_y, about_z(c)))
}
