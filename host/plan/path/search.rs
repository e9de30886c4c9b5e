//! Pairwise contractions: what each costs by flops and bytes, in which order they come, and the expression of each.

use einsparse_kernels::abi::{Dtype, Zeros};

use super::order::{Costs, Size, order};
use super::step::{LAUNCH_US, Path, Step};
use crate::einsum::{Access, Einsum, Epilogue, Extents, IndexExpr, Mode};
use crate::machine::Machine;

/// A factor, or the result of a step.
#[derive(Clone, Debug)]
struct Term {
    access: Access,
    size: Size,
    /// Number of the temporary that it is.
    temporary: Option<usize>,
    /// Whether it has elements without a term.
    partial: bool,
}

/// Factors and indices at the most: indices are numbered bit by bit.
const MOST_FACTORS: usize = 60;
const MOST_NAMES: usize = 128;

/// Where steps run.
#[derive(Clone, Copy)]
pub(super) enum Place<'m> {
    Gpu(&'m Machine),
    /// On the executor of the CPU, which multiplies a sparse factor with dense ones alone: of two, one is written out.
    Cpu,
}

/// Shares of the rates that kernels reach: multiplications of entries and of dense matrices on CUDA cores, and bytes.
const ENTRY_SHARE: f64 = 0.15;
const DENSE_SHARE: f64 = 0.5;
const BYTE_SHARE: f64 = 0.8;
/// Operations of the executor in a microsecond.
const CPU_RATE: f64 = 4e3;
/// Operations for each row of a list of positions, which is sorted.
const ROW: f64 = 50.0;
/// Elements that every intermediate result may have, whatever the sizes of operands and output.
const FREE: f64 = 4_194_304.0;

struct Search<'a> {
    einsum: &'a Einsum,
    names: Vec<&'a str>,
    extents: Vec<f64>,
    /// Bytes of an element of a temporary.
    element: f64,
    place: Place<'a>,
    limit: f64,
}

/// What was found for an expression.
pub(super) struct Found {
    pub(super) path: Path,
    /// Predicted microseconds of all factors at once.
    pub(super) whole_us: f64,
}

/// The cheapest order of factors, of which sparse ones come with their number of entries; `None` where there is nothing
/// to choose: for two factors without an index of their own, for indices that are no names, for more factors or indices
/// than are numbered, and where intermediate results would have more than twice the elements of the largest tensor.
pub(super) fn best(
    einsum: &Einsum,
    entries: &[Option<usize>],
    extents: &Extents,
    dtype: Dtype,
    place: Place<'_>,
) -> Option<Found> {
    let accesses = || einsum.factors.iter().chain([&einsum.out]);
    let plain = |index: &IndexExpr| matches!(index, IndexExpr::Name(_));
    let names = einsum.index_names();
    let fits = (2..=MOST_FACTORS).contains(&einsum.factors.len()) && names.len() <= MOST_NAMES;
    if !fits || !accesses().all(|access| access.indices.iter().all(plain)) {
        return None;
    }
    let extents = names.iter().map(|name| extents.get(name).unwrap_or(1) as f64);
    let extents: Vec<f64> = extents.collect();
    // Without a term there is nothing to save, and a NaN in a product of other factors would get into the output.
    if extents.contains(&0.0) {
        return None;
    }
    let mut search = Search {
        einsum,
        names,
        extents,
        element: dtype.bytes() as f64,
        place,
        limit: FREE,
    };
    let terms = einsum.factors.iter().zip(entries);
    let terms: Vec<Term> = terms
        .map(|(access, entries)| search.term(access.clone(), entries.map(|n| n as f64)))
        .collect();
    let out = search.bits(&einsum.out);
    let held = terms.iter().map(|term| search.held(&term.size));
    let largest = held.fold(search.volume(out), f64::max);
    search.limit = search.limit.max(2.0 * largest);
    let whole_us = search.whole_us(&terms, out);
    let path = search.path(terms, out)?;
    Some(Found { path, whole_us })
}

impl Costs for Search<'_> {
    fn volume(&self, names: u128) -> f64 {
        let own = self.extents.iter().enumerate();
        let own = own.filter(|(name, _)| names >> name & 1 == 1);
        own.map(|(_, extent)| extent).product()
    }

    fn pair(&self, a: &Size, b: &Size, kept: u128) -> f64 {
        let (written, [a, b]) = self.written_out(*a, *b);
        let before = match written {
            None => 0.0,
            Some(sparse) if self.volume(sparse.names) > self.limit => f64::INFINITY,
            Some(sparse) => {
                let [flops, bytes] = self.work(&[sparse], sparse.names);
                self.us(flops, bytes, true)
            }
        };
        let [flops, bytes] = self.work(&[a, b], kept);
        before + self.us(flops, bytes, a.entries.is_some())
    }

    fn limit(&self) -> f64 {
        self.limit
    }
}

impl Search<'_> {
    fn term(&self, access: Access, entries: Option<f64>) -> Term {
        let names = self.bits(&access);
        Term {
            access,
            size: Size { names, entries },
            temporary: None,
            partial: entries.is_some(),
        }
    }

    fn bits(&self, access: &Access) -> u128 {
        let mut bits = 0;
        access.for_each_name(&mut |name| {
            let number = self.names.iter().position(|own| *own == name);
            bits |= number.map_or(0, |number| 1 << number);
        });
        bits
    }

    /// Elements or entries.
    fn held(&self, size: &Size) -> f64 {
        size.entries.unwrap_or_else(|| self.volume(size.names))
    }

    /// Two terms, a sparse one in front: its rows are the result's. Of two sparse ones on the CPU, the one of fewer
    /// elements as a dense tensor, and itself.
    fn written_out(&self, a: Size, b: Size) -> (Option<Size>, [Size; 2]) {
        let dense = |size: Size| Size {
            entries: None,
            ..size
        };
        match (a.entries, b.entries, self.place) {
            (Some(_), Some(_), Place::Cpu) if self.volume(a.names) < self.volume(b.names) => {
                (Some(a), [b, dense(a)])
            }
            (Some(_), Some(_), Place::Cpu) => (Some(b), [a, dense(b)]),
            (None, Some(_), _) => (None, [b, a]),
            _ => (None, [a, b]),
        }
    }

    /// Time of a step.
    fn us(&self, flops: f64, bytes: f64, sparse: bool) -> f64 {
        let Place::Gpu(machine) = self.place else {
            return (flops + bytes / self.element) / CPU_RATE;
        };
        let share = if sparse { ENTRY_SHARE } else { DENSE_SHARE };
        let width = if self.element > 4.0 { 0.5 } else { 1.0 };
        let rate = machine.issue * 64.0 * width * share;
        LAUNCH_US + (flops / rate).max(bytes / (machine.hbm * BYTE_SHARE)) * 1e6
    }

    /// Flops of a product that keeps these indices, and bytes read and written.
    fn work(&self, terms: &[Size], kept: u128) -> [f64; 2] {
        let places = self.places(terms);
        let bytes = |size: &Size| match size.entries {
            Some(entries) => entries * (self.element + 4.0),
            None => self.volume(size.names) * self.element,
        };
        let read: f64 = terms.iter().map(bytes).sum();
        let written = self.volume(kept) * self.element;
        [terms.len() as f64 * places, read + written]
    }

    /// Terms of a sum over factors: of sparse ones that share an index about as many as if entries were spread evenly.
    fn places(&self, terms: &[Size]) -> f64 {
        let (mut places, mut seen) = (1.0, 0);
        for size in terms.iter().filter(|size| size.entries.is_some()) {
            places *= size.entries.unwrap_or(1.0) / self.volume(size.names & seen);
            seen |= size.names;
        }
        let all = terms.iter().fold(0, |all, size| all | size.names);
        places * self.volume(all & !seen)
    }

    /// Time of all factors at once.
    fn whole_us(&self, terms: &[Term], out: u128) -> f64 {
        let sizes: Vec<Size> = terms.iter().map(|term| term.size).collect();
        let sparse: Vec<Size> = sizes.iter().copied().filter(|s| s.entries.is_some()).collect();
        let rows = match sparse.len() {
            0 | 1 => 0.0,
            _ => ROW * self.places(&sparse),
        };
        let [flops, bytes] = self.work(&sizes, out);
        self.us(flops + rows, bytes, !sparse.is_empty())
    }

    fn path(&self, mut terms: Vec<Term>, out: u128) -> Option<Path> {
        let mut steps = Vec::new();
        for at in 0..terms.len() {
            let others = terms.iter().enumerate().filter(|(other, _)| *other != at);
            let others = others.fold(out, |all, (_, term)| all | term.size.names);
            let kept = terms[at].size.names & others;
            let fewer = self.volume(kept) <= self.held(&terms[at].size);
            if kept != terms[at].size.names && fewer {
                terms[at] = self.reduced(&terms[at], kept, &mut steps);
            }
        }
        if terms.len() < 3 && steps.is_empty() {
            return None;
        }
        let sizes: Vec<Size> = terms.iter().map(|term| term.size).collect();
        let pairs = order(&sizes, out, self)?;
        let mut left: Vec<Option<Term>> = terms.into_iter().map(Some).collect();
        for (at, &(a, b)) in pairs.iter().enumerate() {
            let (a, b) = (left[a].take()?, left[b].take()?);
            let others = left.iter().flatten().fold(out, |all, term| all | term.size.names);
            let last = at + 1 == pairs.len();
            let result = self.product([a, b], others, last, &mut steps);
            left.push(Some(result));
        }
        let filled = steps.last().is_some_and(|step| step.partial);
        // The executor leaves elements without a term out.
        let zeros = match self.place {
            Place::Gpu(_) if filled => Zeros::Dense,
            _ => Zeros::Strict,
        };
        Some(Path { steps, zeros })
    }

    /// A term with its own indices summed, or a sparse one as a dense tensor.
    fn reduced(&self, term: &Term, kept: u128, steps: &mut Vec<Step>) -> Term {
        let own = Access {
            tensor: self.fresh(steps.len()),
            indices: self.indices(&[term], kept),
        };
        let work = self.work(&[term.size], kept);
        self.add([term].into_iter(), own, work, false, steps)
    }

    fn product(
        &self,
        [a, b]: [Term; 2],
        others: u128,
        last: bool,
        steps: &mut Vec<Step>,
    ) -> Term {
        let (written, [first, _]) = self.written_out(a.size, b.size);
        let (a, mut b) = if first == a.size { (a, b) } else { (b, a) };
        if written.is_some() {
            b = self.reduced(&b, b.size.names, steps);
        }
        let kept = (a.size.names | b.size.names) & others;
        let out = match last {
            true => self.einsum.out.clone(),
            false => Access {
                tensor: self.fresh(steps.len()),
                indices: self.indices(&[&a, &b], kept),
            },
        };
        let work = self.work(&[a.size, b.size], kept);
        self.add([&a, &b].into_iter(), out, work, last, steps)
    }

    /// The kept indices, in the order in which the terms have them.
    fn indices(&self, terms: &[&Term], kept: u128) -> Vec<IndexExpr> {
        let mut names: Vec<&str> = Vec::new();
        for term in terms {
            term.access.for_each_name(&mut |name| {
                let number = self.names.iter().position(|own| *own == name);
                let kept = number.is_some_and(|number| kept >> number & 1 == 1);
                if kept && !names.contains(&name) {
                    names.push(name);
                }
            });
        }
        let name = |name: &str| IndexExpr::Name(name.to_owned());
        names.into_iter().map(name).collect()
    }

    /// A step over these terms; returns its result. The last one does what the whole expression asks for beside it.
    fn add<'t>(
        &self,
        terms: impl Iterator<Item = &'t Term> + Clone,
        out: Access,
        [flops, bytes]: [f64; 2],
        last: bool,
        steps: &mut Vec<Step>,
    ) -> Term {
        let whole = last.then_some(self.einsum);
        let mut einsum = Einsum {
            out: out.clone(),
            mode: whole.map_or(Mode::Assign, |e| e.mode),
            scalars: whole.map_or(Vec::new(), |e| e.scalars.clone()),
            factors: terms.clone().map(|term| term.access.clone()).collect(),
            epilogue: whole.map_or(Epilogue::default(), |e| e.epilogue.clone()),
            text: String::new(),
        };
        einsum.text = einsum.to_string();
        let temporary = |term: &Term| Some((term.access.tensor.clone(), term.temporary?));
        let partial = terms.clone().any(|term| term.partial);
        let sparse = terms.clone().any(|term| term.size.entries.is_some());
        // Of the last step alone whether temporaries have such elements: a sparse factor is met by its entries.
        let filled = terms.clone().any(|term| term.partial && term.temporary.is_some());
        let number = steps.len();
        steps.push(Step {
            einsum,
            flops,
            bytes,
            us: self.us(flops, bytes, sparse),
            partial: if last { filled } else { partial },
            temporaries: terms.filter_map(temporary).collect(),
        });
        Term {
            temporary: Some(number),
            partial,
            ..self.term(out, None)
        }
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
