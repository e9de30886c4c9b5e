//! One suite for every row of the table, each forced by name: shapes, formats, modes, epilogues and strided operands.
//! Values are integers, so results must be equal. The CPU executor runs the same suite.

use std::collections::{BTreeMap, BTreeSet};

use super::cases::{self, CLASSES, CUT, Shape};
use crate::support::dense::strided;
use crate::support::rows::{
    force, formats, product_dtypes, product_types, products_here, rows_cut, takes_any,
};
use crate::support::{Expression, GUARD, Problem, WIDEST, assert_matrix, gpu, small};
use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Context, Operand, SparseTensor, Stream, Tensor};

/// A problem in the context, for one width.
struct Uploaded<'a, T> {
    class: &'static str,
    problem: &'a Problem<T>,
    sparse: &'a BTreeMap<String, SparseTensor<T>>,
    n: usize,
    /// B without gaps, with gaps of one vector, with odd row strides; NaN in the gaps.
    b: [Tensor<T>; 3],
    biases: [Tensor<T>; 2],
}

impl<'a, T: Scalar> Uploaded<'a, T> {
    fn operands(
        &self,
        a: &'a SparseTensor<T>,
        b: usize,
        x: &Expression,
    ) -> Vec<(&'static str, Operand<'_, T>)> {
        let mut operands = vec![("A", a.into()), ("B", (&self.b[b]).into())];
        x.operands(&mut operands, self.biases.each_ref());
        operands
    }
}

struct Suite<'a> {
    context: &'a Context,
    stream: Stream,
    expressions: Vec<Expression>,
    /// Classes of cases that each row has run.
    met: BTreeMap<&'static str, BTreeSet<String>>,
    turns: BTreeMap<&'static str, usize>,
}

impl<'a> Suite<'a> {
    fn new(context: &'a Context) -> Self {
        let stream = context.stream().unwrap();
        Suite {
            context,
            stream,
            expressions: Expression::all(),
            met: BTreeMap::new(),
            turns: BTreeMap::new(),
        }
    }

    fn shape<T: Scalar>(&mut self, rows: &[&'static Row], shape: &Shape) {
        let problem = Problem::<T>::integers(shape.pattern.clone(), 7, WIDEST);
        let names: BTreeSet<String> = rows.iter().flat_map(|row| formats(row)).collect();
        let upload = |name: String| {
            let tensor = self.context.upload(problem.sparse(&name)).unwrap();
            (name, tensor)
        };
        let sparse = names.into_iter().map(upload).collect();
        for &n in &shape.widths {
            let b = problem.b(n);
            let nan = T::from_f64(f64::NAN);
            let strided = |leading| self.context.upload_strided(&b, leading, nan).unwrap();
            let uploaded = Uploaded {
                class: shape.class,
                problem: &problem,
                sparse: &sparse,
                n,
                b: [strided(n), strided(n.next_multiple_of(16) + 16), strided(n + 3)],
                biases: [&problem.bias_rows, &problem.bias_columns(n)]
                    .map(|d| self.context.upload_dense(d).unwrap()),
            };
            for row in rows {
                self.visit(row, &uploaded);
            }
        }
    }

    /// Runs the next two expressions of this row, `=` and `+=`.
    fn visit<T: Scalar>(&mut self, row: &'static Row, on: &Uploaded<'_, T>) {
        let vector = row.vector as usize;
        let whole = on.n.is_multiple_of(vector);
        let any_width = [WalkKind::Block, WalkKind::SlicedEll].contains(&row.walk);
        if (!any_width && !whole) || on.problem.k() > row.depth as usize {
            return;
        }
        let first = *self.turns.get(row.name).unwrap_or(&0);
        self.turns.insert(row.name, first + 2);
        for turn in [first, first + 1] {
            let names = formats(row);
            let format = &names[(turn + turn / self.expressions.len()) % names.len()];
            let x = self.expressions[turn % self.expressions.len()];
            let strided = !whole || turn / 2 % 2 == 1;
            let b = if !strided { 0 } else { 2 - usize::from(vector > 1) };
            // Outputs of the block family may have any alignment.
            let leading =
                if strided && row.walk == WalkKind::Block { on.n + 3 } else { on.b[b].leading() };
            self.run(row, on, format, &x, b, leading);
            self.note(row, on, format, &x, strided);
        }
    }

    fn run<T: Scalar>(
        &self,
        row: &'static Row,
        on: &Uploaded<'_, T>,
        format: &str,
        x: &Expression,
        b: usize,
        leading: usize,
    ) {
        let what =
            (row.name, on.class, format, x.text(), on.problem.m(), on.problem.k(), on.n, leading);
        let (a, guard) = (&on.sparse[format], T::from_f64(GUARD));
        let mut c = strided(self.context, &on.problem.start(x, on.n), leading, guard);
        let mut planned = on.operands(a, b, x);
        planned.push(("C", (&c).into()));
        let plan = self
            .context
            .plan(&x.text())
            .operands(&planned)
            .options(&force(row))
            .build()
            .unwrap_or_else(|e| panic!("{what:?}: {e}"));
        let chosen: Vec<_> = plan.choice().candidates.iter().map(|c| c.name).collect();
        assert_eq!(chosen, [row.name], "{what:?}");
        if self.context.is_cuda() {
            assert_eq!(plan.variant(), row.name, "{what:?}");
            // Kernels over slices and windows do not split rows.
            let cuts =
                ![WalkKind::SlicedEll, WalkKind::Vector, WalkKind::Filled].contains(&row.walk);
            // Rows of unstructured formats are split only if they have more than 32 nonzeros.
            let may = on.class == CUT || row.block == (1, 1) && on.problem.longest() > 32;
            let cut = rows_cut(&plan).unwrap() > 0;
            assert!(may || !cut, "{what:?}: {plan}");
            assert!(cuts || !cut, "{what:?}: {plan}");
            assert!(cut || !cuts || on.class != CUT, "{what:?}: {plan}");
        }
        plan.run(&on.operands(a, b, x), &mut c, &self.stream)
            .unwrap_or_else(|e| panic!("{what:?}: {e}"));
        self.stream.synchronize().unwrap_or_else(|e| panic!("{what:?}: {e}"));
        let found = c.to_storage().unwrap();
        assert_matrix(&what, &found, (on.problem.m(), on.n, leading), |r, c| {
            on.problem.expected(x, r, c)
        });
    }

    fn note<T: Scalar>(
        &mut self,
        row: &'static Row,
        on: &Uploaded<'_, T>,
        format: &str,
        x: &Expression,
        strided: bool,
    ) {
        let met = self.met.entry(row.name).or_default();
        met.extend([
            on.class.to_owned(),
            format.to_owned(),
            x.text(),
            format!("strided: {strided}"),
        ]);
        met.extend(beside("columns", on.n, row.columns as usize, row.vector as usize));
        let tile = if row.walk == WalkKind::Block { row.block.0 } else { row.items };
        met.extend(beside("rows", on.problem.m(), tile as usize, 1));
    }

    /// Checks that each row ran every class of cases.
    fn assert_complete(&self, rows: &[&'static Row]) {
        for row in rows {
            let mut wanted: BTreeSet<String> = CLASSES.iter().map(ToString::to_string).collect();
            if row.depth != u32::MAX {
                // This row is split only at lengths beyond its depth.
                wanted.remove(CUT);
            }
            wanted.extend(formats(row));
            wanted.extend(self.expressions.iter().map(Expression::text));
            wanted.extend([true, false].map(|s| format!("strided: {s}")));
            let tiles = ["a tile less of", "a tile of", "a tile more of"];
            wanted.extend(
                ["rows", "columns"].iter().flat_map(|axis| tiles.map(|t| format!("{t} {axis}"))),
            );
            let missing: Vec<_> = wanted.difference(&self.met[row.name]).collect();
            assert!(missing.is_empty() || small(), "{} has not met {missing:?}", row.name);
        }
    }
}

/// Class of an extent that equals a tile, or is one step less or more.
fn beside(axis: &str, extent: usize, tile: usize, step: usize) -> Option<String> {
    let words = [
        (extent + step, "a tile less of"),
        (extent, "a tile of"),
        (extent.wrapping_sub(step), "a tile more of"),
    ];
    words.iter().find(|(n, _)| *n == tile).map(|(_, word)| format!("{word} {axis}"))
}

/// Runs all rows of one element type.
fn every_row<T: Scalar>(context: &Context, dtype: Dtype) {
    let mut suite = Suite::new(context);
    let rows: Vec<&'static Row> =
        products_here().filter(|row| row.dtype == dtype && takes_any(row)).collect();
    let (blocked, single): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row.walk == WalkKind::Block);
    if !single.is_empty() {
        cases::entries().iter().for_each(|shape| suite.shape::<T>(&single, shape));
    }
    for block in blocked
        .iter()
        .map(|row| (row.block.0 as usize, row.block.1 as usize))
        .collect::<BTreeSet<_>>()
    {
        let of_block: Vec<_> = blocked
            .iter()
            .copied()
            .filter(|row| (row.block.0 as usize, row.block.1 as usize) == block)
            .collect();
        cases::blocks(block).iter().for_each(|shape| suite.shape::<T>(&of_block, shape));
    }
    suite.assert_complete(&rows);
}

macro_rules! suites {
    ($($dtype:ident: $element:ty, $gpu:ident, $cpu:ident;)*) => {
        $(
            #[test]
            fn $gpu() {
                if let Some(gpu) = gpu() {
                    every_row::<$element>(&gpu, Dtype::$dtype);
                }
            }

            #[test]
            fn $cpu() {
                every_row::<$element>(&Context::cpu(), Dtype::$dtype);
            }
        )*

        #[test]
        fn every_suite_has_rows_and_every_row_a_suite() {
            assert_eq!(product_dtypes(), [$(Dtype::$dtype),*].into());
        }
    };
}

product_types! { suites }

/// Tests the comparison itself: one wrong element, a written gap, a NaN that remains.
#[test]
fn faults_are_found_and_named() {
    let good = [1.0f32, 2.0, GUARD as f32, 3.0, 4.0, GUARD as f32];
    let compare = |at: Option<(usize, f32)>| {
        let mut found = good;
        at.into_iter().for_each(|(i, x)| found[i] = x);
        let outcome = std::panic::catch_unwind(|| {
            assert_matrix(&"test", &found, (2, 2, 3), |r, c| good[r * 3 + c]);
        });
        outcome.err().and_then(|e| e.downcast::<String>().ok())
    };
    assert_eq!(compare(None), None);
    let says = |at, words: &str| compare(Some(at)).is_some_and(|said| said.contains(words));
    assert!(says((3, 5.0), "1 of 6 wrong, first C[1,0] = 5, expected 3"));
    assert!(says((1, f32::NAN), "first C[0,1] = NaN, expected 2"));
    assert!(says((2, 0.0), "the gap behind row 0 was written: 0"));
}
