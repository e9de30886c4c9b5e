//! Products at the nonzeros of a sparse output: the table of `sddmm`, further numbers of terms, blocks, 8 bits.

use super::products::{entries_of, full};
use super::{Made, NAN, Rows};
use crate::families::sddmm;
use crate::ours::convert;
use crate::prelude::*;
use crate::problems;
use einsparse::formats::{Format, generate};
use std::cell::RefCell;

const BY_ROWS: &str = "S[m,n] = X[m,k] * Y[n,k]";
const BY_COLUMNS: &str = "S[m,n] = X[k,m] * Y[k,n]";
/// Numbers of terms: vectors of every size and their edges.
const TERMS: [usize; 14] = [1, 8, 16, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512, 1000];

pub fn run(rows: &mut Rows<'_>) -> Result<()> {
    tables(rows)?;
    let uniform = |extent, density| Source::Uniform(extent, extent, density);
    let patterns = [
        ("uniform-4096-d0.05", uniform(4096, 0.05)),
        ("uniform-1024-d0.2", uniform(1024, 0.2)),
        ("uniform-16384-d0.001", uniform(16384, 0.001)),
        ("rmat14", Source::Rmat(14)),
        ("attention-4096", Source::Attention(4096, 256, 0.05)),
    ];
    for (name, source) in patterns {
        for dtype in Dtype::ALL {
            by_dtype!(dtype, T => terms::<T>(rows, name, &source, dtype))?;
        }
        let name = &format!("{name} int8");
        rows.group("sddmm", name, |rows| {
            let pattern = Problem::of("sddmm", name, source)?.pattern;
            let out = rows.context.upload(entries_of::<i32>(&pattern)?)?;
            let out = RefCell::new(out);
            let extents = [pattern.rows(), pattern.cols()];
            rows.places::<i8, i32>(name, BY_ROWS, &out, (extents, &TERMS), &Options::default())
        })?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16] {
        by_dtype!(dtype, T => blocks::<T>(rows, dtype))?;
    }
    Ok(())
}

fn tables(rows: &mut Rows<'_>) -> Result<()> {
    let all = problems::workloads(problems::data().as_deref());
    for workload in all.iter().filter(|w| w.op == sddmm::OP) {
        for &dtype in workload.dtypes {
            let name = &format!("{} {dtype}", workload.name);
            rows.group("sddmm", name, |rows| {
                let pattern = Problem::load(workload)?.pattern;
                by_dtype!(dtype, T => {
                    let out = rows.context.upload(entries_of::<T>(&pattern)?)?;
                    let extents = [pattern.rows(), pattern.cols()];
                    let asked = (extents, workload.ns);
                    rows.places::<T, T>(name, BY_ROWS, &RefCell::new(out), asked, &precise(dtype))
                })
            })?;
        }
    }
    Ok(())
}

fn terms<T: Scalar>(rows: &mut Rows<'_>, name: &str, source: &Source, dtype: Dtype) -> Result<()> {
    let name = &format!("{name} {dtype}");
    rows.group("sddmm", name, |rows| {
        let pattern = Problem::of("sddmm", name, source.clone())?.pattern;
        let extents = [pattern.rows(), pattern.cols()];
        let csr = entries_of::<T>(&pattern)?;
        let groups = Format::GroupCoo { axis: 0, group: None };
        let grouped = convert(&csr, groups)?;
        let own = precise(dtype);
        let out = RefCell::new(rows.context.upload(csr)?);
        rows.places::<T, T>(name, BY_ROWS, &out, (extents, &TERMS), &own)?;
        rows.places::<T, T>(name, BY_COLUMNS, &out, (extents, &[64, 128, 256]), &own)?;
        let out = RefCell::new(rows.context.upload(grouped)?);
        rows.places::<T, T>(&format!("{name} {groups}"), BY_ROWS, &out, (extents, &[64]), &own)
    })
}

fn blocks<T: Scalar>(rows: &mut Rows<'_>, dtype: Dtype) -> Result<()> {
    for edge in [16, 32, 64, 128] {
        for (extent, density) in [(4096, 0.3), (4096, 0.05), (1024, 0.2)] {
            let name = &format!("block{edge}-{extent}-d{density} {dtype}");
            rows.group("sddmm", name, |rows| {
                let pattern = generate::blocks(extent, extent, (edge, edge), density, SEED)?;
                let out = RefCell::new(rows.context.upload(full::<T>(pattern)?)?);
                for expression in [BY_ROWS, BY_COLUMNS] {
                    let asked = ([extent; 2], &[64, 100, 128, 256, 1024][..]);
                    rows.places::<T, T>(name, expression, &out, asked, &Options::default())?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

impl Rows<'_> {
    /// Measures a pattern with several numbers of terms.
    fn places<T: Scalar, Out: Scalar>(
        &mut self,
        name: &str,
        expression: &str,
        mut out: &RefCell<SparseTensor<Out>>,
        ([m, n], terms): ([usize; 2], &[usize]),
        options: &Options,
    ) -> Result<()> {
        for &k in terms {
            if self.is_late() {
                return Ok(());
            }
            let shape = |rows: usize| match expression {
                BY_COLUMNS => [k, rows],
                _ => [rows, k],
            };
            let (x, y) = (self.dense::<T>(&shape(m))?, self.dense::<T>(&shape(n))?);
            let operands: [(&str, Operand<'_, T>); 2] = [("X", (&x).into()), ("Y", (&y).into())];
            let (context, stream, like) = (self.context.clone(), self.stream(), out);
            let make = |variant: Option<&str>| {
                let options = options.clone().variant(variant);
                let plan = context
                    .plan::<T>(expression)
                    .operands(&operands)
                    .sparse_output(&like.borrow())
                    .options(&options)
                    .build()?;
                let (choice, taken) = (plan.choice().clone(), plan.variant());
                let (operands, stream) = (&operands, &stream);
                let run = move |out: &mut &RefCell<SparseTensor<Out>>| {
                    plan.run(operands, &mut *out.borrow_mut(), stream)
                };
                Ok(Made::chosen(&choice, taken, run))
            };
            let case = format!("{name} k{k} {expression}");
            self.case(["sddmm", &case], (&mut out, NAN, T::DTYPE), &[], &make)?;
        }
        Ok(())
    }
}
