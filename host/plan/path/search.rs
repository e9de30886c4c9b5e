//! Every order of pairwise contractions, by flops and bytes; expressions have few factors, so all of them are tried.

use std::fmt;

use einsparse_kernels::abi::{Dtype, Zeros};

use crate::cost::Cost;
use crate::einsum::{Access, Einsum, Epilogue, Extents, IndexExpr, Mode};
use crate::machine::Machine;

/// One pairwise contraction.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it computes, into a temporary or, last, into the output.
    pub einsum: Einsum,
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Predicted microseconds.
    pub us: f64,
    /// Temporaries among its factors, by name, and their numbers.
    temporaries: Vec<(String, usize)>,
}

impl Step {
    /// Number of the temporary of this name.
    pub(super) fn temporary(&self, name: &str) -> Option<usize> {
        let mut all = self.temporaries.iter();
        all.find(|(own, _)| own == name).map(|(_, number)| *number)
    }

    /// Every operand that it reads.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for access in self.einsum.right() {
            if !names.contains(&access.tensor.as_str()) {
                names.push(&access.tensor);
            }
        }
        for scalar in &self.einsum.scalars {
            if let crate::einsum::Scalar::Name(name) = scalar
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }
}

/// The steps of a contraction, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The last one writes the output.
    pub steps: Vec<Step>,
    /// `Dense` where a sparse factor is multiplied before the last step: rows of its result that own no entry are
    /// zeros, which a NaN or Inf of a later factor then meets.
    pub zeros: Zeros,
}

impl Path {
    /// Predicted microseconds of all steps.
    pub fn us(&self) -> f64 {
        self.steps.iter().map(|step| step.us).sum()
    }

    pub(super) fn cost(&self) -> Cost {
        let bytes: f64 = self.steps.iter().map(|step| step.bytes).sum();
        Cost {
            us: self.us(),
            hbm_us: bytes / Machine::H200.hbm * 1e6,
            gather_us: 0.0,
            compute_us: self.us() - LAUNCH_US * self.steps.len() as f64,
            latency_us: LAUNCH_US * self.steps.len() as f64,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            let between = if at == 0 { "" } else { "; " };
            write!(f, "{between}{}", step.einsum)?;
        }
        write!(f, " ({:.1} us, zeros = {:?})", self.us(), self.zeros)
    }
}

/// A factor that is left.
#[derive(Clone, Debug)]
pub(super) struct Term {
    access: Access,
    /// Entries where it is sparse.
    entries: Option<usize>,
    /// Number of the temporary that it is.
    temporary: Option<usize>,
    /// Whether it comes of the sparse factor and was multiplied.
    filled: bool,
}

impl Term {
    /// A factor with plain indices; `None` for others.
    pub(super) fn of(access: &Access, entries: Option<usize>) -> Option<Term> {
        let plain = |index: &IndexExpr| matches!(index, IndexExpr::Name(_));
        access.indices.iter().all(plain).then(|| Term {
            access: access.clone(),
            entries,
            temporary: None,
            filled: false,
        })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.access.indices.iter().filter_map(|index| match index {
            IndexExpr::Name(name) => Some(name.as_str()),
            IndexExpr::Access(_) | IndexExpr::Sum(_) => None,
        })
    }

    fn has(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }
}

/// One launch and what it waits for.
const LAUNCH_US: f64 = 3.0;
/// Shares of the rates that kernels reach: multiplications of entries and of dense matrices on CUDA cores, and bytes.
const ENTRY_SHARE: f64 = 0.15;
const DENSE_SHARE: f64 = 0.5;
const BYTE_SHARE: f64 = 0.8;

struct Search<'a> {
    einsum: &'a Einsum,
    extents: &'a Extents,
    dtype: Dtype,
    machine: &'a Machine,
}

/// The cheapest order; `None` for fewer than three factors, more than one of them sparse, or indices of the output that
/// are no names.
pub(super) fn best(
    einsum: &Einsum,
    terms: Vec<Term>,
    extents: &Extents,
    dtype: Dtype,
    machine: &Machine,
) -> Option<Path> {
    let plain = |index: &IndexExpr| matches!(index, IndexExpr::Name(_));
    let sparse = terms.iter().filter(|term| term.entries.is_some()).count();
    let fits = (3..=6).contains(&terms.len()) && sparse <= 1;
    if !fits || !einsum.out.indices.iter().all(plain) {
        return None;
    }
    let search = Search {
        einsum,
        extents,
        dtype,
        machine,
    };
    search.cheapest(terms, 0, f64::INFINITY)
}

impl Search<'_> {
    /// The cheapest way to contract `terms`, below `limit`; `number` temporaries are there.
    fn cheapest(&self, terms: Vec<Term>, number: usize, limit: f64) -> Option<Path> {
        let mut found: Option<Path> = None;
        let mut limit = limit;
        for first in 0..terms.len() {
            for second in first + 1..terms.len() {
                let (step, result) = self.pair(&terms, (first, second), number);
                if step.us >= limit {
                    continue;
                }
                if terms.len() == 2 {
                    let zeros = match terms.iter().any(|term| term.filled) {
                        true => Zeros::Dense,
                        false => Zeros::Strict,
                    };
                    limit = step.us;
                    found = Some(Path {
                        steps: vec![step],
                        zeros,
                    });
                    continue;
                }
                let mut rest = terms.clone();
                rest.remove(second);
                rest[first] = result;
                let Some(mut path) = self.cheapest(rest, number + 1, limit - step.us) else {
                    continue;
                };
                path.steps.insert(0, step);
                limit = path.us();
                found = Some(path);
            }
        }
        found
    }

    /// Two of the terms as a step, and what is left of them.
    fn pair(&self, terms: &[Term], (first, second): (usize, usize), number: usize) -> (Step, Term) {
        let (a, b) = (&terms[first], &terms[second]);
        // The sparse one in front: its rows are the result's.
        let (a, b) = if b.entries.is_some() { (b, a) } else { (a, b) };
        let last = terms.len() == 2;
        let others = || {
            terms
                .iter()
                .enumerate()
                .filter(|(t, _)| ![first, second].contains(t))
        };
        let wanted = |name: &str| {
            self.einsum
                .out
                .indices
                .contains(&IndexExpr::Name(name.to_owned()))
                || others().any(|(_, term)| term.has(name))
        };
        let mut names: Vec<&str> = Vec::new();
        for name in a.names().chain(b.names()) {
            if wanted(name) && !names.contains(&name) {
                names.push(name);
            }
        }
        let own = Access {
            tensor: self.fresh(number),
            indices: names
                .iter()
                .map(|name| IndexExpr::Name(name.to_string()))
                .collect(),
        };
        let out = if last { self.einsum.out.clone() } else { own };
        let [flops, bytes] = self.work(a, b, &out);
        let temporary = |term: &Term| Some((term.access.tensor.clone(), term.temporary?));
        let sparse = a.entries.is_some();
        let step = Step {
            einsum: self.of_pair([a, b], &out, last),
            flops,
            bytes,
            us: self.us(flops, bytes, sparse),
            temporaries: [a, b].into_iter().filter_map(temporary).collect(),
        };
        let result = Term {
            access: out,
            entries: None,
            temporary: Some(number),
            filled: sparse || a.filled || b.filled,
        };
        (step, result)
    }

    /// The product of two terms. The last one does what the whole expression asks for beside it.
    fn of_pair(&self, [a, b]: [&Term; 2], out: &Access, last: bool) -> Einsum {
        let mut einsum = Einsum {
            out: out.clone(),
            mode: if last { self.einsum.mode } else { Mode::Assign },
            scalars: if last {
                self.einsum.scalars.clone()
            } else {
                Vec::new()
            },
            factors: vec![a.access.clone(), b.access.clone()],
            epilogue: if last {
                self.einsum.epilogue.clone()
            } else {
                Epilogue::default()
            },
            text: String::new(),
        };
        einsum.text = einsum.to_string();
        einsum
    }

    /// Time of a step.
    fn us(&self, flops: f64, bytes: f64, sparse: bool) -> f64 {
        let share = if sparse { ENTRY_SHARE } else { DENSE_SHARE };
        let width = if self.dtype == Dtype::F64 { 0.5 } else { 1.0 };
        let rate = self.machine.issue * 64.0 * width * share;
        LAUNCH_US + (flops / rate).max(bytes / (self.machine.hbm * BYTE_SHARE)) * 1e6
    }

    /// Flops, and bytes read and written.
    fn work(&self, a: &Term, b: &Term, out: &Access) -> [f64; 2] {
        let extent = |name: &str| self.extents.get(name).unwrap_or(1) as f64;
        let element = self.dtype.bytes() as f64;
        let size = |term: &Term| match term.entries {
            Some(entries) => entries as f64 * (element + 4.0),
            None => term.names().map(extent).product::<f64>() * element,
        };
        let beside: f64 = b.names().filter(|name| !a.has(name)).map(extent).product();
        let places = match a.entries {
            Some(entries) => entries as f64,
            None => a.names().map(extent).product(),
        };
        let written = out.indices.iter().map(|index| match index {
            IndexExpr::Name(name) => extent(name),
            IndexExpr::Access(_) | IndexExpr::Sum(_) => 1.0,
        });
        let flops = 2.0 * places * beside;
        [
            flops,
            size(a) + size(b) + written.product::<f64>() * element,
        ]
    }

    /// A name that no operand has.
    fn fresh(&self, number: usize) -> String {
        let mut name = format!("P{number}");
        let mut taken = vec![self.einsum.out.tensor.clone()];
        self.einsum
            .right()
            .for_each(|access| taken.push(access.tensor.clone()));
        taken.extend(self.einsum.scalars.iter().map(ToString::to_string));
        while taken.contains(&name) {
            name.push('t');
        }
        name
    }
}
