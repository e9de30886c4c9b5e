//! Handwritten indirect Einsums: gathers, scatters and padding that no format describes.

use crate::support::assert_error;
use einsparse::Error;
use einsparse::cpu::{self, Operands, Output};
use einsparse::einsum::Einsum;
use einsparse::formats::{Dense, PAD, generate};
use einsparse::indirect::{IndirectEinsum, rewrite_dense};

use super::integers;

fn hand(text: &str) -> IndirectEinsum {
    rewrite_dense(&Einsum::parse(text).unwrap()).unwrap()
}

/// Indices below `bound`; about one in five is PAD.
fn slots(n: usize, bound: u32, seed: u64) -> Vec<u32> {
    let draw = generate::small_integers::<f32>(3 * n, seed);
    let number =
        |v: &[f32]| (v[0] + 2.0) as u32 * 25 + (v[1] + 2.0) as u32 * 5 + (v[2] + 2.0) as u32;
    let slot = |v: &[f32]| {
        if v[0] == -2.0 && v[1] > 0.0 { PAD } else { number(v) % bound }
    };
    draw.chunks(3).map(slot).collect()
}

#[test]
fn convolution_over_a_map() {
    let (groups, size, points, channels, filters) = (9, 8, 20, 6, 5);
    let (mo, mi) = (slots(groups * size, 20, 1), slots(groups * size, 20, 2));
    let mw: Vec<u32> = (0..groups as u32).map(|g| g * 4 % 27).collect();
    let mv = integers::<f32>(&[groups, size], 3);
    let input = integers::<f32>(&[points, channels], 4);
    let w = integers::<f32>(&[27, channels, filters], 5);
    let mut wanted = vec![0.0f32; points * filters];
    for p in 0..groups {
        for q in 0..size {
            let (o, i) = (mo[p * size + q], mi[p * size + q]);
            if o == PAD || i == PAD {
                continue;
            }
            for c in 0..channels {
                for m in 0..filters {
                    let weight = w.values()[(mw[p] as usize * channels + c) * filters + m];
                    let x = input.values()[i as usize * channels + c];
                    wanted[o as usize * filters + m] += mv.values()[p * size + q] * x * weight;
                }
            }
        }
    }
    let e = hand("Out[MO[p,q],m] = MV[p,q] * In[MI[p,q],c] * W[MW[p],c,m]");
    let mut operands = Operands::new();
    operands.dense("MV", &mv).dense("In", &input).dense("W", &w);
    operands.index("MO", &[groups, size], &mo).unwrap();
    operands.index("MI", &[groups, size], &mi).unwrap();
    operands.index("MW", &[groups], &mw).unwrap();
    let mut out = vec![f32::NAN; points * filters];
    cpu::run(&e, &operands, Output::new(&[points, filters], &mut out).unwrap()).unwrap();
    assert_eq!(out, wanted);
}

#[test]
fn tensor_product_of_the_paper() {
    let (b, p, q, i, j, k, l, u, w) = (3, 6, 4, 5, 4, 3, 7, 2, 8);
    let (ks, ls) = (slots(p, k as u32, 1), slots(p, l as u32, 2));
    let (is, js) = (slots(p * q, i as u32, 3), slots(p * q, j as u32, 4));
    let cg = integers::<f64>(&[p, q], 5);
    let (x, y) = (integers::<f64>(&[b, i, u], 6), integers::<f64>(&[b, j], 7));
    let weights = integers::<f64>(&[b, l, u, w], 8);
    let mut wanted = vec![0.0; b * k * w];
    let total = b * p * q * u * w;
    for n in 0..total {
        let wi = n % w;
        let ui = n / w % u;
        let qi = n / (w * u) % q;
        let pi = n / (w * u * q) % p;
        let bi = n / (w * u * q * p);
        let (kk, ll, ii, jj) = (ks[pi], ls[pi], is[pi * q + qi], js[pi * q + qi]);
        if [kk, ll, ii, jj].contains(&PAD) {
            continue;
        }
        wanted[(bi * k + kk as usize) * w + wi] += cg.get(&[pi, qi]).unwrap()
            * x.get(&[bi, ii as usize, ui]).unwrap()
            * y.get(&[bi, jj as usize]).unwrap()
            * weights.get(&[bi, ll as usize, ui, wi]).unwrap();
    }
    let e = hand("Out[b,K[p],w] += CG[p,q] * X[b,I[p,q],u] * Y[b,J[p,q]] * W[b,L[p],u,w]");
    let mut operands = Operands::new();
    operands.dense("CG", &cg).dense("X", &x).dense("Y", &y).dense("W", &weights);
    operands.index("K", &[p], &ks).unwrap().index("L", &[p], &ls).unwrap();
    operands.index("I", &[p, q], &is).unwrap().index("J", &[p, q], &js).unwrap();
    let mut out = vec![1.0; b * k * w];
    cpu::run(&e, &operands, Output::new(&[b, k, w], &mut out).unwrap()).unwrap();
    let wanted: Vec<f64> = wanted.iter().map(|v| v + 1.0).collect();
    assert_eq!(out, wanted);
}

#[test]
fn nested_gathers_strides_and_pitch() {
    let x = [2u32, 0, 1];
    let y = [1u32, PAD, 0, 2];
    let b: Vec<f32> = (0..12).map(|v| v as f32).collect();
    // B[r,n] is the transpose of a 4 x 3 array; Y[X[i]] = 0, 1, PAD.
    let e = hand("C[i,n] = B[Y[X[i]],n]");
    let mut operands = Operands::new();
    operands.index("X", &[3], &x).unwrap().index("Y", &[4], &y).unwrap();
    operands.strided("B", &[3, 4], &[1, 3], &b).unwrap();
    let mut out = [-1.0f32; 14];
    cpu::run(&e, &operands, Output::with_row_stride(&[3, 4], 5, &mut out).unwrap()).unwrap();
    let row = |r: usize| [r, 3 + r, 6 + r, 9 + r].map(|v| v as f32);
    let wanted = [&row(0)[..], &[-1.0], &row(1), &[-1.0], &[0.0; 4]].concat();
    assert_eq!(out.as_slice(), wanted);
}

#[test]
fn errors_name_array_and_numbers() {
    let e = hand("C[M[p],n] = a * V[p] * B[K[p],n]");
    let v = integers::<f32>(&[3], 1);
    let b = integers::<f32>(&[4, 2], 2);
    let (m, k) = ([0u32, 1, 5], [3u32, PAD, 0]);
    let run = |operands: &Operands<'_, f32>, shape: &[usize]| {
        let mut out = Dense::from_fn(shape.to_vec(), |_| 7.0f32).unwrap();
        let result = cpu::run(&e, operands, Output::new(shape, out.values_mut()).unwrap());
        assert!(result.is_ok() || out.values().iter().all(|v| *v == 7.0), "untouched on an error");
        result
    };
    let mut operands = Operands::new();
    operands.dense("V", &v).dense("B", &b).scalar("a", 2.0);
    operands.index("M", &[3], &m).unwrap();
    let missing = run(&operands, &[6, 2]).unwrap_err();
    assert_error!(missing, Error::MissingOperand { name, .. } if name == "K");
    operands.index("K", &[3], &k).unwrap();
    run(&operands, &[6, 2]).unwrap();
    let bound = run(&operands, &[5, 2]).unwrap_err();
    assert_eq!(
        bound,
        Error::InvalidIndex {
            array: "M".into(),
            position: 2,
            value: 5,
            of: "axis 0 of `C[M[p],n]`".into(),
            bound: 5
        }
    );
    let shape = run(&operands, &[6, 3]).unwrap_err();
    assert_error!(shape, Error::Shape { index, .. } if index == "n");
    let rank = run(&operands, &[12]).unwrap_err();
    assert_error!(rank, Error::Shape { index, .. } if index == "C");
    let four = [0u32, 1, 2, 3];
    operands.index("K", &[4], &four).unwrap();
    let extent = run(&operands, &[6, 2]).unwrap_err();
    assert_error!(extent, Error::Shape { index, .. } if index == "p");
    assert!(operands.index("K", &[3], &four).is_err());
    assert!(operands.strided("B", &[4, 2], &[3, 1], b.values()).is_err());
    assert!(operands.strided("B", &[4, 2], &[1], b.values()).is_err());
    assert!(Output::new(&[2, 2], &mut [0.0f32; 5]).is_err());
    assert!(Output::with_row_stride(&[2, 2], 1, &mut [0.0f32; 5]).is_err());
    assert!(Output::with_row_stride(&[2, 2], 4, &mut [0.0f32; 5]).is_err());
}
