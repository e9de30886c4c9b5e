//! Which loop is innermost, and at which depth each index expression is evaluated.

use super::bind::Bound;
use super::expr::Expr;

/// What becomes an address when its loops are set.
pub(super) struct Step<'b, 'a> {
    pub factor: usize,
    pub stride: usize,
    pub expr: &'b Expr<'a>,
}

/// What to evaluate at one depth of the loops.
#[derive(Default)]
pub(super) struct Level<'b, 'a> {
    pub steps: Vec<Step<'b, 'a>>,
    pub guards: Vec<&'b Expr<'a>>,
    pub equalities: Vec<&'b (Expr<'a>, Expr<'a>)>,
}

/// The innermost loop.
pub(super) struct Inner {
    pub var: usize,
    /// Stride in the output; `None` if it is summed.
    pub out: Option<usize>,
}

pub(super) fn is_var(expr: &Expr<'_>, is_inner: &impl Fn(usize) -> bool) -> bool {
    matches!(expr, Expr::Var(v) if is_inner(*v))
}

/// Every index expression goes to the first level at which its loops are set.
pub(super) fn levels<'b, 'a>(
    bound: &'b Bound<'a>,
    level_of: &[usize],
    count: usize,
    is_inner: &impl Fn(usize) -> bool,
) -> Vec<Level<'b, 'a>> {
    let mut levels: Vec<Level<'b, 'a>> = (0..count).map(|_| Level::default()).collect();
    let level = |expr: &Expr<'a>| expr.vars().iter().map(|&v| level_of[v]).max().unwrap_or(0);
    for (factor, axes) in bound.factors.iter().enumerate() {
        for axis in axes.iter().filter(|a| !is_var(&a.expr, is_inner)) {
            let step = Step { factor, stride: axis.stride, expr: &axis.expr };
            levels[level(&axis.expr)].steps.push(step);
        }
    }
    for guard in &bound.guards {
        levels[level(guard)].guards.push(guard);
    }
    for pair in &bound.equalities {
        levels[level(&pair.0).max(level(&pair.1))].equalities.push(pair);
    }
    levels
}

/// The innermost loop: one that no gather, block or diagonal depends on, with the least strided factors; among
/// those one of the output, then the longest.
pub(super) fn choose_inner(bound: &Bound<'_>, walked: &[usize]) -> Option<Inner> {
    let mut tied = walked.to_vec();
    let axes = || bound.out.iter().chain(bound.factors.iter().flatten());
    for expr in axes().map(|a| &a.expr).chain(&bound.guards) {
        if !matches!(expr, Expr::Var(_)) {
            tied.extend(expr.vars());
        }
    }
    // Whether a term counts is asked once for the whole of the innermost loop.
    for (factor, _) in &bound.partial {
        let axes = bound.factors[*factor].iter();
        tied.extend(axes.flat_map(|axis| axis.expr.vars()));
    }
    for (left, right) in &bound.equalities {
        tied.extend(left.vars().into_iter().chain(right.vars()));
    }
    let is = |v: usize| move |expr: &Expr<'_>| matches!(expr, Expr::Var(x) if *x == v);
    let score = |v: &usize| {
        let strides = bound.factors.iter().map(|axes| -> usize {
            axes.iter().filter(|a| is(*v)(&a.expr)).map(|a| a.stride).sum()
        });
        let strided = strides.filter(|s| *s > 1).count();
        let summed = !bound.out.iter().any(|a| is(*v)(&a.expr));
        (bound.extents[*v] < 4, strided, summed, usize::MAX - bound.extents[*v])
    };
    let var = (0..bound.extents.len()).filter(|v| !tied.contains(v)).min_by_key(score)?;
    let along = || bound.out.iter().filter(move |a| is(var)(&a.expr));
    let out = (along().count() > 0).then(|| along().map(|a| a.stride).sum());
    Some(Inner { var, out })
}
