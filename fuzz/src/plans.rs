//! Plans on the CPU: an error, or the result of plain loops.

use std::collections::BTreeMap;

use einsparse::einsum::{Access, Einsum, Extents, IndexExpr};
use einsparse::formats::{AnySparse, Dense, Format};
use einsparse::{Context, Operand};

use super::conversions::{FORMATS, coo};
use super::input::Input;
use super::outcome::{Outcome, outcome, refused};
use super::reference::{Value, Values, result};

/// Expressions of every family, and some that no family supports.
pub const TEXTS: [&str; 46] = [
    "C[m,n] = A[m,k] * B[k,n]",
    "C[m,n] += A[m,k] * B[k,n]",
    "C[m,n] = A[k,m] * B[k,n]",
    "C[n,m] = A[m,k] * B[k,n]",
    "C[m,n] = relu(2 * A[m,k] * B[k,n] + bias[m])",
    "C[m,n] += relu(A[m,k] * B[k,n] + bias[n])",
    "C[m,n] = relu_grad(A[m,k] * B[k,n], H[m,n])",
    "C[m,n] = s * A[m,k] * B[k,n]",
    "y[m] = A[m,k] * x[k]",
    "y[k] = A[m,k] * x[m]",
    "C[b,m,n] = A[m,k] * B[b,k,n]",
    "C[m,n] = D[m] * A[m,k] * E[k] * B[k,n]",
    "C[m,n] = A[m,n] * B[m,n]",
    "C[m,n] = A[m,n] * B[m,k] * D[n,k]",
    "C[m] = A[m,m]",
    "C[m,m] = A[m,k] * B[k,m]",
    "C[i] = A[i,j]",
    "C[] = A[i,j] * B[i,j]",
    "C[i,j,k] = A[i,l] * B[l,j] * D[j,k]",
    "C[i,j] = A[i,k,l] * B[k,j] * D[l,j]",
    "C[i,r] = X[i,j,k] * B[j,r] * D[k,r]",
    "C[x] = A[x+i] * B[i]",
    "C[x,f] = A[2*x+i,m] * B[i,m,f]",
    "C[x,y,f] = A[x+i,y+j,m] * B[i,j,m,f]",
    "C[I[p],n] += A[p,k] * B[k,n]",
    "C[m,n] = A[m,k] * B[I[k],n]",
    "C[I[p],n] += A[J[p],k] * B[k,n]",
    "C[m,n] = A[m,q] * B[I[m,q],n]",
    "C[p,n] = A[I[J[p]],n]",
    "C[i,j] = A[i,j]",
    "C[j,i] = A[i,j]",
    "C[i,j] = A[i] * B[j]",
    "C[m,n] = A[m,k] * B[k,n] + bias[m,n]",
    "C[m,n] = A[m,k] * A[k,n]",
    "C[m,n] = -0.5 * A[m,k] * B[n,k]",
    "C[i,j] = A[i,k] * B[k,l] * D[l,j]",
    "C[b,i,j] = A[b,i,k] * B[b,k,j]",
    "C[b,i,j] = A[i,k] * B[b,k] * D[b,j]",
    "C[m,n] = A[m,n,k]",
    "C[n] = A[m,k] * B[k,n]",
    "C[i,k] = A[i,j] * A[j,k]",
    "C[i,l] += A[i,j] * B[j,k] * A[k,l]",
    "C[i,m] = A[i,j] * B[j,k] * D[k,l] * E[l,m]",
    "C[i,n] = A[i,j] * B[j,k] * D[k,l] * E[l,m] * F[m,n]",
    "C[] = A[i,j] * B[j,k] * D[k,i] * E[i,k] * F[j]",
    "C[m,n] = A[m,k] * B[j,n] * D[p]",
];

/// A random expression.
fn made_up(input: &mut Input<'_>) -> String {
    const NAMES: [&str; 4] = ["i", "j", "k", "l"];
    let mut access = |name: &str, most: usize| {
        let order = input.below(most + 1);
        let indices: Vec<&str> = (0..order).map(|_| input.one(&NAMES)).collect();
        format!("{name}[{}]", indices.join(","))
    };
    let out = access("C", 3);
    // A may occur twice.
    let names = ["A", "B", "D", "A"];
    let factors: Vec<String> = names.iter().map(|name| access(name, 3)).collect();
    let count = 1 + input.below(names.len());
    let mode = input.one(&["=", "=", "+="]);
    format!("{out} {mode} {}", factors[..count].join(" * "))
}

/// Extents that are drawn, and the range of elements.
pub struct Sizes {
    pub extents: &'static [usize],
    /// Maximum number of terms of all sums together.
    pub terms: usize,
    /// Elements are in the range from `-largest` to `largest`.
    pub largest: u64,
}

/// Small extents: panics of host code do not depend on size.
const SMALL: Sizes = Sizes { extents: &[2, 3, 4, 1, 5, 7, 0, 6], terms: usize::MAX, largest: 3 };

/// Draws the shapes of the operands: one extent for each index name, sometimes with a mismatch.
fn shapes(e: &Einsum, sizes: &Sizes, input: &mut Input<'_>) -> BTreeMap<String, Vec<usize>> {
    let names = e.index_names();
    let mut extents: BTreeMap<&str, usize> = BTreeMap::new();
    let mut terms = 1_usize;
    for name in names {
        let mut extent = input.one(sizes.extents);
        if terms.saturating_mul(extent) > sizes.terms {
            extent = extent.min(3);
        }
        terms = terms.saturating_mul(extent.max(1));
        extents.insert(name, extent);
    }
    let mut shapes = BTreeMap::new();
    let mut visit = |access: &Access| {
        let one = |index: &IndexExpr| match index {
            IndexExpr::Name(name) => extents[name.as_str()],
            IndexExpr::Access(_) => 5,
            IndexExpr::Sum(terms) => {
                let reach = |t: &einsparse::einsum::Term| {
                    t.factor.saturating_mul(extents[t.index.as_str()].saturating_sub(1))
                };
                terms.iter().map(reach).fold(1, usize::saturating_add).min(64)
            }
        };
        let shape: Vec<usize> = access.indices.iter().map(one).collect();
        shapes.entry(access.tensor.clone()).or_insert(shape);
    };
    e.right().for_each(|access| access.for_each_access(&mut visit));
    e.out.for_each_access(&mut visit);
    if input.below(16) == 15
        && let Some(shape) = shapes.values_mut().next()
    {
        match shape.first_mut() {
            Some(extent) => *extent += 1,
            None => shape.push(2),
        }
    }
    shapes
}

/// Names of tensors that are used as indices of others.
fn arrays(e: &Einsum) -> Vec<String> {
    let mut found = Vec::new();
    let mut visit = |access: &Access| {
        for index in &access.indices {
            if let IndexExpr::Access(array) = index {
                found.push(array.tensor.clone());
            }
        }
    };
    e.right().for_each(|access| access.for_each_access(&mut visit));
    e.out.for_each_access(&mut visit);
    found
}

fn dense(input: &mut Input<'_>, shape: &[usize], largest: u64) -> Option<Dense<f64>> {
    let mut seed = u64::from(input.byte());
    let elements = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))?;
    let next = |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 40) % (2 * largest + 1)) as f64 - largest as f64
    };
    if elements > 1 << 14 {
        return None;
    }
    Dense::new(shape.to_vec(), (0..elements).map(next).collect()).ok()
}

/// An expression and all of its operands.
pub struct Case {
    pub text: String,
    pub einsum: Einsum,
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Values of all operands; sparse ones are stored as dense ones.
    pub values: Values,
    pub sparse: BTreeMap<String, AnySparse<f64>>,
    /// Previous content of the output.
    pub before: Dense<f64>,
    /// Whether the plan receives the extents of the output.
    pub is_output_given: bool,
}

impl Case {
    /// Draws a case. The error is the outcome of an expression that cannot run.
    pub fn draw(input: &mut Input<'_>, sizes: &Sizes) -> Result<Case, Outcome> {
        let text = match input.below(64) {
            at if at < TEXTS.len() => TEXTS[at].to_owned(),
            _ => made_up(input),
        };
        let Ok(einsum) = text.parse::<Einsum>() else {
            return Err(outcome(&text.len()));
        };
        let shapes = shapes(&einsum, sizes, input);
        Case::bind(text, einsum, shapes, sizes, input).ok_or(1)
    }

    fn bind(
        text: String,
        e: Einsum,
        shapes: BTreeMap<String, Vec<usize>>,
        sizes: &Sizes,
        input: &mut Input<'_>,
    ) -> Option<Case> {
        let (mut values, mut sparse) = (Values::new(), BTreeMap::new());
        let arrays = arrays(&e);
        for (name, shape) in shapes.iter().filter(|(name, _)| **name != e.out.tensor) {
            if arrays.contains(name) {
                let count: usize = shape.iter().product();
                let slot = |_| match input.below(16) {
                    15 => u32::MAX,
                    14 => 7,
                    slot => slot as u32 % 2,
                };
                let slots = (0..count).map(slot).collect();
                values.insert(name.clone(), Value::Index(shape.clone(), slots));
                continue;
            }
            let is_sparse = !shape.is_empty() && input.below(2) == 1;
            if !is_sparse {
                let drawn = dense(input, shape, sizes.largest)?;
                values.insert(name.clone(), Value::Dense(drawn));
                continue;
            }
            let format: Format = input.one(&FORMATS).parse().expect("a format");
            let largest = sizes.largest as f64;
            let coo = AnySparse::from(coo(input, shape, 24));
            let coo = coo.map_values(|x: f64| x.clamp(-largest, largest));
            let stored = coo.convert(format).unwrap_or(coo);
            values.insert(name.clone(), Value::Dense(stored.to_dense().ok()?));
            sparse.insert(name.clone(), stored);
        }
        for scalar in &e.scalars {
            if let einsparse::einsum::Scalar::Name(name) = scalar {
                values.entry(name.clone()).or_insert(Value::Number(2.0));
            }
        }
        let before = dense(input, shapes.get(&e.out.tensor)?, sizes.largest)?;
        let scattered = |index: &IndexExpr| matches!(index, IndexExpr::Access(_));
        Some(Case {
            is_output_given: e.out.indices.iter().any(scattered) || input.below(4) == 0,
            text,
            einsum: e,
            shapes,
            values,
            sparse,
            before,
        })
    }

    /// Extents of the planned operands. Panics if they do not agree although a plan exists.
    pub fn extents(&self) -> Extents {
        let mut given = self.shapes.clone();
        if !self.is_output_given {
            given.remove(&self.einsum.out.tensor);
        }
        let extents = self.einsum.check(&given);
        extents.unwrap_or_else(|error| panic!("{}: planned, but {error}", self.text))
    }

    /// Expected result, if the reference can compute it.
    pub fn wanted(&self, extents: &Extents) -> Option<Dense<f64>> {
        result(&self.einsum, extents, &self.values, &self.before)
    }
}

/// Plans an expression over operands of any format.
pub fn plans(data: &[u8]) -> Outcome {
    let case = match Case::draw(&mut Input::new(data), &SMALL) {
        Ok(case) => case,
        Err(seen) => return seen,
    };
    let context = Context::cpu();
    let mut operands: Vec<(&str, Operand<'_, f64>)> = Vec::new();
    for (name, value) in &case.values {
        let operand = match (value, case.sparse.get(name)) {
            (_, Some(sparse)) => Operand::from(sparse),
            (Value::Dense(dense), _) => Operand::HostDense(dense),
            (Value::Index(shape, slots), _) => Operand::Index(shape, slots),
            (Value::Number(x), _) => Operand::Scalar(*x),
        };
        operands.push((name, operand));
    }
    let upload = || context.upload_dense(&case.before).expect("a small tensor");
    let (mut out, given_out) = (upload(), upload());
    if case.is_output_given {
        operands.push((&case.einsum.out.tensor, (&given_out).into()));
    }
    let text = &case.text;
    let plan = match context.plan(text).operands(&operands).build() {
        Ok(plan) => plan,
        Err(error) => return refused(&error),
    };
    let seen = outcome(&(plan.indirect().to_string(), plan.out_shape().contains(&0)));
    let extents = case.extents();
    assert_eq!(plan.out_shape(), extents.out(), "{text}");
    let stream = context.stream().expect("a stream of the CPU");
    // Index arrays are part of the plan.
    operands.truncate(case.values.len());
    operands.retain(|(_, operand)| !matches!(operand, Operand::Index(..)));
    if let Err(error) = plan.run(&operands, &mut out, &stream) {
        assert!(out.shape() != plan.out_shape(), "{text}: {error}");
        return refused(&error);
    }
    let found = out.to_dense().expect("the result");
    if let Some(wanted) = case.wanted(&extents) {
        let formats: Vec<_> =
            case.sparse.iter().map(|(n, s)| format!("{n}: {}", s.format())).collect();
        assert_eq!(found, wanted, "{text} {:?} {formats:?}", case.shapes);
    }
    seen
}
