//! Index expressions whose names are resolved to numbers; the loops evaluate them.

use einsparse_formats::PAD;

/// Value of an index as a function of the loop variables; `None` if the term is dropped.
#[derive(Clone, Debug)]
pub(super) enum Expr<'a> {
    Var(usize),
    /// One-dimensional index array, indexed by a loop variable: the common case of `Load`.
    Slot {
        array: &'a [u32],
        var: usize,
    },
    Load {
        array: &'a [u32],
        args: Vec<(Expr<'a>, usize)>,
    },
    Split {
        outer: Box<Expr<'a>>,
        inner: usize,
        block: usize,
        bound: usize,
    },
    /// `Split` whose position in the block is also loaded from an index array.
    Position {
        outer: Box<Expr<'a>>,
        inner: Box<Expr<'a>>,
        block: usize,
        bound: usize,
    },
}

impl Expr<'_> {
    #[inline]
    pub fn eval(&self, vars: &[usize]) -> Option<usize> {
        match self {
            Expr::Var(v) => Some(vars[*v]),
            Expr::Slot { array, var } => unpad(array[vars[*var]]),
            Expr::Load { array, args } => {
                let mut at = 0;
                for (arg, stride) in args {
                    at += arg.eval(vars)? * stride;
                }
                unpad(array[at])
            }
            Expr::Split { outer, inner, block, bound } => {
                let at = outer.eval(vars)? * block + vars[*inner];
                (at < *bound).then_some(at)
            }
            Expr::Position { outer, inner, block, bound } => {
                let at = outer.eval(vars)? * block + inner.eval(vars)?;
                (at < *bound).then_some(at)
            }
        }
    }

    pub fn for_each_var(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Expr::Var(v) => visit(*v),
            Expr::Slot { var, .. } => visit(*var),
            Expr::Load { args, .. } => args.iter().for_each(|(arg, _)| arg.for_each_var(visit)),
            Expr::Split { outer, inner, .. } => {
                outer.for_each_var(visit);
                visit(*inner);
            }
            Expr::Position { outer, inner, .. } => {
                outer.for_each_var(visit);
                inner.for_each_var(visit);
            }
        }
    }

    pub fn vars(&self) -> Vec<usize> {
        let mut vars = Vec::new();
        self.for_each_var(&mut |v| vars.push(v));
        vars
    }

    pub fn gathers(&self) -> bool {
        match self {
            Expr::Var(_) => false,
            Expr::Slot { .. } | Expr::Load { .. } | Expr::Position { .. } => true,
            Expr::Split { outer, .. } => outer.gathers(),
        }
    }
}

#[inline]
fn unpad(slot: u32) -> Option<usize> {
    (slot != PAD).then_some(slot as usize)
}
