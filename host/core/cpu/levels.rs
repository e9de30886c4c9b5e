//! Selection of the innermost loop, and of the loop level at which each index expression is evaluated.

use super::bind::Bound;
use super::expr::Expr;

/// Index expression that is added to a factor's offset once its loops are set.
pub(super) struct Step<'b, 'a> {
    pub factor: usize,
    pub stride: usize,
    pub expr: &'b Expr<'a>,
}

/// Expressions to evaluate at one loop level.
#[derive(Default)]
pub(super) struct Level<'b, 'a> {
    pub steps: Vec<Step<'b, 'a>>,
    pub guards: Vec<&'b Expr<'a>>,
    pub equalities: Vec<&'b (Expr<'a>, Expr<'a>)>,
}

/// Innermost loop.
pub(super) struct Inner {
    pub var: usize,
    /// Stride in the output; `None` for a summed loop.
    pub out: Option<usize>,
}

pub(super) fn is_var(expr: &Expr<'_>, is_inner: &impl Fn(usize) -> bool) -> bool {
    matches!(expr, Expr::Var(v) if is_inner(*v))
}

/// Assigns every index expression to the first level at which its loops are set.
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

/// Selects the innermost loop among the loops that no gather, block or diagonal depends on. Prefers an extent of at
/// least 4, then the fewest strided factors, then a loop of the output, then the longest loop.
pub(super) fn choose_inner(bound: &Bound<'_>, walked: &[usize]) -> Option<Inner> {
    let mut tied = walked.to_vec();
    let axes = || bound.out.iter().chain(bound.factors.iter().flatten());
    for expr in axes().map(|a| &a.expr).chain(&bound.guards) {
        if !matches!(expr, Expr::Var(_)) {
            tied.extend(expr.vars());
        }
    }
    // The innermost loop does not test for absent values, so a loop that indexes such a factor cannot be innermost.
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
