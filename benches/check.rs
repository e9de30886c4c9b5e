//! Whether C is right: against a reference in f64, on every row of small problems and on chosen rows of big ones.

use crate::case::{Case, decode};
use crate::device::Result;
use crate::problems::Dtype;

/// Multiplications that the reference may cost; more rows than that allows are sampled.
const REFERENCE_PRODUCTS: usize = 1 << 24;
/// C up to this size is scanned whole for what was never written.
const SCAN_BYTES: usize = 16 << 20;

/// Reference values of chosen rows of C.
pub struct Reference {
    rows: Vec<usize>,
    /// (value, sum of |a||b|) per element, row after row.
    elements: Vec<(f64, f64)>,
}

/// What a comparison found.
pub struct Verdict {
    /// Relative error in the Frobenius norm over the chosen rows.
    pub relative: f64,
    /// Why the result is wrong.
    pub wrong: Option<String>,
}

impl Reference {
    /// First, last and longest row, and as many more, evenly spread, as the budget allows.
    pub fn new(case: &Case<'_>) -> Self {
        let (m, _, nnz) = case.problem.extents();
        let offsets = case.problem.pattern.offsets();
        let length = |&row: &usize| offsets[row + 1] - offsets[row];
        let mean = (nnz * case.n / m.max(1)).max(1);
        let count = (REFERENCE_PRODUCTS / mean).clamp(16, 512).min(m);
        let mut rows: Vec<usize> = (0..count).map(|i| i * m / count.max(1)).collect();
        rows.extend((0..m).max_by_key(length));
        rows.extend(m.checked_sub(1));
        rows.sort_unstable();
        rows.dedup();
        let mut elements = Vec::with_capacity(rows.len() * case.n);
        for &row in &rows {
            let start = elements.len();
            elements.resize(start + case.n, (0.0, 0.0));
            for p in offsets[row] as usize..offsets[row + 1] as usize {
                let (a, k) = (case.values.a(p), case.problem.pattern.columns()[p] as usize);
                for (n, (sum, magnitude)) in elements[start..].iter_mut().enumerate() {
                    let product = a * case.values.b(k * case.n + n);
                    *sum += product;
                    *magnitude += product.abs();
                }
            }
        }
        Self { rows, elements }
    }

    /// Holds the device's C against the reference: to `tolerance` in the norm, or element by element to
    /// u_out |c| + 4 u_acc sqrt(K) sum |a||b| + half a step of subnormal results.
    pub fn compare(&self, case: &Case<'_>, tolerance: Option<f64>) -> Result<Verdict> {
        let (dtype, n) = (case.dtype(), case.n);
        let (m, k, _) = case.problem.extents();
        let row_bytes = n * dtype.size();
        if let Some(place) = unwritten(case, m * row_bytes)? {
            let wrong = format!("NaN at ({}, {})", place / n, place % n);
            return Ok(Verdict {
                relative: f64::NAN,
                wrong: Some(wrong),
            });
        }
        let (u_out, u_acc) = dtype.roundoff();
        let floor = if dtype == Dtype::F16 {
            2f64.powi(-25)
        } else {
            0.0
        };
        let (mut error, mut norm, mut wrong) = (0.0, 0.0, None);
        let mut bytes = vec![0u8; row_bytes];
        for (&row, expected) in self.rows.iter().zip(self.elements.chunks(n)) {
            case.operands.c.read(row * row_bytes, &mut bytes)?;
            for (column, (bytes, &(c, magnitude))) in
                bytes.chunks(dtype.size()).zip(expected).enumerate()
            {
                let found = decode(dtype, bytes);
                let bound = u_out * c.abs() + 4.0 * u_acc * (k as f64).sqrt() * magnitude + floor;
                let beyond = tolerance.is_none() && (found - c).abs() > bound;
                if (beyond || found.is_nan()) && wrong.is_none() {
                    wrong = Some(format!("({row}, {column}) is {found}, not {c}"));
                }
                error += (found - c) * (found - c);
                norm += c * c;
            }
        }
        let relative = if norm > 0.0 {
            (error / norm).sqrt()
        } else {
            error.sqrt()
        };
        if let Some(limit) = tolerance.filter(|&limit| relative > limit) {
            wrong = wrong.or(Some(format!("relative error {relative:.1e} > {limit:.0e}")));
        }
        Ok(Verdict { relative, wrong })
    }
}

/// Position of the first NaN of a small C.
fn unwritten(case: &Case<'_>, bytes: usize) -> Result<Option<usize>> {
    if bytes > SCAN_BYTES {
        return Ok(None);
    }
    let mut all = vec![0u8; bytes];
    case.operands.c.read(0, &mut all)?;
    Ok(all
        .chunks(case.dtype().size())
        .position(|element| decode(case.dtype(), element).is_nan()))
}
