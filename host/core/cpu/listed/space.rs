//! Selection of the loops that must be listed: loops that a gather, a block with a partial edge or a diagonal ties
//! together. The other loops are strides.

use super::super::bind::Bound;
use super::super::expr::Expr;

/// Part of an index along one axis.
#[derive(Clone, Copy)]
pub(super) enum Place<'b, 'a> {
    Var(usize),
    Expr(&'b Expr<'a>),
}

impl Place<'_, '_> {
    pub(super) fn vars(&self) -> Vec<usize> {
        match self {
            Place::Var(v) => vec![*v],
            Place::Expr(e) => e.vars(),
        }
    }

    #[inline]
    pub(super) fn eval(&self, vars: &[usize]) -> Option<usize> {
        match self {
            Place::Var(v) => Some(vars[*v]),
            Place::Expr(e) => e.eval(vars),
        }
    }
}

/// Part of an index with its axis and its extent. One step is `times` elements along `axis`.
pub(super) struct Atom<'b, 'a> {
    pub(super) place: Place<'b, 'a>,
    pub(super) axis: usize,
    pub(super) times: usize,
    pub(super) extent: usize,
}

impl Atom<'_, '_> {
    pub(super) fn var(&self) -> Option<usize> {
        match self.place {
            Place::Var(v) => Some(v),
            Place::Expr(_) => None,
        }
    }
}

/// Splits an index into parts. A block whose extent divides that of its axis gives two independent parts.
fn split<'b, 'a>(expr: &'b Expr<'a>, own: (usize, usize, usize), atoms: &mut Vec<Atom<'b, 'a>>) {
    let (axis, times, extent) = own;
    let mut push = |place| {
        atoms.push(Atom { place, axis, times, extent });
    };
    match expr {
        Expr::Var(v) => push(Place::Var(*v)),
        Expr::Split { outer, inner, block, bound } if bound.is_multiple_of(*block) => {
            atoms.push(Atom { place: Place::Var(*inner), axis, times, extent: *block });
            split(outer, (axis, times * block, bound / block), atoms);
        }
        Expr::Position { outer, inner, block, bound } if bound.is_multiple_of(*block) => {
            split(inner, (axis, times, *block), atoms);
            split(outer, (axis, times * block, bound / block), atoms);
        }
        _ => push(Place::Expr(expr)),
    }
}

/// Loops of an indirect Einsum, classified by how they are iterated.
pub(super) struct Space<'b, 'a> {
    pub(super) out: Vec<Atom<'b, 'a>>,
    pub(super) factors: Vec<Vec<Atom<'b, 'a>>>,
    /// Index expressions that must be valid.
    pub(super) guards: Vec<&'b Expr<'a>>,
    pub(super) equalities: &'b [(Expr<'a>, Expr<'a>)],
    /// Loops that are iterated together as a list.
    pub(super) list: Vec<usize>,
    /// Independent loops with gathers: they use a table instead of a stride.
    pub(super) tabled: Vec<usize>,
    /// Whether each loop is a loop of the output.
    pub(super) of_out: Vec<bool>,
}

/// Disjoint sets of loops.
struct Sets(Vec<usize>);

impl Sets {
    fn of(&self, mut v: usize) -> usize {
        while self.0[v] != v {
            v = self.0[v];
        }
        v
    }

    fn join(&mut self, vars: &[usize]) {
        for pair in vars.windows(2) {
            let (a, b) = (self.of(pair[0]), self.of(pair[1]));
            self.0[a.max(b)] = a.min(b);
        }
    }
}

impl<'b, 'a> Space<'b, 'a> {
    pub(super) fn new(bound: &'b Bound<'a>) -> Self {
        let loops = bound.extents.len();
        let parts = |axes: &'b [super::super::bind::Axis<'a>]| {
            let mut atoms = Vec::new();
            for (number, axis) in axes.iter().enumerate() {
                split(&axis.expr, (number, 1, axis.extent), &mut atoms);
            }
            atoms
        };
        let out = parts(&bound.out);
        let factors: Vec<Vec<Atom<'b, 'a>>> =
            bound.factors.iter().map(|axes| parts(axes)).collect();
        let mut guards = Vec::new();
        for guard in &bound.guards {
            let mut atoms = Vec::new();
            split(guard, (0, 1, 0), &mut atoms);
            guards.extend(atoms.iter().filter_map(|a| match a.place {
                Place::Expr(e) => Some(e),
                Place::Var(_) => None,
            }));
        }
        let mut of_out = vec![false; loops];
        for v in out.iter().flat_map(|a| a.place.vars()) {
            of_out[v] = true;
        }
        let mut space = Space {
            out,
            factors,
            guards,
            equalities: &bound.equalities,
            list: Vec::new(),
            tabled: Vec::new(),
            of_out,
        };
        space.sort(&bound.extents);
        space
    }

    /// Loops of every expression that ties loops together, and whether the expression is part of the output.
    fn ties(&self) -> Vec<(Vec<usize>, bool)> {
        let gathers = |atoms: &[Atom<'_, '_>], out: bool| -> Vec<(Vec<usize>, bool)> {
            let tied = atoms.iter().filter(|a| a.var().is_none());
            tied.map(|a| (a.place.vars(), out)).collect()
        };
        let mut ties = gathers(&self.out, true);
        for atoms in &self.factors {
            ties.extend(gathers(atoms, false));
        }
        ties.extend(self.guards.iter().map(|g| (g.vars(), false)));
        for (left, right) in self.equalities {
            ties.push(([left.vars(), right.vars()].concat(), false));
        }
        // A loop along two axes of the output leaves output elements that no term reaches.
        for (i, atom) in self.out.iter().enumerate() {
            let twice = |other: &Atom<'_, '_>| atom.var().is_some() && other.var() == atom.var();
            if self.out[..i].iter().any(twice) {
                ties.push((atom.place.vars(), true));
            }
        }
        ties
    }

    /// Sets `list` and `tabled`.
    fn sort(&mut self, extents: &[usize]) {
        let loops = extents.len();
        let ties = self.ties();
        let mut sets = Sets((0..loops).collect());
        let (mut tied, mut scattered) = (vec![false; loops], vec![false; loops]);
        for (vars, out) in &ties {
            sets.join(vars);
            for &v in vars {
                tied[v] = true;
                scattered[v] |= out;
            }
        }
        let mut later = Vec::new();
        for root in (0..loops).filter(|&v| sets.of(v) == v && tied[v]) {
            let own: Vec<usize> = (0..loops).filter(|&v| sets.of(v) == root).collect();
            let out = own.iter().filter(|v| self.of_out[**v]).count();
            let alone = own.len() == 1 && self.can_be_tabled(root, extents);
            if own.iter().any(|&v| scattered[v]) || (out > 0 && !alone) {
                self.list.extend(own);
            } else if out > 0 {
                self.tabled.push(root);
            } else {
                later.push((own, alone));
            }
        }
        for (own, alone) in later {
            if alone && !self.list.is_empty() {
                self.tabled.extend(own);
            } else {
                self.list.extend(own);
            }
        }
        self.list.sort_unstable();
        // Loops that determine the output index of a term, or whether the term exists, are first.
        let mut list = std::mem::take(&mut self.list);
        list.sort_by_key(|v| !self.decides(*v));
        self.list = list;
    }

    /// Whether a loop affects the output index of a term, or affects by guards or equalities whether the term exists.
    fn decides(&self, var: usize) -> bool {
        self.out.iter().any(|a| a.place.vars().contains(&var)) || self.is_conditional(var)
    }

    fn is_conditional(&self, var: usize) -> bool {
        let guarded = self.guards.iter().any(|g| g.vars().contains(&var));
        let equal =
            |(l, r): &(Expr<'_>, Expr<'_>)| l.vars().contains(&var) || r.vars().contains(&var);
        guarded || self.equalities.iter().any(equal)
    }

    /// Whether every gather that depends on this loop alone is valid.
    fn can_be_tabled(&self, var: usize, extents: &[usize]) -> bool {
        if self.is_conditional(var) {
            return false;
        }
        let mut at = vec![0; extents.len()];
        let mut reads = self.factors.iter().flatten().filter(|a| a.var().is_none());
        reads.all(|atom| {
            !atom.place.vars().contains(&var)
                || (0..extents[var]).all(|step| {
                    at[var] = step;
                    atom.place.eval(&at).is_some()
                })
        })
    }

    /// Number of the listed loops, counted from the first, that determine the output index and existence of terms.
    pub(super) fn deciding(&self) -> usize {
        self.list.iter().filter(|v| self.decides(**v)).count()
    }
}
