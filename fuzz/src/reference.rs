//! Reference: the expression by plain loops in f64, term by term.

use std::collections::BTreeMap;

use einsparse::einsum::{Access, Activation, Einsum, Extents, IndexExpr, Mode, Scalar};
use einsparse::formats::Dense;

/// Value of a name.
pub enum Value {
    Dense(Dense<f64>),
    Index(Vec<usize>, Vec<u32>),
    Number(f64),
}

pub type Values = BTreeMap<String, Value>;

/// Position that an access reads; `None` for a padding slot.
fn place(access: &Access, at: &BTreeMap<&str, usize>, values: &Values) -> Option<Vec<usize>> {
    let one = |index: &IndexExpr| match index {
        IndexExpr::Name(name) => Some(at[name.as_str()]),
        IndexExpr::Sum(terms) => {
            let term = |t: &einsparse::einsum::Term| t.factor * at[t.index.as_str()];
            Some(terms.iter().map(term).sum())
        }
        IndexExpr::Access(array) => {
            let inner = place(array, at, values)?;
            let Value::Index(shape, slots) = &values[&array.tensor] else {
                panic!("{array} is no index array");
            };
            let slot = inner.iter().zip(shape).fold(0, |n, (i, extent)| n * extent + i);
            Some(slots[slot] as usize).filter(|slot| *slot != u32::MAX as usize)
        }
    };
    access.indices.iter().map(one).collect()
}

fn read(access: &Access, at: &BTreeMap<&str, usize>, values: &Values) -> Option<f64> {
    let place = place(access, at, values)?;
    match &values[&access.tensor] {
        Value::Dense(dense) => Some(dense.get(&place).expect("inside")),
        _ => panic!("{access} is not dense"),
    }
}

fn points<'a>(
    names: &[&'a str],
    extents: &Extents,
    mut each: impl FnMut(&BTreeMap<&'a str, usize>),
) {
    let extents: Vec<usize> = names.iter().map(|n| extents.get(n).expect("known")).collect();
    for mut point in 0..extents.iter().product::<usize>() {
        let mut at = BTreeMap::new();
        for (name, extent) in names.iter().zip(&extents).rev() {
            at.insert(*name, point % extent);
            point /= extent;
        }
        each(&at);
    }
}

/// Computes the output from its previous content `before`. Returns `None` for epilogues that this reference does not
/// support: GELU, or an output that scatters or repeats an index.
pub fn result(
    e: &Einsum,
    extents: &Extents,
    values: &Values,
    before: &Dense<f64>,
) -> Option<Dense<f64>> {
    let mut sums: Dense<f64> = Dense::zeros(extents.out().to_vec()).expect("small");
    let strides = sums.strides();
    let slot = |place: &[usize]| place.iter().zip(&strides).map(|(i, s)| i * s).sum::<usize>();
    let scale: f64 = e
        .scalars
        .iter()
        .map(|scalar| match scalar {
            Scalar::Literal(x) => *x,
            Scalar::Name(name) => match &values[name] {
                Value::Number(x) => *x,
                Value::Dense(dense) => dense.values()[0],
                Value::Index(..) => panic!("`{name}` is an index array"),
            },
        })
        .product();
    let names = e.index_names();
    points(&names, extents, |at| {
        let factor = |access: &Access| read(access, at, values);
        let term = e.factors.iter().map(factor).product::<Option<f64>>();
        if let (Some(term), Some(to)) = (term, place(&e.out, at, values)) {
            sums.values_mut()[slot(&to)] += scale * term;
        }
    });
    let plain = |index: &IndexExpr| matches!(index, IndexExpr::Name(_));
    let epilogue = &e.epilogue;
    let has_epilogue = epilogue.bias.is_some()
        || epilogue.gate.is_some()
        || epilogue.activation != Activation::Identity;
    if has_epilogue && !e.out.indices.iter().all(plain) || epilogue.activation == Activation::Gelu {
        return None;
    }
    let mut out_names: Vec<&str> = Vec::new();
    e.out.for_each_name(&mut |name| out_names.push(name));
    let mut repeated = out_names.clone();
    repeated.sort_unstable();
    repeated.dedup();
    if has_epilogue && repeated.len() < out_names.len() {
        return None;
    }
    if has_epilogue {
        points(&out_names, extents, |at| {
            let to = slot(&place(&e.out, at, values).expect("plain"));
            let sum: &mut f64 = &mut sums.values_mut()[to];
            if let Some(bias) = &epilogue.bias {
                *sum += read(bias, at, values).expect("plain");
            }
            if epilogue.activation == Activation::Relu {
                *sum = sum.max(0.0);
            }
            if let Some(gate) = &epilogue.gate {
                let open = read(gate, at, values).expect("plain") > 0.0;
                *sum = if open { *sum } else { 0.0 };
            }
        });
    }
    if e.mode == Mode::Accumulate {
        let old = before.values().iter();
        sums.values_mut().iter_mut().zip(old).for_each(|(sum, old)| *sum += old);
    }
    Some(sums)
}
