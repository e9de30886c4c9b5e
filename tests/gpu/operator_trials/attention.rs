//! Attention whose scores are all equal: a query gets the mean of its visible values. Masks by nonzeros, and by flags
//! and lengths of a run, some of which are out of range.

use einsparse::ops::{AttentionOptions, DynamicAttention, MaskTensors, SparseAttention};
use einsparse::{Scalar, SparseTensor, Tensor};

use super::loops::sparse_of;
use super::results::{near, no_gap_is_written};
use super::trial::{Given, Outcome, Trial};

/// Heads of queries and of keys, numbers of queries and keys, and elements of a query.
#[derive(Clone, Copy, Debug)]
struct Extents {
    heads: usize,
    key_heads: usize,
    m: usize,
    n: usize,
    dim: usize,
}

fn extents(t: &mut Trial<'_>) -> (Extents, AttentionOptions) {
    let (heads, key_heads) = t.one(&[(1, 1), (2, 2), (4, 2), (3, 1)]);
    let [m, n] = [t.rows(), t.rows()];
    let dim = match t.is_for_gpu() {
        true => t.one(&[64, 128, 64, 128, 8]),
        false => t.one(&[1, 3, 8, 64]),
    };
    let options = AttentionOptions {
        heads,
        key_heads: (heads != key_heads).then_some(key_heads),
        dim,
        scale: t.one(&[None, Some(0.5)]),
        causal: t.one(&[None, None, Some(0), Some(-2), Some(i64::MIN), Some(i64::MAX)]),
        lengths: None,
    };
    let extents = Extents { heads, key_heads, m, n, dim };
    (extents, options)
}

/// Options with one invalid value.
fn broken(t: &mut Trial<'_>, options: &AttentionOptions) -> AttentionOptions {
    let mut options = options.clone();
    if t.is_made_wrong("a scale that is no factor, or heads that share nothing") {
        match t.below(2) {
            0 => {
                options.scale = t.one(&[Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)])
            }
            _ => options.key_heads = t.one(&[Some(0), Some(options.heads + 1)]),
        }
    }
    options
}

/// Tensors that a run reads and writes.
struct Tensors<T> {
    q: Given<T>,
    k: Given<T>,
    v: Given<T>,
    out: Tensor<T>,
    log_sum: Option<Tensor<f32>>,
}

/// Queries of zeros: every score is 0, except for keys that are NaN.
fn tensors<T: Scalar>(t: &mut Trial<'_>, e: Extents) -> Tensors<T> {
    let q = t.given::<T>("q", &[e.heads, e.m, e.dim], |_, _| 0.0);
    let share = t.one(&[0, 0, 1]);
    let is_nan: Vec<bool> = (0..e.key_heads * e.n).map(|_| t.below(32) < share).collect();
    let k = t.given::<T>("k", &[e.key_heads, e.n, e.dim], |t, i| match is_nan[i / e.dim] {
        true => f64::NAN,
        false => t.integer(),
    });
    let v = t.integers::<T>("v", &[e.key_heads, e.n, e.dim]);
    let out = t.written::<T>("out", &[e.heads, e.m, e.dim]);
    // Logarithms are written without gaps.
    t.whole = true;
    let log_sum = t.once_in(2);
    let log_sum = log_sum.then(|| t.written::<f32>("log_sum", &[e.heads, e.m]));
    Tensors { q, k, v, out, log_sum }
}

impl<T: Scalar> Tensors<T> {
    /// Compares with the mean of the values that each query sees.
    fn check(&self, what: &str, e: Extents, sees: impl Fn(usize, usize, usize) -> bool) {
        let mut wanted = vec![0.0; e.heads * e.m * e.dim];
        let mut logs = vec![f64::NEG_INFINITY; e.heads * e.m];
        let mut lost = Vec::new();
        for (head, query) in (0..e.heads).flat_map(|h| (0..e.m).map(move |q| (h, q))) {
            let own = head / (e.heads / e.key_heads) * e.n;
            let seen: Vec<usize> = (0..e.n).filter(|&key| sees(head, query, key)).collect();
            let is_nan = |key: &usize| self.k.values[(own + key) * e.dim].is_nan();
            let row = head * e.m + query;
            let to = &mut wanted[row * e.dim..][..e.dim];
            if seen.iter().any(is_nan) {
                to.fill(f64::NAN);
                lost.push(row);
                continue;
            }
            for &key in &seen {
                let line = &self.v.values[(own + key) * e.dim..][..e.dim];
                let each = to.iter_mut().zip(line);
                each.for_each(|(to, v)| *to += v / seen.len() as f64);
            }
            logs[row] = (seen.len() as f64).ln();
        }
        near(what, self.out.to_dense().unwrap().values(), &wanted, 0.0);
        no_gap_is_written(what, &self.out);
        if let Some(found) = &self.log_sum {
            let mut found = found.to_dense().unwrap().into_values();
            // The logarithm of a sum with NaN is not specified.
            lost.iter().for_each(|&row| found[row] = f32::NEG_INFINITY);
            near(what, &found, &logs, 0.0);
        }
    }
}

/// Masks by nonzeros.
pub fn of_entries<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(6);
    let (e, mut options) = extents(t);
    let share = t.one(&[0, 3, 16, 64]);
    let entries = t.entries(&[e.m, e.n], share);
    let format = t.one(&["csr", "coo", "ell", "groupcoo:3"]);
    let mask = sparse_of::<T>(&[e.m, e.n], &entries, format)?;
    if t.once_in(2) {
        let parts = t.one(&[1, e.heads]);
        let lengths = (0..parts).map(|_| t.one(&[0, e.n / 2, e.n, e.n + 9]));
        options.lengths = Some(lengths.collect());
    }
    let mask: SparseTensor<T> = t.context.upload(mask).unwrap();
    let given = broken(t, &options);
    let made = SparseAttention::<T>::new(t.context, &[&mask], &given);
    let attention = t.made(made)?;
    let mut own = tensors::<T>(t, e);
    t.run(&mut own.out, |out, stream| {
        attention.forward(
            [&own.q.there, &own.k.there, &own.v.there],
            out,
            own.log_sum.as_mut(),
            stream,
        )
    })?;
    let mut stored = vec![false; e.m * e.n];
    for (place, _) in &entries {
        stored[place[0] * e.n + place[1]] = true;
    }
    let length = |head: usize| match &options.lengths {
        Some(all) => all[head / (e.heads / all.len())],
        None => e.n,
    };
    let sees = |head: usize, query: usize, key: usize| {
        let causal = options.causal;
        stored[query * e.n + key]
            && key < length(head)
            && causal.is_none_or(|by| key as i64 <= (query as i64).saturating_add(by))
    };
    own.check(&format!("{e:?} {options:?} {format}"), e, sees);
    Ok(())
}

/// Flags of a mask: one for each item, one for all, or no flags.
fn flags(t: &mut Trial<'_>, name: &str, masks: usize, of: &[usize]) -> Option<Given<i8>> {
    if !t.once_in(2) {
        return None;
    }
    let masks = t.one(&[1, masks]);
    let shape: Vec<usize> = std::iter::once(masks).chain(of.iter().copied()).collect();
    let share = t.one(&[0, 1, 8]);
    // One mask for all is valid.
    let axes: Vec<usize> = (1..shape.len()).collect();
    Some(t.given_but(name, &shape, &axes, |t, _| {
        let is_set = t.below(16) < share;
        if is_set { t.one(&[1.0, -1.0, 4.0]) } else { 0.0 }
    }))
}

fn lengths(t: &mut Trial<'_>, e: Extents, masks: usize) -> Option<Given<i32>> {
    t.once_in(2).then(|| {
        t.given::<i32>("lengths", &[masks], |t, _| {
            f64::from(t.one(&[-1, i32::MIN, i32::MAX, e.n as i32 / 2, e.n as i32, 0]))
        })
    })
}

fn run<T: Scalar>(
    t: &mut Trial<'_>,
    attention: &DynamicAttention<T>,
    own: &mut Tensors<T>,
    mask: &MaskTensors<'_>,
) -> Result<(), Outcome> {
    let operands = [&own.q.there, &own.k.there, &own.v.there];
    t.run(&mut own.out, |out, stream| {
        attention.forward(operands, mask, out, own.log_sum.as_mut(), stream)
    })
}

/// Blocks of keys that queries name.
pub fn of_key_blocks<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(7);
    let (e, options) = extents(t);
    let masks = if e.heads % 2 == 0 { t.one(&[1, 2]) } else { 1 };
    let given = broken(t, &options);
    let most = t.one(&[0, 1, 2, 5, 30]);
    let made = DynamicAttention::<T>::of_key_blocks(t.context, [e.m, e.n], masks, most, &given);
    let attention = t.made(made)?;
    let mut own = tensors::<T>(t, e);
    let [down, across] = [e.m.div_ceil(64), e.n.div_ceil(64)];
    let lists = t.one(&[1, masks]);
    // One list for all is valid.
    let blocks: Given<i32> = t.given_but("key_blocks", &[lists, down, most], &[1, 2], |t, _| {
        let named = t.below(across.max(1)) as i32;
        f64::from(t.one(&[named, named, named, -1, across as i32, i32::MIN]))
    });
    let lengths = lengths(t, e, masks);
    let mask = MaskTensors {
        key_blocks: Some(&blocks.there),
        lengths: lengths.as_ref().map(|f| &f.there),
        ..MaskTensors::default()
    };
    run(t, &attention, &mut own, &mask)?;
    let sees = |head: usize, query: usize, key: usize| {
        let mask = head / (e.heads / masks);
        let row = if lists == 1 { 0 } else { mask } * down + query / 64;
        let named = &blocks.values[row * most..][..most];
        let length = lengths.as_ref().map_or(e.n as f64, |all| all.values[mask]);
        let causal = options.causal;
        named.contains(&((key / 64) as f64))
            && (key as f64) < length
            && causal.is_none_or(|by| key as i64 <= (query as i64).saturating_add(by))
    };
    own.check(&format!("{e:?} {options:?}"), e, sees);
    Ok(())
}

/// Masks given at a run.
pub fn of_flags<T: Scalar>(t: &mut Trial<'_>) -> Result<(), Outcome> {
    t.aim(10);
    let (e, options) = extents(t);
    let masks = if e.heads % 2 == 0 { t.one(&[1, 2]) } else { 1 };
    let given = broken(t, &options);
    let made = DynamicAttention::<T>::new(t.context, [e.m, e.n], masks, &given);
    let attention = t.made(made)?;
    let mut own = tensors::<T>(t, e);
    let count = (e.m + e.n).saturating_sub(1);
    let [down, across] = [e.m.div_ceil(64), e.n.div_ceil(64)];
    let blocks = flags(t, "blocks", masks, &[down, across]);
    let columns = flags(t, "columns", masks, &[e.n]);
    let rows = flags(t, "rows", masks, &[e.m]);
    let diagonals = flags(t, "diagonals", masks, &[count]);
    let lengths = lengths(t, e, masks);
    let all = [&blocks, &columns, &rows, &diagonals];
    let mask = MaskTensors {
        blocks: blocks.as_ref().map(|f| &f.there),
        columns: columns.as_ref().map(|f| &f.there),
        rows: rows.as_ref().map(|f| &f.there),
        diagonals: diagonals.as_ref().map(|f| &f.there),
        lengths: lengths.as_ref().map(|f| &f.there),
        key_blocks: None,
    };
    run(t, &attention, &mut own, &mask)?;
    let is_set = |which: usize, mask: usize, at: usize| {
        all[which].as_ref().is_some_and(|flags| {
            let each = [down * across, e.n, e.m, count][which];
            let own = if flags.values.len() == each { 0 } else { mask };
            flags.values[own * each + at] != 0.0
        })
    };
    let sees = |head: usize, query: usize, key: usize| {
        let mask = head / (e.heads / masks);
        let is_there = all.iter().all(|flags| flags.is_none())
            || is_set(0, mask, query / 64 * across + key / 64)
            || is_set(1, mask, key)
            || is_set(2, mask, query)
            || is_set(3, mask, key + e.m - 1 - query);
        let length = lengths.as_ref().map_or(e.n as f64, |all| all.values[mask]);
        let causal = options.causal;
        is_there
            && (key as f64) < length
            && causal.is_none_or(|by| key as i64 <= (query as i64).saturating_add(by))
    };
    own.check(&format!("{e:?} {options:?}"), e, sees);
    Ok(())
}
