//! Operators over images, clouds, edges and masks.

use einsparse::dynamic::{ConvolutionAxis, ConvolutionOptions, DynamicConvolution};
use einsparse::ops::{
    AttentionGradient, AttentionMask, AttentionOptions, CachedAttention, Conv2d, Conv2dOptions,
    ConvGeometry, EdgeGeometry, Edges, GeometryOptions, HostSpmm, KernelMap, KernelMapBuilder,
    SampledTensor, SoftmaxOptions, SparseAttention, SparseSoftmax, prune_to_nm,
};
use einsparse::{Scalar, Tensor};

use crate::gpu::operator_trials::loops::sparse_of;
use crate::gpu::operator_trials::trial::{Outcome, Trial};

type Done = Result<(), Outcome>;

fn zeros<T: Scalar>(t: &mut Trial<'_>, name: &str, shape: &[usize]) -> Tensor<T> {
    t.given::<T>(name, shape, |_, _| 0.0).there
}

pub fn conv2d<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let (c, o) = (t.one(&[64, 32, 16, 3, 7, 0]), t.one(&[64, 128, 8, 5, 0]));
    let side = t.one(&[1, 2, 3, 0, 9]);
    let input = [t.one(&[1, 2, 0]), t.one(&[8, 5, 1, 0]), t.one(&[8, 7]), c];
    let inner = if t.once_in(8) { c + 1 } else { c };
    let weights = [side, t.one(&[side, 1, 3]), inner, o];
    let options = Conv2dOptions {
        stride: t.one(&[1, 2, 0, 4, 9]),
        padding: t.one(&[[0, 0], [1, 1], [0, 2], [9, 9]]),
        relu: t.once_in(2),
    };
    let conv = t.made(Conv2d::<T>::new(t.context, input, weights, &options))?;
    let of_out = conv.out_shape();
    let (x, w) = (zeros::<T>(t, "input", &input), zeros::<T>(t, "weights", &weights));
    let bias = t.once_in(2).then(|| zeros::<T>(t, "bias", &[o]));
    let mut out = zeros::<T>(t, "out", &of_out);
    t.queue(|stream| conv.forward(&x, &w, bias.as_ref(), &mut out, stream))
}

pub fn dynamic_convolution<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(3);
    let (c, o) = (t.one(&[64, 32, 8, 3]), t.one(&[64, 128, 8, 5]));
    let a = [t.one(&[1, 2, 0]), t.one(&[8, 5, 1]), t.one(&[8, 7, 16]), c];
    let window = t.one(&[[3, 3], [1, 1], [2, 3], [0, 1]]);
    let b = [window[0], window[1], if t.once_in(8) { c + 8 } else { c }, o];
    let options = ConvolutionOptions {
        axis: t.one(&[ConvolutionAxis::Channels, ConvolutionAxis::Filters]),
        threshold: t.one(&[0.0, 0.5, -1.0, f64::NAN]),
        stride: t.one(&[[1, 1], [2, 2], [0, 1]]),
        dilation: t.one(&[[1, 1], [2, 1], [1, 0]]),
        padding: t.one(&[[0, 0], [1, 1], [9, 0]]),
        ..ConvolutionOptions::default()
    };
    let mut conv = t.made(DynamicConvolution::<T>::new(t.context, a, b, &options))?;
    let shapes = conv.shapes();
    let (a, b) = (zeros::<T>(t, "A", &shapes[0]), zeros::<T>(t, "B", &shapes[1]));
    let mut c = zeros::<T>(t, "C", &shapes[2]);
    t.queue(|stream| conv.forward(&a, &b, &mut c, stream))?;
    t.queue(|stream| conv.detect(&a, stream))?;
    t.queue(|stream| conv.multiply(&a, &b, &mut c, stream))
}

pub fn edge_geometry<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let [nodes, edges] = [t.one(&[1, 5, 9]), t.rows()];
    let last = if t.once_in(8) { nodes as u32 } else { 0 };
    let receivers: Vec<u32> = (0..edges).map(|i| (i % nodes) as u32 + last).collect();
    let mut senders = receivers.clone();
    if t.once_in(8) {
        senders.push(0);
    }
    let options = GeometryOptions {
        cutoff: t.one(&[5.0, 5.0, 0.0, -1.0, f64::NAN]),
        degree: t.one(&[0, 1, 2, 3, 4, 5, 40]),
        functions: t.one(&[8, 1, 0, 33, 1000]),
        exponent: t.one(&[6, 1, 0, 99]),
    };
    let of = Edges { receivers: &receivers, senders: &senders, nodes: [nodes, nodes] };
    let geometry = t.made(EdgeGeometry::<T>::new(t.context, of, None, &options))?;
    let positions = zeros::<f64>(t, "positions", &[nodes, 3]);
    let width = (options.degree + 1) * (options.degree + 1);
    let mut y = zeros::<T>(t, "y", &[edges, width]);
    let mut basis = zeros::<T>(t, "basis", &[edges, options.functions]);
    t.queue(|stream| geometry.forward(&positions, &mut y, &mut basis, stream))?;
    let mut to = zeros::<f64>(t, "dpositions", &[nodes, 3]);
    t.queue(|stream| geometry.backward(&positions, [&y, &basis], &mut to, stream))
}

/// Options of an attention, some of them invalid.
fn attention(t: &mut Trial<'_>) -> AttentionOptions {
    AttentionOptions {
        heads: t.one(&[1, 2, 4, 0, 3]),
        key_heads: t.one(&[None, Some(1), Some(2), Some(0)]),
        dim: t.one(&[64, 128, 64, 128, 7, 32, 256, 0]),
        scale: t.one(&[None, Some(0.5), Some(0.0), Some(f64::NAN)]),
        causal: t.one(&[None, None, Some(0), Some(-2)]),
        lengths: None,
    }
}

pub fn cached_attention<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let options = attention(t);
    let [batch, capacity] = [t.one(&[1, 2, 0]), t.one(&[8, 64, 5, 0])];
    let made = CachedAttention::<T>::new(t.context, [batch, capacity], &options);
    let attention = t.made(made)?;
    let (heads, dim) = (options.heads, options.dim);
    let key_heads = options.key_heads.unwrap_or(heads);
    let q = zeros::<T>(t, "q", &[batch, heads, dim]);
    let [mut k, mut v] = ["k", "v"].map(|n| zeros::<T>(t, n, &[batch, key_heads, capacity, dim]));
    let lengths = zeros::<i32>(t, "lengths", &[batch]);
    let mut out = zeros::<T>(t, "out", &[batch, heads, dim]);
    t.queue(|stream| attention.forward(&q, [&k, &v], &lengths, &mut out, stream))?;
    let new = ["new k", "new v"].map(|n| zeros::<T>(t, n, &[batch, key_heads, dim]));
    let new = new.each_ref();
    t.queue(|stream| attention.append(&q, new, [&mut k, &mut v], &lengths, &mut out, stream))
}

fn masks(t: &mut Trial<'_>, heads: usize) -> Vec<AttentionMask> {
    let count = t.one(&[1, heads, 1, 0]);
    let one = t.below(5);
    (0..count)
        .map(|_| match one {
            0 => AttentionMask::Causal,
            1 => AttentionMask::Window { before: 2, after: t.one(&[0, 1, usize::MAX]) },
            2 => {
                AttentionMask::WindowGlobal { before: 1, after: 1, globals: vec![t.one(&[0, 900])] }
            }
            3 => {
                AttentionMask::VerticalSlash { columns: vec![t.one(&[0, 900])], diagonals: vec![0] }
            }
            _ => AttentionMask::Blocks(vec![t.one(&[[0, 0], [0, 9], [7, 0]])]),
        })
        .collect()
}

pub fn structured_attention<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(5);
    let options = attention(t);
    let ([m, n], masks) = ([t.rows(), t.rows()], masks(t, options.heads));
    let made = SparseAttention::<T>::structured(t.context, [m, n], &masks, &options);
    let attention = t.made(made)?;
    let (heads, dim) = (options.heads, options.dim);
    let key_heads = options.key_heads.unwrap_or(heads);
    let in_rows = t.once_in(3);
    let of = |heads: usize, rows: usize| match in_rows {
        true => vec![rows, heads * dim],
        false => vec![heads, rows, dim],
    };
    let q = zeros::<T>(t, "q", &of(heads, m));
    let [k, v] = ["k", "v"].map(|name| zeros::<T>(t, name, &of(key_heads, n)));
    let mut out = zeros::<T>(t, "out", &of(heads, m));
    let mut sums = t.once_in(2).then(|| zeros::<f32>(t, "log_sum", &[heads, m]));
    t.queue(|stream| attention.forward([&q, &k, &v], &mut out, sums.as_mut(), stream))
}

pub fn attention_gradient<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(7);
    let options = attention(t);
    let [m, n] = [t.rows(), t.rows()];
    let (heads, dim) = (options.heads, options.dim);
    let made = match t.once_in(2) {
        true => {
            let masks = masks(t, heads);
            AttentionGradient::<T>::structured(t.context, [m, n], &masks, &options)
        }
        false => {
            let entries = t.entries(&[m, n], 16);
            let format = t.one(&["csr", "coo", "bsr:16x16", "csc"]);
            let mask = sparse_of::<T>(&[m, n], &entries, format)?;
            let mask = t.sparse("mask", &mask);
            AttentionGradient::<T>::new(t.context, &[&mask], &options)
        }
    };
    let mut gradient = t.made(made)?;
    let key_heads = options.key_heads.unwrap_or(heads);
    let [q, dy] = ["q", "dy"].map(|name| zeros::<T>(t, name, &[heads, m, dim]));
    let [k, v] = ["k", "v"].map(|name| zeros::<T>(t, name, &[key_heads, n, dim]));
    let mut dq = zeros::<T>(t, "dq", &[heads, m, dim]);
    let [mut dk, mut dv] = ["dk", "dv"].map(|name| zeros::<T>(t, name, &[key_heads, n, dim]));
    t.queue(|stream| gradient.backward([&q, &k, &v], &dy, [&mut dq, &mut dk, &mut dv], stream))?;
    let wide = (heads + 2 * key_heads) * dim;
    let (qkv, dy) = (zeros::<T>(t, "qkv", &[m, wide]), zeros::<T>(t, "dy", &[m, heads * dim]));
    let mut to = zeros::<T>(t, "dqkv", &[m, wide]);
    t.queue(|stream| gradient.backward_in_rows(&qkv, &dy, &mut to, stream))
}

pub fn softmax_in_place<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(3);
    let [m, n] = [t.rows(), t.rows()];
    let entries = t.entries(&[m, n], 20);
    let format = t.one(&["csr", "coo", "ell", "groupcoo:4", "csc", "bsr:2x2", "bitmap", "sell"]);
    let planned = sparse_of::<T>(&[m, n], &entries, format)?;
    let options = SoftmaxOptions {
        scale: t.one(&[1.0, 0.0, f64::NAN]),
        causal: t.one(&[None, Some(0)]),
        lengths: t.one(&[None, Some(1), Some(0), Some(3)]).map(|parts| vec![1; parts]),
        heads: t.one(&[1, 1, 1, 2, 0]),
        log: t.once_in(2),
    };
    let planned = t.sparse("planned", &planned);
    let softmax = t.made(SparseSoftmax::<T>::new(t.context, &planned, &options))?;
    let other = if t.once_in(3) { t.entries(&[m, n], 20) } else { entries };
    let format = if t.once_in(6) { "coo" } else { format };
    let own = sparse_of::<T>(&[m, n], &other, format)?;
    let (mut scores, dy) = (t.sparse("scores", &own), t.sparse("dy", &own));
    t.queue(|stream| softmax.forward_in_place(&mut scores, stream))?;
    let given = t.sparse("given", &own);
    t.queue(|stream| softmax.backward(&given, &dy, &mut scores, stream))
}

pub fn sampled_tensor<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(4);
    let order = t.one(&[3, 3, 4, 2, 5]);
    let shape: Vec<usize> = (0..order).map(|_| t.one(&[1, 3, 5])).collect();
    let n = t.one(&[8, 32, 64, 7, 0]);
    let entries = t.entries(&shape, 16);
    let format = t.one(&["coo", "coo", "groupcoo:4", "csr"]);
    let pattern = sparse_of::<T>(&shape, &entries, format)?;
    let there = t.sparse("pattern", &pattern);
    let sampled = t.made(SampledTensor::<T>::new(t.context, &there, n))?;
    let factors: Vec<Tensor<T>> =
        shape.iter().map(|&extent| zeros::<T>(t, "factor", &[extent, n])).collect();
    let mut factors: Vec<&Tensor<T>> = factors.iter().collect();
    if t.once_in(8) {
        factors.pop();
    }
    let mask = t.once_in(2).then(|| t.sparse("mask", &pattern));
    let mut out = t.sparse("out", &pattern);
    t.queue(|stream| sampled.forward(mask.as_ref(), &factors, &mut out, stream))
}

pub fn prune<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(1);
    let shape = match t.below(6) {
        0 => vec![t.rows()],
        1 => vec![2, 3, 4],
        _ => vec![t.rows(), t.one(&[16, 32, 64, 7, 0])],
    };
    let dense = zeros::<T>(t, "dense", &shape);
    t.made(prune_to_nm(t.context, &dense)).map(drop)
}

// Listed with operators of element types.
#[expect(clippy::extra_unused_type_parameters)]
pub fn kernel_map<T: Scalar>(t: &mut Trial<'_>) -> Done {
    t.aim(2);
    let kernel = t.one(&[[3, 3, 3], [1, 1, 1], [2, 2, 2], [1 << 30, 1, 1], [0, 1, 1]]);
    let stride = t.one(&[[1; 3], [1; 3], [2; 3], [0, 1, 1]]);
    let made = ConvGeometry::new(kernel, stride, [1; 3]);
    let geometry = t.made(made)?;
    let count = t.one(&[1, 5, 9, 0]);
    let voxels: Vec<[i32; 4]> = (0..count as i32).map(|i| [0, i, 0, 0]).collect();
    let map = t.made(KernelMap::new(t.context, &voxels, &geometry))?;
    let planned = if t.once_in(6) { count + 1 } else { count };
    if t.once_in(2) {
        let builder = t.made(KernelMapBuilder::new(t.context, planned, &geometry))?;
        let voxels = zeros::<i32>(t, "voxels", &[planned, 4]);
        return t.queue(|stream| builder.rebuild(&map, &voxels, stream));
    }
    let outputs = t.one(&[map.outputs(), map.outputs(), count + 1, 0]);
    let made = KernelMapBuilder::strided(t.context, [planned, outputs], &geometry);
    let builder = t.made(made)?;
    let voxels = zeros::<i32>(t, "voxels", &[planned, 4]);
    let mut out = zeros::<i32>(t, "out", &[outputs, 4]);
    t.queue(|stream| builder.rebuild_strided(&map, &voxels, &mut out, stream))
}

pub fn host_spmm<T: Scalar>(t: &mut Trial<'_>) -> Done {
    let [m, k, n] = [t.rows(), t.rows(), t.columns()];
    let entries = t.entries(&[m, k], 16);
    let format = t.one(&["csr", "coo", "ell", "csc", "bsr:16x16", "bitmap"]);
    let a = sparse_of::<T>(&[m, k], &entries, format)?;
    let limit = t.one(&[1 << 26, 1 << 26, 0, 1000]);
    let mut product = t.made(HostSpmm::<T>::new(t.context, &a, n, limit))?;
    let rows = if t.once_in(5) { k + 1 } else { k };
    let b = einsparse::formats::Dense::zeros([rows, n]).unwrap();
    let mut c = einsparse::formats::Dense::zeros([m, n]).unwrap();
    t.queue(|_| product.run(&a, &b, &mut c))
}
