//! Geometry of edges: harmonics that couple by Clebsch-Gordan coefficients, explicit radial functions, gradients
//! against finite differences, and the GPU against the CPU.

use crate::support::assert_error;
use crate::support::bounds::assert_near;
use crate::support::dense::strided;
use crate::support::runs::finish;
use crate::support::{Rng, gpu};
use einsparse::formats::Dense;
use einsparse::ops::{Couplings, EdgeGeometry, Edges, GeometryOptions, PeriodicCell};
use einsparse::{Context, Error, Scalar, Tensor};

/// Atoms, the last one without an edge, and edges of any length, the last of length 0.
struct Case {
    atoms: usize,
    receivers: Vec<u32>,
    senders: Vec<u32>,
    shifts: Option<Vec<[i32; 3]>>,
    positions: Vec<f64>,
    options: GeometryOptions,
}

const CELL: [[f64; 3]; 3] = [[3.0, 0.2, 0.0], [-0.1, 2.5, 0.3], [0.4, 0.0, 2.8]];

impl Case {
    fn new(atoms: usize, edges: usize, periodic: bool, degree: usize, functions: usize) -> Case {
        let mut rng = Rng((atoms * 31 + edges + degree) as u64);
        let mut one = || (rng.word() as usize % (atoms - 1).max(1)) as u32;
        let mut receivers: Vec<u32> = (0..edges).map(|_| one()).collect();
        let mut senders: Vec<u32> = (0..edges).map(|_| one()).collect();
        // An edge of length 0 has no direction.
        if let (Some(to), Some(from)) = (receivers.last_mut(), senders.last_mut()) {
            *from = *to;
        }
        let shift = |_| [0, 1, 2].map(|_| (rng.word() % 3) as i32 - 1);
        let mut shifts: Vec<[i32; 3]> = (0..edges).map(shift).collect();
        if let Some(shift) = shifts.last_mut() {
            *shift = [0; 3];
        }
        let positions = rng.units::<f64>(3 * atoms);
        Case {
            atoms,
            receivers,
            senders,
            shifts: periodic.then_some(shifts),
            positions,
            options: GeometryOptions { cutoff: 3.3, degree, functions, exponent: 4 + degree },
        }
    }

    fn widths(&self) -> [usize; 2] {
        [(self.options.degree + 1).pow(2), self.options.functions]
    }

    fn geometry<T: Scalar>(&self, ctx: &Context) -> EdgeGeometry<T> {
        let edges =
            Edges { receivers: &self.receivers, senders: &self.senders, nodes: [self.atoms; 2] };
        let cell = self.shifts.as_ref().map(|shifts| PeriodicCell { vectors: CELL, shifts });
        EdgeGeometry::new(ctx, edges, cell, &self.options).unwrap()
    }

    /// Returns gradients of Y and basis.
    fn given(&self) -> [Vec<f64>; 2] {
        let mut rng = Rng(5);
        self.widths().map(|width| rng.units::<f64>(width * self.receivers.len()))
    }

    /// Returns Y, basis, and the gradient by the positions; rows have `gap` elements between them.
    fn run<T: Scalar>(&self, ctx: &Context, gap: usize) -> [Vec<f64>; 3] {
        let geometry = self.geometry::<T>(ctx);
        let edges = self.receivers.len();
        let widths = self.widths();
        let upload = |shape: [usize; 2], data: &[f64]| -> Tensor<T> {
            let values = data.iter().map(|&x| T::from_f64(x)).collect();
            let dense = Dense::new(shape, values).unwrap();
            strided(ctx, &dense, shape[1] + gap, T::from_f64(f64::NAN))
        };
        let doubles = |data: &[f64]| {
            let dense = Dense::new([self.atoms, 3], data.to_vec()).unwrap();
            ctx.upload_strided(&dense, 3 + gap, f64::NAN).unwrap()
        };
        let [mut y, mut basis] =
            widths.map(|width| upload([edges, width], &vec![7.0; width * edges]));
        let given = self.given();
        let [dy, dbasis] = [0, 1].map(|of| upload([edges, widths[of]], &given[of]));
        let positions = doubles(&self.positions);
        let mut gradient = doubles(&vec![7.0; 3 * self.atoms]);
        finish(ctx, |stream| {
            geometry.forward(&positions, &mut y, &mut basis, stream)?;
            geometry.backward(&positions, [&dy, &dbasis], &mut gradient, stream)
        });
        let wide = |tensor: &Tensor<T>| {
            let dense = tensor.to_dense().unwrap();
            dense.values().iter().map(|x| x.to_f64()).collect()
        };
        [wide(&y), wide(&basis), gradient.to_dense().unwrap().into_values()]
    }
}

#[test]
fn gradients_are_those_of_differences() {
    for (periodic, degree) in [(false, 0), (true, 1), (false, 2), (true, 3)] {
        let mut case = Case::new(6, 25, periodic, degree, 5);
        let given = case.given();
        let value = |case: &Case| -> f64 {
            let found = case.run::<f64>(&Context::unchecked_cpu(), 0);
            let of = |of: usize| found[of].iter().zip(&given[of]).map(|(a, b)| a * b).sum::<f64>();
            of(0) + of(1)
        };
        let found = case.run::<f64>(&Context::unchecked_cpu(), 0);
        for (at, found) in found[2].iter().enumerate().take(3 * case.atoms) {
            let kept = case.positions[at];
            let mut moved = |by: f64| {
                case.positions[at] = kept + by;
                value(&case)
            };
            let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            case.positions[at] = kept;
            assert_near(&format!("degree {degree}, gradient {at}"), &[*found], &[slope], 1e-6);
        }
    }
}

#[test]
fn harmonics_couple_to_harmonics() {
    let mut case = Case::new(4, 60, true, 3, 3);
    case.options.cutoff = 4.0;
    let [y, basis, _] = case.run::<f64>(&Context::unchecked_cpu(), 0);
    // Two equal atoms have no direction.
    for y in y.chunks(16).filter(|y| y[1..4] != [0.0; 3]) {
        for l in 0..4 {
            let square: f64 = y[l * l..(l + 1) * (l + 1)].iter().map(|y| y * y).sum();
            assert_near(&"square of a norm", &[square], &[(2 * l + 1) as f64], 1e-12);
        }
        // The product of degrees 1 and l is Y of degree l + 1, times a positive number.
        for l in 1..3 {
            let couplings = Couplings::new(&[[1, l, l + 1]]).unwrap();
            let all = couplings.tensor::<f64>().unwrap();
            let mut product = vec![0.0; couplings.rows()];
            for (at, value) in all.values().iter().enumerate() {
                let [i, j, k] = [0, 1, 2].map(|axis| all.pattern().coords()[axis][at] as usize);
                product[k] += value * y[i] * y[j];
            }
            let wanted = &y[(l + 1) * (l + 1)..(l + 2) * (l + 2)];
            let [inner, square] = [&product[..], wanted]
                .map(|other| wanted.iter().zip(other).map(|(a, b)| a * b).sum::<f64>());
            assert!(inner > 0.1, "degree {l}");
            let scaled: Vec<f64> = wanted.iter().map(|y| y * inner / square).collect();
            assert_near(&"product", &product, &scaled, 1e-12);
        }
    }
    // Explicit formulas for the edges, also beyond the cutoff.
    let position = |atom: u32, d: usize| case.positions[atom as usize * 3 + d];
    let mut beyond = 0;
    for edge in 0..59 {
        let shift = case.shifts.as_ref().unwrap()[edge];
        let square = (0..3).map(|d| {
            let cells: f64 = (0..3).map(|k| f64::from(shift[k]) * CELL[k][d]).sum();
            (position(case.receivers[edge], d) - position(case.senders[edge], d) + cells).powi(2)
        });
        let r: f64 = square.sum::<f64>().sqrt();
        if r == 0.0 {
            continue;
        }
        let x = r / 4.0;
        // Envelope with exponent 7.
        let envelope = 1.0 - 36.0 * x.powi(7) + 63.0 * x.powi(8) - 28.0 * x.powi(9);
        let envelope = if x < 1.0 { envelope } else { 0.0 };
        beyond += u32::from(x >= 1.0);
        for n in 0..3 {
            let sine = 0.5f64.sqrt() * (std::f64::consts::PI * (n + 1) as f64 * x).sin();
            assert_near(&"radial function", &[basis[edge * 3 + n]], &[sine / r * envelope], 1e-12);
        }
    }
    assert!(beyond > 5 && beyond < 54);
}

#[test]
fn edges_on_the_gpu() {
    fn agree<T: Scalar>(gpu: &Context, within: f64) {
        for (atoms, edges) in [(1, 0), (2, 1), (5, 40), (33, 129), (40, 3000), (700, 5000)] {
            for degree in 0..4 {
                for (periodic, gap) in [(true, 0), (false, 3)] {
                    let case = Case::new(atoms, edges, periodic, degree, [1, 8, 5, 12][degree]);
                    let found = case.run::<T>(gpu, gap);
                    let wanted = case.run::<T>(&Context::unchecked_cpu(), 0);
                    let what = format!("{} {atoms} {edges} {degree}", T::NAME);
                    for of in 0..2 {
                        assert_near(&what, &found[of], &wanted[of], within);
                    }
                    // These are sums over many edges, some of them short.
                    let size = wanted[2].iter().fold(1.0f64, |all, x| all.max(x.abs()));
                    let scaled = |all: &[f64]| all.iter().map(|x| x / size).collect::<Vec<_>>();
                    assert_near(&what, &scaled(&found[2]), &scaled(&wanted[2]), 1e-11);
                    let again = case.run::<T>(gpu, gap);
                    assert!(again == found, "{what}: other bits");
                }
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    agree::<f64>(&gpu, 1e-12);
    agree::<f32>(&gpu, 2e-7);
}

#[test]
fn what_is_no_geometry_is_refused() {
    let cpu = Context::unchecked_cpu();
    let made = |receivers: &[u32], nodes, shifts: Option<&[[i32; 3]]>, options| {
        let edges = Edges { receivers, senders: &[0, 1], nodes };
        let cell = shifts.map(|shifts| PeriodicCell { vectors: CELL, shifts });
        EdgeGeometry::<f32>::new(&cpu, edges, cell, &options)
    };
    let options = GeometryOptions::default;
    let with = |options| made(&[1, 0], [2, 2], None, options);
    assert!(made(&[1, 0], [2, 2], None, options()).is_ok());
    for wrong in [
        made(&[1], [2, 2], None, options()),
        made(&[1, 2], [2, 2], None, options()),
        made(&[1, 0], [2, 3], None, options()),
        made(&[1, 0], [2, 2], Some(&[[0; 3]]), options()),
        with(GeometryOptions { cutoff: 0.0, ..options() }),
        with(GeometryOptions { degree: 4, ..options() }),
        with(GeometryOptions { exponent: 0, ..options() }),
    ] {
        assert_error!(
            wrong,
            Err(Error::Shape { .. } | Error::InvalidIndex { .. } | Error::OutOfRange { .. })
        );
    }
}
