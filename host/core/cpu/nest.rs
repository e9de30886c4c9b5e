//! General loop nest over a bound indirect Einsum.
//!
//! A unit of work is one output index of the scatter, one value of the plain output loops, and one tile of the
//! innermost loop. It sums all its terms in a tile of accumulators and stores the tile once.

use std::borrow::Cow;
use std::ops::Range;

use einsparse_formats::Accumulator;

use super::bind::Bound;
use super::cascade::{self, Tile};
use super::expr::Expr;
use super::inner::{self, Run};
use super::levels::{Inner, Level, choose_inner, is_var, levels};
use super::operands::volume;
use super::order::{Order, order, scattered, set_vars};
use crate::error::Result;
use crate::parallel;

/// Elements of the innermost loop per unit, so that the tile stays in the L1 cache.
const TILE: usize = 2048;
/// A unit with more than 1 / `SHARE` of the total work is split into parts.
const SHARE: u64 = 64;
/// Minimum number of terms of a part.
const PART: u64 = 1 << 15;
/// Approximate number of work items for the thread pool.
const ITEMS: usize = 512;

pub(super) struct Nest<'b, 'a, A: Accumulator> {
    bound: &'b Bound<'a>,
    /// Values of each factor.
    values: &'b [Cow<'a, [A]>],
    order: Order,
    /// Plain output loops outside the scatter.
    outer: Vec<usize>,
    /// Reductions within the scatter's terms.
    reductions: Vec<usize>,
    inner: Option<Inner>,
    /// Level 0: the outer loops are set. Level 1: the term is set. Then one level per reduction.
    levels: Vec<Level<'b, 'a>>,
    /// Factors that the innermost loop moves along, with their strides. `fixed`: the other factors.
    moving: Vec<(usize, usize)>,
    fixed: Vec<usize>,
}

/// Stores sums. The arguments are the output index of the first sum, the step between output indices, and the sums.
type Store<'s, A> = &'s (dyn Fn(usize, usize, &[A]) + Sync);

/// Loop variables and offsets of one thread.
struct State<A> {
    vars: Vec<usize>,
    /// Offset of each factor at each level.
    at: Vec<usize>,
    tile: Tile<A>,
    /// Whether the tile has received a term.
    reached: bool,
}

impl<'b, 'a, A: Accumulator> Nest<'b, 'a, A> {
    pub fn new(bound: &'b Bound<'a>, values: &'b [Cow<'a, [A]>]) -> Result<Self> {
        let mut walked = scattered(bound);
        let inner = choose_inner(bound, &walked);
        let is_inner = |v: usize| inner.as_ref().is_some_and(|i| i.var == v);
        let out_vars: Vec<usize> = bound.out.iter().flat_map(|a| a.expr.vars()).collect();
        let free = |v: &usize| !walked.contains(v) && !is_inner(*v);
        let (outer, mut reductions): (Vec<usize>, Vec<usize>) =
            (0..bound.extents.len()).filter(free).partition(|v| out_vars.contains(v));
        if walked.is_empty() && !reductions.is_empty() {
            walked.push(reductions.remove(0));
        }
        let mut level_of = vec![0; bound.extents.len()];
        walked.iter().for_each(|&v| level_of[v] = 1);
        reductions.iter().enumerate().for_each(|(i, &v)| level_of[v] = 2 + i);
        let levels = levels(bound, &level_of, 2 + reductions.len(), &is_inner);
        let stride = |f: usize| -> usize {
            let along = bound.factors[f].iter().filter(|a| is_var(&a.expr, &is_inner));
            along.map(|a| a.stride).sum()
        };
        let reads = |f: &usize| bound.factors[*f].iter().any(|a| is_var(&a.expr, &is_inner));
        let (moving, fixed): (Vec<usize>, Vec<usize>) =
            (0..bound.factors.len()).partition(|f| reads(f));
        let moving = moving.into_iter().map(|f| (f, stride(f))).collect();
        let order = order(bound, walked)?;
        Ok(Nest { bound, values, order, outer, reductions, inner, levels, moving, fixed })
    }

    fn inner_extent(&self) -> usize {
        self.inner.as_ref().map_or(1, |i| self.bound.extents[i.var])
    }

    /// Runs the nest. `store(element, step, sums)` is called once for each output element that has a term, and for no
    /// other element.
    pub fn run(&self, store: Store<'_, A>) {
        let extents = &self.bound.extents;
        // Return early: if one extent is 0, the other extents may have any size.
        if extents.contains(&0) {
            return;
        }
        let outer = volume(self.outer.iter().map(|&v| extents[v]));
        let length = self.inner_extent();
        let tiles = match &self.inner {
            Some(Inner { out: Some(_), .. }) => length.div_ceil(TILE),
            _ => 1,
        };
        let units = outer * tiles;
        if units == 0 || self.order.runs() == 0 {
            return;
        }
        let rest = volume(self.reductions.iter().map(|&v| extents[v]));
        let per_term = (rest as u64).saturating_mul(length.min(TILE) as u64).max(1);
        let terms = u64::from(self.order.starts[self.order.runs()]);
        let total = terms.saturating_mul(per_term).saturating_mul(units as u64);
        let limit = (total / SHARE).max(PART);
        let groups = self.groups();
        let cuts = ITEMS.div_ceil(groups.len()).min(units);
        parallel::each(groups.len() * cuts, &|item| {
            let (group, cut) = (item / cuts, item % cuts);
            let mut state = self.state();
            for run in groups[group].clone() {
                for unit in units * cut / cuts..units * (cut + 1) / cuts {
                    self.unit(&mut state, run, unit / tiles, unit % tiles, per_term, limit, store);
                }
            }
        });
    }

    /// Groups runs into about equal numbers of terms.
    fn groups(&self) -> Vec<Range<usize>> {
        let starts = &self.order.starts;
        let runs = self.order.runs();
        let target = (starts[runs] as usize).div_ceil(ITEMS).max(1);
        let mut groups = Vec::new();
        let mut first = 0;
        for run in 0..runs {
            if (starts[run + 1] - starts[first]) as usize >= target || run + 1 == runs {
                groups.push(first..run + 1);
                first = run + 1;
            }
        }
        groups
    }

    fn state(&self) -> State<A> {
        State {
            vars: vec![0; self.bound.extents.len()],
            at: vec![0; self.levels.len() * self.bound.factors.len()],
            tile: Tile::default(),
            reached: false,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one unit is named by three numbers")]
    fn unit(
        &self,
        state: &mut State<A>,
        run: usize,
        outer: usize,
        tile: usize,
        per_term: u64,
        limit: u64,
        store: Store<'_, A>,
    ) {
        let terms = self.order.starts[run] as usize..self.order.starts[run + 1] as usize;
        set_vars(&self.outer, &self.bound.extents, outer, &mut state.vars);
        set_vars(
            &self.order.vars,
            &self.bound.extents,
            self.order.term(terms.start),
            &mut state.vars,
        );
        let length = self.inner_extent();
        let summed = !matches!(&self.inner, Some(Inner { out: Some(_), .. }));
        let along = if summed { 0..length } else { tile * TILE..length.min((tile + 1) * TILE) };
        let Some(place) = self.out_place(&state.vars, &along) else {
            return;
        };
        let width = if summed { 1 } else { along.len() };
        let work = (terms.len() as u64).saturating_mul(per_term);
        let parts = work.div_ceil(limit).max(1) as usize;
        state.tile.start(width, self.additions(terms.len()));
        state.reached = false;
        if parts == 1 {
            self.sum(state, terms, along);
        } else {
            self.sum_parts(state, terms, along, summed, parts);
        }
        let step = self.inner.as_ref().and_then(|i| i.out).unwrap_or(0);
        if state.reached {
            store(place, step, &state.tile.sums);
        }
    }

    /// Sums one long unit in parts. The parts depend only on the size of the unit and are added in their order.
    fn sum_parts(
        &self,
        state: &mut State<A>,
        terms: Range<usize>,
        along: Range<usize>,
        summed: bool,
        parts: usize,
    ) {
        // Without an innermost loop, only the terms can be split.
        let by_terms = terms.len() >= parts || !summed || self.inner.is_none();
        let cut = |r: &Range<usize>, i: usize| {
            r.start + r.len() * i / parts..r.start + r.len() * (i + 1) / parts
        };
        let (vars, width) = (&state.vars, state.tile.sums.len());
        let tiles = parallel::collect(parts, 1, &|i| {
            let mut part = State { vars: vars.clone(), ..self.state() };
            part.tile.start(width, self.additions(terms.len()));
            match by_terms {
                true => self.sum(&mut part, cut(&terms, i), along.clone()),
                false => self.sum(&mut part, terms.clone(), cut(&along, i)),
            }
            (part.tile.sums, part.reached)
        });
        for (tile, reached) in tiles {
            state.reached |= reached;
            cascade::add(&mut state.tile.sums, &tile);
        }
    }

    /// Number of terms of each sum of a tile, including all values of the reductions.
    fn additions(&self, terms: usize) -> u64 {
        let rest = volume(self.reductions.iter().map(|&v| self.bound.extents[v]));
        (terms as u64).saturating_mul(rest as u64)
    }

    /// Offset of the tile in the output; `None` past the edge of a partial block.
    fn out_place(&self, vars: &[usize], along: &Range<usize>) -> Option<usize> {
        let mut place = 0;
        for axis in &self.bound.out {
            let at = match (&axis.expr, &self.inner) {
                (Expr::Var(v), Some(inner)) if *v == inner.var => along.start,
                (expr, _) => expr.eval(vars)?,
            };
            place += at * axis.stride;
        }
        Some(place)
    }

    /// Adds all terms of a unit to its tile.
    fn sum(&self, state: &mut State<A>, terms: Range<usize>, along: Range<usize>) {
        if !self.enter(state, 0) {
            return;
        }
        for term in terms {
            set_vars(&self.order.vars, &self.bound.extents, self.order.term(term), &mut state.vars);
            if self.enter(state, 1) {
                self.reduce(state, 2, &along);
            }
        }
        state.tile.finish();
    }

    fn reduce(&self, state: &mut State<A>, level: usize, along: &Range<usize>) {
        let Some(&var) = self.reductions.get(level - 2) else {
            self.innermost(state, along);
            return state.tile.count();
        };
        for value in 0..self.bound.extents[var] {
            state.vars[var] = value;
            if self.enter(state, level) {
                self.reduce(state, level + 1, along);
            }
        }
    }

    /// Computes the offsets at `level` from those at the previous level. Returns false if the term is dropped.
    fn enter(&self, state: &mut State<A>, level: usize) -> bool {
        let n = self.bound.factors.len();
        let State { vars, at, .. } = state;
        match level {
            0 => at[..n].fill(0),
            _ => at.copy_within((level - 1) * n..level * n, level * n),
        }
        let Level { steps, guards, equalities } = &self.levels[level];
        for step in steps {
            let Some(value) = step.expr.eval(vars) else {
                return false;
            };
            at[level * n + step.factor] += value * step.stride;
        }
        guards.iter().all(|g| g.eval(vars).is_some())
            && equalities.iter().all(|(l, r)| {
                let left = l.eval(vars);
                left.is_some() && left == r.eval(vars)
            })
    }

    fn innermost(&self, state: &mut State<A>, along: &Range<usize>) {
        let n = self.bound.factors.len();
        let at = &state.at[(self.levels.len() - 1) * n..];
        let values = self.values;
        let mut partial = self.bound.partial.iter();
        if partial.any(|&(f, absent)| absent.is(values[f][at[f]])) {
            return;
        }
        let scalar = A::from_f64(self.bound.scalar);
        let s = self.fixed.iter().fold(scalar, |s, &f| s * values[f][at[f]]);
        let Some(inner) = &self.inner else {
            state.reached = true;
            state.tile.sums[0] += s;
            return;
        };
        if along.is_empty() {
            return;
        }
        state.reached = true;
        let run = |&(f, stride): &(usize, usize)| Run {
            values: &values[f][at[f] + along.start * stride..],
            stride,
        };
        let mut few = [Run { values: &[], stride: 1 }; 4];
        let many: Vec<Run<'_, A>>;
        let runs = if self.moving.len() <= few.len() {
            self.moving.iter().zip(&mut few).for_each(|(m, slot)| *slot = run(m));
            &few[..self.moving.len()]
        } else {
            many = self.moving.iter().map(run).collect();
            &many
        };
        match inner.out {
            Some(_) => inner::add_products(&mut state.tile.sums, s, runs),
            None => state.tile.sums[0] += inner::dot(along.len(), s, runs),
        }
    }
}
