//! Operations of one GPU over ranks, on patterns whose columns are indices of a halo: on CPUs and on GPUs.

use einsparse::formats::{Bsr, BsrPattern, Csr, CsrPattern, Dense, f16, generate};
use einsparse::group::{Halo, Partition, Sharded};
use einsparse::ops::{
    Aggregate, AttentionGradient, AttentionOptions, Couplings, Edges, EquivariantMessage, Factors,
    Gradients, MessagePassing, SoftmaxOptions, SparseAttention, SparseSoftmax,
};
use einsparse::{Context, Result, Scalar, Tensor};

use super::cases::{graph, on_ranks};
use crate::support::rows::named;

/// Concatenates the values of all ranks, separately for each kind.
fn joined<T: Scalar, const N: usize>(results: Vec<Result<[Vec<T>; N]>>) -> [Vec<T>; N] {
    let mut all = [(); N].map(|()| Vec::new());
    for own in results {
        let own = own.unwrap();
        all.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
    }
    all
}

fn random<T: Scalar>(rows: usize, n: usize, seed: u64) -> Dense<T> {
    let values: Vec<f32> = generate::random_values(rows * n, seed);
    let values = values.iter().map(|&v| T::from_f64(f64::from(v)));
    Dense::new([rows, n], values.collect()).unwrap()
}

fn rows_of<T: Scalar>(dense: &Dense<T>, rows: std::ops::Range<usize>) -> Dense<T> {
    let n = dense.shape()[1];
    let values = dense.values()[rows.start * n..rows.end * n].to_vec();
    Dense::new([rows.len(), n], values).unwrap()
}

/// Concatenates two matrices with equal numbers of rows along the columns.
fn beside<T: Scalar>(a: &Dense<T>, b: &Dense<T>) -> Dense<T> {
    let (left, right) = (a.shape()[1], b.shape()[1]);
    let rows = a
        .values()
        .chunks(left)
        .zip(b.values().chunks(right))
        .flat_map(|(a, b)| a.iter().chain(b).copied());
    Dense::new([a.shape()[0], left + right], rows.collect()).unwrap()
}

/// Compares values of one rank with those of all ranks: equal bits if `exact`, otherwise near.
fn compare<T: Scalar, const N: usize>(
    what: &str,
    exact: bool,
    found: &[Vec<T>; N],
    wanted: &[Vec<T>; N],
) {
    let unit = if size_of::<T>() == 2 { 2e-3 } else { 1e-5 };
    for (kind, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found.len(), wanted.len(), "{what}, {kind}");
        for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let [x, y] = [found, wanted].map(|v| v.to_f64());
            let same = if exact { x == y } else { (x - y).abs() <= 8.0 * unit * (1.0 + y.abs()) };
            assert!(same, "{what}, {kind}: {x} for {y} at {at}");
        }
    }
}

/// Creates a halo of the columns of this rank's rows, and their pattern with columns as indices of the halo.
fn held<T: Scalar>(
    group: &einsparse::group::Group,
    mine: &CsrPattern,
    columns: &Partition,
    n: usize,
) -> Result<(Halo<T>, CsrPattern)> {
    let halo = Halo::new(group, mine, columns, n)?;
    let pattern = halo.columns(mine)?;
    Ok((halo, pattern))
}

/// `S[m,n] = P[m,n] * X[m,k] * Y[n,k]` and its row-wise softmax: the bits of one rank.
pub fn sampled(contexts: &[Context]) {
    for (case, (nodes, edges, n)) in [(200, 7, 32), (97, 3, 64), (6, 2, 8)].into_iter().enumerate()
    {
        let p = graph(nodes, edges, 31 + case as u64);
        let (x, y) = (random::<f32>(nodes, n, 4), random::<f32>(nodes, n, 5));
        let step = |contexts: &[Context], variant: Option<&str>| {
            let size = contexts.len();
            let rows = Partition::balanced(p.pattern(), n, size);
            let columns = Partition::even(nodes, size);
            let options = named(variant);
            let results = on_ranks(contexts, |group| {
                let (ctx, rank) = (group.context(), group.rank());
                let stream = ctx.stream()?;
                let mine = Sharded::of(&group, &p, &rows)?;
                let (halo, pattern) = held(&group, mine.local().pattern(), &columns, n)?;
                let here = Csr::new(pattern, mine.local().values().to_vec())?;
                let (p, mut s) = (ctx.upload(&here)?, ctx.upload(&here)?);
                let x = ctx.upload_dense(&rows_of(&x, rows.range(rank)))?;
                let mut all = halo.tensor()?;
                all.local_mut()?.write(&rows_of(&y, columns.range(rank)))?;
                halo.exchange(&mut all, &stream)?;
                let y = all.with_halo();
                let operands = [("P", (&p).into()), ("X", (&x).into()), ("Y", y.into())];
                let plan = ctx.plan("S[m,n] = P[m,n] * X[m,k] * Y[n,k]");
                let plan = plan.operands(&operands).options(&options);
                let plan = plan.sparse_output(&s).build()?;
                plan.run(&operands, &mut s, &stream)?;
                let softmax = SparseSoftmax::new(ctx, &s, &SoftmaxOptions::default())?;
                let mut weights = ctx.upload(&here)?;
                softmax.forward(&s, &mut weights, &stream)?;
                stream.synchronize()?;
                let values = [s.to_host()?, weights.to_host()?].map(|s| s.values().to_vec());
                Ok((values, plan.variant()))
            });
            let variant = results[0].as_ref().map(|(_, variant)| *variant).unwrap();
            let values = results.into_iter().map(|own| own.map(|(values, _)| values));
            (joined(values.collect()), variant)
        };
        let (wanted, variant) = step(&contexts[..1], None);
        let on_gpu = contexts[0].is_cuda();
        let (found, _) = step(contexts, on_gpu.then_some(variant));
        let [[s, weights], [s_wanted, weights_wanted]] = [found, wanted];
        compare("products at entries", true, &[s], &[s_wanted]);
        compare("softmax", !on_gpu, &[weights], &[weights_wanted]);
    }
}

const TOKENS: usize = 192;
const HEADS: [usize; 2] = [4, 2];
const DIM: usize = 64;

fn heads([heads, key_heads]: [usize; 2]) -> AttentionOptions {
    AttentionOptions { heads, key_heads: Some(key_heads), dim: DIM, ..AttentionOptions::default() }
}

/// Queries, keys and values of all tokens, with heads adjacent in rows.
fn tokens() -> [Dense<f16>; 3] {
    let [queries, keys] = HEADS;
    [(queries, 1), (keys, 2), (keys, 3)].map(|(heads, seed)| random(TOKENS, heads * DIM, seed))
}

/// Attention of the queries of a rank, at nonzeros and at blocks. One exchange sends keys and values as adjacent
/// columns.
pub fn sequences(contexts: &[Context]) {
    let [q, k, v] = tokens();
    let (kv, wide) = (beside(&k, &v), HEADS[1] * DIM);
    let attend = |contexts: &[Context], mask: &CsrPattern, side: usize| {
        let rows = Partition::balanced(mask, DIM, contexts.len());
        let ones = Csr::new(mask.clone(), vec![f16::ONE; mask.columns().len()]).unwrap();
        joined(on_ranks(contexts, |group| {
            let (ctx, own) = (group.context(), rows.range(group.rank()));
            let stream = ctx.stream()?;
            let mine = Sharded::of(&group, &ones, &rows)?;
            // A row of the halo is what a column of the mask represents: a token, or a block of tokens.
            let (halo, pattern) = held(&group, mine.local().pattern(), &rows, side * 2 * wide)?;
            let count = pattern.columns().len();
            let mask = match side {
                1 => ctx.upload(Csr::new(pattern, vec![f16::ONE; count])?)?,
                _ => {
                    let rows = own.len() * side;
                    let [columns, starts] =
                        [pattern.columns(), pattern.offsets()].map(<[u32]>::to_vec);
                    let all = einsparse::formats::Pattern::shape(&pattern)[1] * side;
                    let blocks = BsrPattern::new(rows, all, (side, side), starts, columns)?;
                    ctx.upload(Bsr::new(blocks, vec![f16::ONE; count * side * side])?)?
                }
            };
            let tokens = own.start * side..own.end * side;
            let mut all = halo.tensor()?;
            let own_rows = rows_of(&kv, tokens.clone()).into_values();
            let own_rows = Dense::new([own.len(), side * 2 * wide], own_rows)?;
            all.local_mut()?.write(&own_rows)?;
            halo.exchange(&mut all, &stream)?;
            let n = all.with_halo().shape()[0] * side;
            let kv = all.with_halo().part(0, &[n, 2 * wide])?;
            let (k, v) = (kv.columns(0..wide)?, kv.columns(wide..2 * wide)?);
            let q = ctx.upload_dense(&rows_of(&q, tokens))?;
            let mut out = ctx.zeros(q.shape())?;
            let attention = SparseAttention::new(ctx, &[&mask], &heads(HEADS))?;
            attention.forward([&q, &k, &v], &mut out, None, &stream)?;
            stream.synchronize()?;
            Ok([out.to_dense()?.into_values()])
        }))
    };
    let entries = graph(TOKENS, 9, 41).pattern().as_ref().clone();
    let side = 16;
    let bands = (0..TOKENS / side).map(|row| (row.saturating_sub(2)..=row).map(|c| c as u32));
    let bands: Vec<Vec<u32>> = bands.map(Iterator::collect).collect();
    let mut starts = vec![0];
    for band in &bands {
        starts.push(starts[starts.len() - 1] + band.len() as u32);
    }
    let count = bands.len();
    let blocks = CsrPattern::new(count, count, starts, bands.concat()).unwrap();
    for (mask, side) in [(entries, 1), (blocks, side)] {
        let found = attend(contexts, &mask, side);
        let wanted = attend(&contexts[..1], &mask, side);
        let what = format!("attention of sequences, blocks of {side}");
        compare(&what, !contexts[0].is_cuda(), &found, &wanted);
    }
}

/// Attention of the heads of a rank. Only the outputs are exchanged.
pub fn heads_of_ranks(contexts: &[Context]) {
    let size = contexts.len();
    let mask = graph(TOKENS, 9, 43).pattern().as_ref().clone();
    let [shared, key_heads] = [2, size + 1];
    let all = [shared * key_heads, key_heads, key_heads];
    let [q, k, v] = [0, 1, 2].map(|i| random::<f16>(all[i], TOKENS * DIM, 50 + i as u64));
    let attend = |contexts: &[Context]| {
        let size = contexts.len();
        let dealt = Partition::even(key_heads, size);
        let results = on_ranks(contexts, |group| {
            let (ctx, own) = (group.context(), dealt.range(group.rank()));
            let stream = ctx.stream()?;
            let values = vec![f16::ONE; mask.columns().len()];
            let mask = ctx.upload(Csr::new(mask.clone(), values)?)?;
            let upload = |all: &Dense<f16>, heads: std::ops::Range<usize>| {
                let shape = [heads.len(), TOKENS, DIM];
                ctx.upload_dense(&Dense::new(shape, rows_of(all, heads).into_values())?)
            };
            let q = upload(&q, shared * own.start..shared * own.end)?;
            let (k, v) = (upload(&k, own.clone())?, upload(&v, own.clone())?);
            // The pattern of each rank names every group of heads.
            let every = CsrPattern::new(
                1,
                key_heads,
                vec![0, key_heads as u32],
                (0..key_heads as u32).collect(),
            )?;
            let halo = Halo::new(&group, &every, &dealt, shared * TOKENS * DIM)?;
            let mut out = halo.tensor()?;
            let options = heads([shared * own.len(), own.len()]);
            let attention = SparseAttention::new(ctx, &[&mask], &options)?;
            {
                let mut local = out.local_mut()?;
                let mut local = local.part_mut(0, &[shared * own.len(), TOKENS, DIM])?;
                attention.forward([&q, &k, &v], &mut local, None, &stream)?;
            }
            stream.synchronize()?;
            let own = out.to_dense()?.into_values();
            halo.exchange(&mut out, &stream)?;
            stream.synchronize()?;
            Ok((own, out.with_halo().to_dense()?.into_values()))
        });
        let results: Vec<_> = results.into_iter().map(|own| own.unwrap()).collect();
        let whole: Vec<f16> = results.iter().flat_map(|(own, _)| own.clone()).collect();
        for (_, gathered) in &results {
            assert!(*gathered == whole);
        }
        [whole]
    };
    let (found, wanted) = (attend(contexts), attend(&contexts[..1]));
    compare("attention of heads", !contexts[0].is_cuda(), &found, &wanted);
}

/// Gradient of attention with one head of keys. Gradients of keys and values of other ranks are sent back to them.
pub fn attention_gradient<T: Scalar>(contexts: &[Context]) {
    let mask = graph(TOKENS, 6, 47).pattern().as_ref().clone();
    let all = [2 * DIM, DIM, DIM, 2 * DIM];
    let [q, k, v, dy] = [0, 1, 2, 3].map(|i| random::<T>(TOKENS, all[i], 60 + i as u64));
    let step = |contexts: &[Context]| {
        let rows = Partition::balanced(&mask, DIM, contexts.len());
        let ones = Csr::new(mask.clone(), vec![T::ONE; mask.columns().len()]).unwrap();
        joined(on_ranks(contexts, |group| {
            let (ctx, own) = (group.context(), rows.range(group.rank()));
            let stream = ctx.stream()?;
            let mine = Sharded::of(&group, &ones, &rows)?;
            let halo = Halo::new(&group, mine.local().pattern(), &rows, DIM)?.with_add()?;
            let pattern = halo.columns(mine.local().pattern())?;
            let mask = ctx.upload(Csr::new(pattern, mine.local().values().to_vec())?)?;
            let bring = |all: &Dense<T>| {
                let mut there = halo.tensor()?;
                there.local_mut()?.write(&rows_of(all, own.clone()))?;
                halo.exchange(&mut there, &stream)?;
                Ok::<_, einsparse::Error>(there)
            };
            let (k, v) = (bring(&k)?, bring(&v)?);
            // Heads become the outer axis: the two heads of a token are stored in separate rows.
            let upload = |all: &Dense<T>| {
                let own_rows = rows_of(all, own.clone());
                let head = |h: usize| {
                    own_rows
                        .values()
                        .chunks(2 * DIM)
                        .flat_map(move |row| row[h * DIM..(h + 1) * DIM].to_vec())
                };
                let values = head(0).chain(head(1)).collect();
                ctx.upload_dense(&Dense::new([2, own.len(), DIM], values)?)
            };
            let (q, dy) = (upload(&q)?, upload(&dy)?);
            let (mut dk, mut dv) = (halo.tensor()?, halo.tensor()?);
            let mut dq = ctx.zeros(q.shape())?;
            let shape = [1, k.with_halo().shape()[0], DIM];
            let mut gradient = AttentionGradient::new(ctx, &[&mask], &heads([2, 1]))?;
            {
                let [k, v] = [&k, &v].map(|all| all.with_halo().part(0, &shape));
                let [to_k, to_v] =
                    [&mut dk, &mut dv].map(|d| d.with_halo_mut().part_mut(0, &shape));
                let (k, v, mut to_k, mut to_v) = (k?, v?, to_k?, to_v?);
                let to = [&mut dq, &mut *to_k, &mut *to_v];
                gradient.backward([&q, &k, &v], &dy, to, &stream)?;
            }
            halo.add(&mut dk, &stream)?;
            halo.add(&mut dv, &stream)?;
            stream.synchronize()?;
            let dq = dq.to_dense()?.into_values();
            // Tokens become the outer axis again, because ranks store them in order.
            let token = |t: usize| {
                let row = |h: usize| dq[(h * own.len() + t) * DIM..][..DIM].to_vec();
                [row(0), row(1)].concat()
            };
            let dq = (0..own.len()).flat_map(token).collect();
            Ok([dq, dk.to_dense()?.into_values(), dv.to_dense()?.into_values()])
        }))
    };
    let (found, wanted) = (step(contexts), step(&contexts[..1]));
    compare("gradient of attention", false, &found, &wanted);
    compare("gradient of attention", true, &found, &step(contexts));
}

/// Edges of a rank's receivers, whose senders may be on other ranks: messages as on one rank, and gradients sent back
/// to the senders.
pub fn messages(contexts: &[Context]) {
    const CHANNELS: usize = 16;
    let atoms = 90;
    let edges = graph(atoms, 5, 53);
    let couplings = Couplings::natural(2).unwrap();
    let [inner, angles] = [0, 1].map(|of| couplings.components(of));
    let (paths, outer) = (couplings.paths().len(), couplings.rows());
    let count = edges.pattern().columns().len();
    let x = random::<f32>(atoms, inner * CHANNELS, 70);
    let (y, w) = (random::<f32>(count, angles, 71), random::<f32>(count, paths * CHANNELS, 72));
    let dout = random::<f32>(atoms, outer * CHANNELS, 73);
    let step = |contexts: &[Context]| {
        let rows = Partition::balanced(edges.pattern(), CHANNELS, contexts.len());
        joined(on_ranks(contexts, |group| {
            let (ctx, own) = (group.context(), rows.range(group.rank()));
            let stream = ctx.stream()?;
            let mine = Sharded::of(&group, &edges, &rows)?;
            let mine = mine.local().pattern();
            let halo = Halo::new(&group, mine, &rows, inner * CHANNELS)?.with_add()?;
            let pattern = halo.columns(mine)?;
            let receivers = (0..own.len() as u32)
                .flat_map(|row| pattern.row(row as usize).map(move |_| row))
                .collect::<Vec<_>>();
            let mut x_all = halo.tensor()?;
            x_all.local_mut()?.write(&rows_of(&x, own.clone()))?;
            halo.exchange(&mut x_all, &stream)?;
            let list = Edges {
                receivers: &receivers,
                senders: pattern.columns(),
                nodes: [own.len(), x_all.with_halo().shape()[0]],
            };
            let layer = EquivariantMessage::<f32>::new(ctx, &couplings, CHANNELS, list)?;
            let starts = edges.pattern().offsets();
            let own_edges = starts[own.start] as usize..starts[own.end] as usize;
            let upload = |all: &Dense<f32>, rows: &std::ops::Range<usize>, shape: &[usize]| {
                let values = rows_of(all, rows.clone()).into_values();
                ctx.upload_dense(&Dense::new(shape.to_vec(), values)?)
            };
            let y = upload(&y, &own_edges, layer.y_shape())?;
            let w = upload(&w, &own_edges, layer.w_shape())?;
            let dout = upload(&dout, &own, layer.out_shape())?;
            let zeros = |shape: &[usize]| ctx.zeros::<f32>(shape);
            let (mut out, mut dx) = (zeros(layer.out_shape())?, halo.tensor()?);
            let (mut dy, mut dw) = (zeros(layer.y_shape())?, zeros(layer.w_shape())?);
            {
                let x = x_all.with_halo().part(0, layer.x_shape())?;
                let factors = Factors { x: &x, y: &y, w: Some(&w) };
                layer.forward(factors, &mut out, &stream)?;
                let mut dx = dx.with_halo_mut().part_mut(0, layer.x_shape())?;
                let to = Gradients { x: Some(&mut dx), y: Some(&mut dy), w: Some(&mut dw) };
                layer.backward(factors, &dout, to, &stream)?;
            }
            halo.add(&mut dx, &stream)?;
            stream.synchronize()?;
            let [out, dy, dw] = [&out, &dy, &dw].map(|t: &Tensor<f32>| t.to_dense());
            Ok([out?, dx.to_dense()?, dy?, dw?].map(Dense::into_values))
        }))
    };
    let (found, wanted) = (step(contexts), step(&contexts[..1]));
    compare("messages of atoms", false, &found, &wanted);
    if !contexts[0].is_cuda() {
        // All results except the gradient of X, which sums over receivers of several ranks.
        let rows = |[out, _, dy, dw]: [Vec<f32>; 4]| [out, dy, dw];
        compare("messages of atoms", true, &rows(found), &rows(wanted));
    }
}

/// Sum, mean and maximum over neighbours, and the gradient of the first two.
pub fn neighbours(contexts: &[Context]) {
    let (nodes, features) = (130, 16);
    let edges = graph(nodes, 6, 59);
    let (x, dy) = (random::<f32>(nodes, features, 80), random::<f32>(nodes, features, 81));
    for aggregate in [Aggregate::Sum, Aggregate::Mean, Aggregate::Max] {
        let step = |contexts: &[Context]| {
            let rows = Partition::balanced(edges.pattern(), features, contexts.len());
            joined(on_ranks(contexts, |group| {
                let (ctx, own) = (group.context(), rows.range(group.rank()));
                let stream = ctx.stream()?;
                let mine = Sharded::of(&group, &edges, &rows)?;
                let pattern = mine.local().pattern();
                let halo = Halo::new(&group, pattern, &rows, features)?.with_add()?;
                let here = Csr::new(halo.columns(pattern)?, mine.local().values().to_vec())?;
                let layer = MessagePassing::new(ctx, &here, features, aggregate)?;
                let (mut all, mut dx) = (halo.tensor()?, halo.tensor()?);
                all.local_mut()?.write(&rows_of(&x, own.clone()))?;
                halo.exchange(&mut all, &stream)?;
                let mut y = ctx.zeros(&[own.len(), features])?;
                layer.forward(all.with_halo(), &mut y, &stream)?;
                if aggregate != Aggregate::Max {
                    let dy = ctx.upload_dense(&rows_of(&dy, own))?;
                    layer.backward(&dy, dx.with_halo_mut(), &stream)?;
                    halo.add(&mut dx, &stream)?;
                }
                stream.synchronize()?;
                Ok([y.to_dense()?, dx.to_dense()?].map(Dense::into_values))
            }))
        };
        let ([y, dx], [y_wanted, dx_wanted]) = (step(contexts), step(&contexts[..1]));
        let what = format!("{aggregate:?} over neighbours");
        compare(&what, !contexts[0].is_cuda(), &[y], &[y_wanted]);
        compare(&what, false, &[dx], &[dx_wanted]);
    }
}
