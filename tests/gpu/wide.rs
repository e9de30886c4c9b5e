//! B and C of more than 2^31 elements in rows of millions of bytes, for kernels that read all of B for a few rows of A.
//! Operands are filled on the device. C is checked in pieces: at its ends, and where 31-bit and 32-bit offsets
//! overflow.

use super::large::{gpu_for_large, room};
use crate::support::rows::{force, products_here};
use crate::support::runs::plan_of;
use crate::support::{Rng, assert_error, gpu};
use einsparse::driver::{copy_dtoh_async, copy_htod_async, memset_d8_async};
use einsparse::formats::{Csr, CsrPattern, Dense, f16};
use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Context, Error, Operand, Stream, Tensor};

/// Columns of a piece that is filled or checked.
const PIECE: usize = 64;

/// One product: its extents, and the positions of nonzeros in A and in B.
struct Case {
    rows: usize,
    columns: usize,
    /// Rows of A with nonzeros, and rows of B with elements; all others are zero.
    owners: [usize; 4],
    /// First columns of the pieces.
    pieces: Vec<usize>,
    /// `a[i][j]`: nonzero in row `owners[i]` and column `owners[j]`.
    a: Vec<f64>,
    /// Pieces of the rows of B, owner by owner.
    b: Vec<f64>,
}

impl Case {
    /// Creates A of rows x rows, and B and C of rows x columns.
    fn new(rows: usize, columns: usize) -> Case {
        assert!(rows * columns > 1 << 31 && rows > 8);
        // Columns of elements 2^31 and 2^30 in their rows.
        let ends = [1 << 31, 1 << 30].map(|at: usize| at % columns);
        let owners = [1 << 30, 1 << 31].map(|at: usize| at / columns);
        let pieces = [0, ends[0], ends[1], columns / 2, columns - PIECE];
        let aligned = |at: usize| (at / 8 * 8).min(columns - PIECE);
        let mut rng = Rng(11);
        Case {
            rows,
            columns,
            owners: [0, owners[0], owners[1].min(rows - 2), rows - 1],
            pieces: pieces.map(aligned).to_vec(),
            a: rng.integers(16),
            b: rng.integers(4 * 5 * PIECE),
        }
    }

    fn address<T: Scalar>(&self, tensor: &Tensor<T>, row: usize, column: usize) -> u64 {
        tensor.address().unwrap() + ((row * self.columns + column) * size_of::<T>()) as u64
    }

    fn b<T: Scalar>(&self, context: &Context, stream: &Stream) -> Tensor<T> {
        let b = context.zeros::<T>(&[self.rows, self.columns]).unwrap();
        let places = self.owners.iter().flat_map(|&row| self.pieces.iter().map(move |&c| (row, c)));
        for ((row, column), piece) in places.zip(self.b.chunks(PIECE)) {
            let piece: Vec<T> = piece.iter().map(|&x| T::from_f64(x)).collect();
            // SAFETY: the piece is inside B, and lives past the wait.
            unsafe { copy_htod_async(self.address(&b, row, column), &piece, stream.raw()) }
                .unwrap();
            stream.synchronize().unwrap();
        }
        b
    }

    /// A as CSR, with nonzeros at the owners' rows and columns.
    fn entries<T: Scalar>(&self) -> Csr<T> {
        let mut offsets = vec![0u32];
        for row in 0..self.rows {
            let more = if self.owners.contains(&row) { 4 } else { 0 };
            offsets.push(offsets[row] + more);
        }
        let columns = self.owners.map(|c| c as u32).repeat(4);
        let pattern = CsrPattern::new(self.rows, self.rows, offsets, columns).unwrap();
        Csr::new(pattern, self.a.iter().map(|&x| T::from_f64(x)).collect()).unwrap()
    }

    /// A as a dense matrix.
    fn dense<T: Scalar>(&self) -> Dense<T> {
        let mut all = vec![T::ZERO; self.rows * self.rows];
        for (i, row) in self.owners.into_iter().enumerate() {
            for (j, column) in self.owners.into_iter().enumerate() {
                all[row * self.rows + column] = T::from_f64(self.a[4 * i + j]);
            }
        }
        Dense::new([self.rows, self.rows], all).unwrap()
    }

    /// Runs a row of the table, and checks pieces of rows with and without nonzeros.
    fn check<'a, T: Scalar>(
        &self,
        context: &Context,
        row: &Row,
        a: Operand<'a, T>,
        b: &'a Tensor<T>,
    ) {
        let stream = context.stream().unwrap();
        let mut c = context.zeros::<T>(&[self.rows, self.columns]).unwrap();
        let bytes = self.rows * self.columns * size_of::<T>();
        // SAFETY: the range is C; 0x7f7f.. is NaN in f16, and no sum of small integers in f32.
        unsafe { memset_d8_async(self.address(&c, 0, 0), 0x7f, bytes, stream.raw()) }.unwrap();
        let operands: [(&str, Operand<'_, T>); 2] = [("A", a), ("B", b.into())];
        let plan = plan_of(context, "C[m,n] = A[m,k] * B[k,n]", &operands, &force(row));
        plan.run(&operands, &mut c, &stream).unwrap();
        let empty = [1, self.rows / 3, self.rows - 3].map(|row| (None, row));
        let owned = self.owners.iter().enumerate().map(|(i, &row)| (Some(i), row));
        for (owner, at) in owned.chain(empty) {
            for (p, &first) in self.pieces.iter().enumerate() {
                let mut found = vec![T::ONE; PIECE];
                // SAFETY: the piece is inside C, and `found` is read after the wait.
                unsafe { copy_dtoh_async(&mut found, self.address(&c, at, first), stream.raw()) }
                    .unwrap();
                stream.synchronize().unwrap();
                for (j, x) in found.iter().enumerate() {
                    let term = |i: usize, e: usize| self.a[4 * i + e] * self.b_at(e, p, j);
                    let sum: f64 = owner.map_or(0.0, |i| (0..4).map(|e| term(i, e)).sum());
                    let column = first + j;
                    assert_eq!(x.to_f64(), sum, "{}: C[{at},{column}]", row.name);
                }
            }
        }
    }

    /// Column `j` of piece `p` of an owner's row of B. Overlapping pieces contain the values that were written last.
    fn b_at(&self, owner: usize, p: usize, j: usize) -> f64 {
        let column = self.pieces[p] + j;
        let last = (0..self.pieces.len())
            .rev()
            .find(|&q| (self.pieces[q]..self.pieces[q] + PIECE).contains(&column));
        let q = last.unwrap_or(p);
        self.b[(owner * self.pieces.len() + q) * PIECE + column - self.pieces[q]]
    }
}

#[test]
fn staged_rows_past_four_gigabytes() {
    let Some(gpu) = gpu_for_large() else {
        return;
    };
    // Two cases: a ring that wraps around more than twice, and a B with few enough rows for shared memory, which
    // requires many columns of C.
    for (rows, columns) in [(4100, 524_832), (1152, 1_864_192)] {
        let case = Case::new(rows, columns);
        if !room(20 << 30) {
            return;
        }
        let a = gpu.upload(case.entries::<f32>()).unwrap();
        let a = a.to_sliced_ell().unwrap();
        let b = case.b::<f32>(&gpu, &gpu.stream().unwrap());
        // Tiles of one column would exceed the maximum grid size.
        let takes = |row: &&Row| {
            let tiles = columns.div_ceil(row.columns as usize);
            let walks = row.walk == WalkKind::SlicedEll && row.dtype == Dtype::F32;
            walks && rows <= row.depth as usize && tiles <= 65_535
        };
        for row in products_here().filter(takes) {
            // The other case tests the ring.
            if rows > 2048 || row.holds_b() {
                case.check(&gpu, row, (&a).into(), &b);
            }
        }
    }
}

#[test]
fn dense_rows_past_four_gigabytes() {
    let Some(gpu) = gpu_for_large() else {
        return;
    };
    fn every<T: Scalar>(gpu: &Context, dtype: Dtype) {
        let case = Case::new(4104, 524_864);
        if !room(20 << 30) {
            return;
        }
        let a = gpu.upload_dense(&case.dense::<T>()).unwrap();
        let b = case.b::<T>(gpu, &gpu.stream().unwrap());
        let own = |row: &&Row| row.module == "dense" && row.dtype == dtype;
        for row in products_here().filter(own) {
            case.check(gpu, row, (&a).into(), &b);
        }
    }
    every::<f16>(&gpu, Dtype::F16);
    every::<f32>(&gpu, Dtype::Tf32);
}

/// More columns than the grid has tiles are refused before any launch.
#[test]
fn too_many_columns_are_refused() {
    let Some(gpu) = gpu() else { return };
    let (m, n) = (4, 32 * 65_536);
    let pattern = CsrPattern::new(m, m, vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3]).unwrap();
    let csr = Csr::new(pattern, vec![1f32; m]).unwrap();
    let b = gpu.zeros::<f32>(&[m, n]).unwrap();
    let sliced = gpu.upload(&csr).unwrap().to_sliced_ell().unwrap();
    let entries = gpu.upload(csr).unwrap();
    let of_f32 = |row: &&Row| row.walk == WalkKind::SlicedEll && row.dtype == Dtype::F32;
    let staged = products_here().filter(of_f32);
    let few = ["batched_csr_f32_n32", "batched_permuted_f32_n32"];
    let few = few.map(|name| einsparse::registry::find(name).unwrap());
    for row in staged.chain(few) {
        let (a, text) = match row.walk {
            WalkKind::SlicedEll => (&sliced, "C[m,n] = A[m,k] * B[k,n]"),
            WalkKind::Permuted => (&entries, "C[m,n] = A[k,m] * B[k,n]"),
            _ => (&entries, "C[z,m,n] = A[m,k] * B[z,k,n]"),
        };
        let batch = gpu.zeros::<f32>(&[1, m, n]).unwrap();
        let b = if text.contains('z') { &batch } else { &b };
        let operands: [(&str, Operand<'_, f32>); 2] = [("A", a.into()), ("B", b.into())];
        let forced = force(row);
        let plan = gpu.plan(text).operands(&operands).options(&forced);
        assert_error!(plan.build().unwrap_err(), Error::NoKernel { .. });
    }
}
