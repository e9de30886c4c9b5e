//! Search for a contraction path: its order, and the expression and the cost of each step.

use einsparse_formats::allocate;
use einsparse_kernels::abi::{Dtype, Zeros};

use super::cost::SHARE;
use super::order::{Costs, Size, order};
use super::step::{Path, Step};
use crate::einsum::{Access, Einsum, Epilogue, Extents, IndexExpr, Mode, Scalar};
use crate::machine::Machine;

/// Device of the steps, with the properties that predict its times.
#[derive(Clone, Copy)]
pub(super) enum Place<'m> {
    Gpu(&'m Machine),
    /// The CPU executor multiplies a sparse factor and a dense one. If both factors are sparse, one is first stored as
    /// a dense tensor. It also reads factors through index arrays.
    Cpu,
}

/// Maximum number of indices: a set of indices is a bit mask.
const MAX_NAMES: usize = 128;

/// Contraction for which an order is searched.
#[derive(Clone, Copy)]
pub(super) struct Contraction<'a> {
    pub(super) einsum: &'a Einsum,
    pub(super) extents: &'a Extents,
    /// Number of nonzeros per factor; `None` for a dense factor.
    pub(super) entries: &'a [Option<usize>],
    /// Bytes of operands and output.
    pub(super) held: u64,
    /// Element type of intermediate results.
    pub(super) dtype: Dtype,
    pub(super) place: Place<'a>,
    /// Whether the CPU may join two sparse factors if neither fits in memory as a dense tensor.
    pub(super) lists: bool,
}

/// Path of an expression, and the cost of its alternative.
pub(super) struct Found {
    pub(super) path: Path,
    /// Predicted microseconds of one loop over all factors.
    pub(super) whole_us: f64,
    /// Whether the path only stores a sparse factor as a dense tensor.
    pub(super) only_dense: bool,
}

/// Reason for the lack of a path.
pub(super) struct NoPath {
    pub(super) reason: String,
    /// Multiplications of all factors at once, if there is a path that requires too much memory.
    pub(super) operations: Option<f64>,
}

fn no_path(reason: impl Into<String>) -> NoPath {
    NoPath { reason: reason.into(), operations: None }
}

/// Factor, or result of a step.
#[derive(Clone, Debug)]
struct Term {
    access: Access,
    size: Size,
    /// Index of the step that computes it.
    temporary: Option<usize>,
    /// Whether some of its elements may be without a term.
    partial: bool,
}

pub(super) struct Search<'a> {
    pub(super) asked: Contraction<'a>,
    names: Vec<&'a str>,
    pub(super) extents: Vec<f64>,
    /// Maximum bytes of the intermediate results that exist at once.
    pub(super) max_bytes: f64,
}

/// Returns the cheapest order of the factors.
pub(super) fn best(asked: Contraction<'_>) -> Result<Found, NoPath> {
    let einsum = asked.einsum;
    let names = einsum.index_names();
    let (factors, gpu) = (&einsum.factors, matches!(asked.place, Place::Gpu(_)));
    if factors.len() < 2 {
        return Err(no_path("orders two or more factors"));
    }
    let plain = |access: &Access| {
        let name = |index: &IndexExpr| matches!(index, IndexExpr::Name(_));
        access.indices.iter().all(name)
    };
    let mut sparse = factors.iter().zip(asked.entries).filter(|(_, n)| n.is_some());
    let all_plain = factors.iter().chain([&einsum.out]).all(plain);
    if gpu && !all_plain || !sparse.all(|(access, _)| plain(access)) {
        return Err(no_path("orders factors with plain indices"));
    }
    if names.len() > MAX_NAMES {
        let found = names.len();
        let reason = format!("orders up to {MAX_NAMES} indices, this expression has {found}");
        return Err(no_path(reason));
    }
    let extents = names.iter().map(|name| asked.extents.get(name).unwrap_or(1) as f64);
    let extents: Vec<f64> = extents.collect();
    // The sum is empty, and a step must not create a term from a NaN.
    if extents.contains(&0.0) {
        return Err(no_path("an index has the extent 0"));
    }
    let max_bytes = allocate::limits().of(asked.held) as f64;
    Search { asked, names, extents, max_bytes }.found()
}

impl Search<'_> {
    fn found(mut self) -> Result<Found, NoPath> {
        let asked = self.asked;
        let terms = asked.einsum.factors.iter().zip(asked.entries);
        let terms: Vec<Term> = terms
            .map(|(access, entries)| self.term(access.clone(), entries.map(|n| n as f64)))
            .collect();
        let out = self.bits(&asked.einsum.out);
        let sizes: Vec<Size> = terms.iter().map(|term| term.size).collect();
        let both_sparse = sizes.iter().all(|size| size.entries.is_some());
        let mut steps = Vec::new();
        let reduced = self.reduce_all(terms, out, &mut steps);
        let only_dense = reduced.len() < 3 && steps.is_empty();
        if only_dense && !(both_sparse && matches!(asked.place, Place::Cpu)) {
            return Err(no_path("orders three or more factors"));
        }
        let path = match self.path(reduced.clone(), out, steps.clone()) {
            Some(path) if self.peak(&path.steps) <= self.max_bytes => path,
            _ => {
                let allowed = std::mem::replace(&mut self.max_bytes, f64::INFINITY);
                let path = self.path(reduced, out, steps);
                let path = path.ok_or_else(|| no_path("orders two or more factors"))?;
                return Err(NoPath {
                    reason: self.over_limit(&path.steps, allowed),
                    operations: Some(self.work(&sizes, out)[0]),
                });
            }
        };
        Ok(Found { path, whole_us: self.whole_us(&sizes, out), only_dense })
    }

    /// Describes the step with the largest result, and the limits.
    fn over_limit(&self, steps: &[Step], allowed: f64) -> String {
        let before = &steps[..steps.len() - 1];
        let largest = before.iter().max_by(|a, b| a.elements.total_cmp(&b.elements));
        let Some(step) = largest else {
            return "all intermediate results fit".into();
        };
        let mut axes = Vec::new();
        step.einsum.out.for_each_name(&mut |name| {
            axes.push(format!("{name} = {}", self.asked.extents.get(name).unwrap_or(1)));
        });
        format!(
            "the result of the step `{}` has {} elements ({}), {} bytes: the intermediate results of this expression \
             may take {allowed} bytes, each of them {}; EINSPARSE_MEMORY and `allocate::set_limits` raise the limit",
            step.einsum,
            step.elements,
            axes.join(", "),
            step.elements * self.element(),
            SHARE * allowed,
        )
    }

    /// Returns the peak bytes of the intermediate results.
    fn peak(&self, steps: &[Step]) -> f64 {
        let (mut live, mut peak) = (0.0, 0.0f64);
        for step in &steps[..steps.len() - 1] {
            live += step.elements;
            peak = peak.max(live);
            // A GPU plan stores all intermediate results.
            if let Place::Cpu = self.asked.place {
                live -= step.reads().map(|at| steps[at].elements).sum::<f64>();
            }
        }
        peak * self.element()
    }

    fn term(&self, access: Access, entries: Option<f64>) -> Term {
        let names = self.bits(&access);
        // A slot of an index array may be padding, which skips the term.
        let gathered = |index: &IndexExpr| !matches!(index, IndexExpr::Name(_));
        let partial = entries.is_some() || access.indices.iter().any(gathered);
        Term { access, size: Size { names, entries }, temporary: None, partial }
    }

    fn bit(&self, name: &str) -> u128 {
        let number = self.names.iter().position(|own| *own == name);
        number.map_or(0, |number| 1 << number)
    }

    fn bits(&self, access: &Access) -> u128 {
        let mut bits = 0;
        access.for_each_name(&mut |name| bits |= self.bit(name));
        bits
    }

    /// Sums each factor over the indices that only it has, if the result is not larger than the factor.
    fn reduce_all(&self, mut terms: Vec<Term>, out: u128, steps: &mut Vec<Step>) -> Vec<Term> {
        for at in 0..terms.len() {
            let others = terms.iter().enumerate().filter(|(other, _)| *other != at);
            let others = others.fold(out, |all, (_, term)| all | term.size.names);
            let size = terms[at].size;
            let kept = size.names & others;
            let held = size.entries.unwrap_or_else(|| self.volume(size.names));
            if kept != size.names && self.volume(kept) <= held {
                terms[at] = self.reduced(&terms[at], kept, steps);
            }
        }
        terms
    }

    fn path(&self, terms: Vec<Term>, out: u128, mut steps: Vec<Step>) -> Option<Path> {
        let sizes: Vec<Size> = terms.iter().map(|term| term.size).collect();
        let pairs = order(&sizes, out, self)?;
        let mut left: Vec<Option<Term>> = terms.into_iter().map(Some).collect();
        let mut zeros = Zeros::Strict;
        for (at, &(a, b)) in pairs.iter().enumerate() {
            let (a, b) = (left[a].take()?, left[b].take()?);
            let others = left.iter().flatten();
            let others = others.fold(out, |all, term| all | term.size.names);
            let last = at + 1 == pairs.len();
            // The CPU executor skips elements without a term.
            let dense = |term: &Term| term.partial && term.temporary.is_some();
            if matches!(self.asked.place, Place::Gpu(_)) && (dense(&a) || dense(&b)) {
                zeros = Zeros::Dense;
            }
            let result = self.product([a, b], (others, last), &mut steps);
            left.push(Some(result));
        }
        Some(Path { steps, zeros })
    }

    /// Adds a step that sums a term over its own indices, or stores a sparse term as a dense tensor.
    fn reduced(&self, term: &Term, kept: u128, steps: &mut Vec<Step>) -> Term {
        let out = Access { tensor: self.fresh(steps.len()), indices: self.indices(&[term], kept) };
        let work = self.work(&[term.size], kept);
        self.add(&[term], out, (work, self.volume(kept)), false, steps)
    }

    fn product(
        &self,
        [a, b]: [Term; 2],
        (others, last): (u128, bool),
        steps: &mut Vec<Step>,
    ) -> Term {
        let (stored, [first, _]) = self.operands(a.size, b.size);
        let (a, mut b) = if first == a.size { (a, b) } else { (b, a) };
        if stored.is_some() {
            b = self.reduced(&b, b.size.names, steps);
        }
        let kept = (a.size.names | b.size.names) & others;
        let out = match last {
            true => self.asked.einsum.out.clone(),
            false => {
                Access { tensor: self.fresh(steps.len()), indices: self.indices(&[&a, &b], kept) }
            }
        };
        let work = self.work(&[a.size, b.size], kept);
        self.add(&[&a, &b], out, (work, self.volume(kept)), last, steps)
    }

    /// Returns the kept indices in the order of the terms.
    fn indices(&self, terms: &[&Term], kept: u128) -> Vec<IndexExpr> {
        let mut names: Vec<&str> = Vec::new();
        for term in terms {
            term.access.for_each_name(&mut |name| {
                if kept & self.bit(name) != 0 && !names.contains(&name) {
                    names.push(name);
                }
            });
        }
        let name = |name: &str| IndexExpr::Name(name.to_owned());
        names.into_iter().map(name).collect()
    }

    /// Adds a step over these terms and returns its result. The last step has the scalars, the mode and the epilogue of
    /// the expression.
    fn add(
        &self,
        terms: &[&Term],
        out: Access,
        ([flops, bytes], elements): ([f64; 2], f64),
        last: bool,
        steps: &mut Vec<Step>,
    ) -> Term {
        let whole = last.then_some(self.asked.einsum);
        let mut einsum = Einsum {
            out: out.clone(),
            mode: whole.map_or(Mode::Assign, |e| e.mode),
            scalars: whole.map_or(Vec::new(), |e| e.scalars.clone()),
            factors: terms.iter().map(|term| term.access.clone()).collect(),
            epilogue: whole.map_or(Epilogue::default(), |e| e.epilogue.clone()),
            text: String::new(),
        };
        einsum.text = einsum.to_string();
        let temporary = |term: &&Term| Some((term.access.tensor.clone(), term.temporary?));
        let partial = terms.iter().any(|term| term.partial);
        let sparse = terms.iter().any(|term| term.size.entries.is_some());
        let number = steps.len();
        steps.push(Step {
            einsum,
            flops,
            bytes,
            us: self.us(flops, bytes, sparse),
            elements,
            partial,
            temporaries: terms.iter().filter_map(temporary).collect(),
        });
        Term { temporary: Some(number), partial, ..self.term(out, None) }
    }

    /// Returns a name that no operand has.
    fn fresh(&self, number: usize) -> String {
        let mut used: Vec<&str> = Vec::new();
        let einsum = self.asked.einsum;
        for access in einsum.right().chain([&einsum.out]) {
            access.for_each_access(&mut |a| used.push(&a.tensor));
        }
        for scalar in &einsum.scalars {
            if let Scalar::Name(name) = scalar {
                used.push(name);
            }
        }
        let mut name = format!("P{number}");
        while used.contains(&name.as_str()) {
            name.push('t');
        }
        name
    }
}
