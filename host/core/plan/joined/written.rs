//! Rewriting of an Einsum to an IndirectEinsum over position lists, for several sparse operands and sparse outputs. The
//! result has only dense operands and index arrays.

use std::collections::{BTreeMap, BTreeSet};

use crate::einsum::{Access, Einsum, IndexExpr};
use crate::families::tensor::join::Table;
use crate::indirect::IndirectEinsum;
use crate::indirect::rewrite::{fresh, substitute_all};

/// Expression over position lists, and its new names.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) einsum: Einsum,
    pub(crate) indirect: IndirectEinsum,
    /// Names and values of index arrays with one axis.
    pub(crate) lists: Vec<(String, Vec<u32>)>,
    /// Names of sparse tensors, and of their flat arrays of values.
    pub(crate) values: Vec<(String, String)>,
}

struct Names {
    tensors: BTreeSet<String>,
    loops: BTreeSet<String>,
}

impl Names {
    fn of(e: &Einsum) -> Names {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        Names { tensors: owned(e.names()), loops: owned(e.index_names()) }
    }
}

/// Rewrites the expression over the rows of `table`. Its tensors are the sparse output, if there is one, and the
/// factors with these indices.
pub(crate) fn write_joined(
    e: &Einsum,
    table: Table,
    factors: &[usize],
    sparse_output: bool,
) -> Written {
    let mut names = Names::of(e);
    let row = fresh(&mut names.loops, "p");
    let mut lists = Vec::new();
    let mut values: Vec<(String, String)> = Vec::new();
    let mut accesses = Vec::new();
    let of_factors = factors.iter().map(|&f| e.factors[f].tensor.as_str());
    let tensors = sparse_output.then_some(e.out.tensor.as_str());
    let rows = table.rows();
    for (at, (tensor, (slots, all))) in
        tensors.into_iter().chain(of_factors).zip(table.slots).enumerate()
    {
        let own = values_of(tensor, &mut values, &mut names);
        // A tensor whose slots are all listed in order is read without a list.
        let plain = rows == all && (0..).zip(&slots).all(|(i, &slot)| i == slot);
        let index = if plain {
            IndexExpr::Name(row.clone())
        } else {
            let letter = char::from(b'P' + (at % 8) as u8);
            let list = fresh(&mut names.tensors, &letter.to_string());
            lists.push((list.clone(), slots));
            slot_of(&list, &row)
        };
        accesses.push(Access { tensor: own, indices: vec![index] });
    }
    let base = tensors.unwrap_or_default();
    let mut map = BTreeMap::new();
    for (name, data) in table.names.iter().zip(table.values) {
        if !is_read(e, name, factors, sparse_output) {
            continue;
        }
        let list = fresh(&mut names.tensors, &format!("{base}{}", name.to_uppercase()));
        map.insert(name.as_str(), slot_of(&list, &row));
        lists.push((list, data));
    }
    let einsum = rewritten(e, &map, factors, sparse_output, accesses);
    let indirect = substitute_all(&einsum, &BTreeMap::new());
    Written { einsum, indirect, lists, values }
}

/// Returns the name of the array with the values of a tensor, one per tensor.
fn values_of(tensor: &str, values: &mut Vec<(String, String)>, names: &mut Names) -> String {
    if let Some((_, own)) = values.iter().find(|(of, _)| of == tensor) {
        return own.clone();
    }
    let own = fresh(&mut names.tensors, &format!("{tensor}V"));
    values.push((tensor.to_owned(), own.clone()));
    own
}

fn slot_of(list: &str, row: &str) -> IndexExpr {
    IndexExpr::Access(Access {
        tensor: list.to_owned(),
        indices: vec![IndexExpr::Name(row.to_owned())],
    })
}

/// Whether the output or a dense factor reads this index.
fn is_read(e: &Einsum, name: &str, factors: &[usize], sparse_output: bool) -> bool {
    let mut read = false;
    let mut visit = |n: &str| read |= n == name;
    if !sparse_output {
        e.out.for_each_name(&mut visit);
    }
    let dense = e.factors.iter().enumerate();
    for (_, access) in dense.filter(|(f, _)| !factors.contains(f)) {
        access.for_each_name(&mut visit);
    }
    read
}

fn rewritten(
    e: &Einsum,
    map: &BTreeMap<&str, IndexExpr>,
    factors: &[usize],
    sparse_output: bool,
    mut accesses: Vec<Access>,
) -> Einsum {
    let mut own = e.clone();
    own.out = if sparse_output { accesses.remove(0) } else { substitute(&e.out, map) };
    for (f, access) in own.factors.iter_mut().enumerate() {
        *access = match factors.iter().position(|&own| own == f) {
            Some(at) => accesses[at].clone(),
            None => substitute(access, map),
        };
    }
    let epilogue = [&mut own.epilogue.bias, &mut own.epilogue.gate];
    for access in epilogue.into_iter().flatten() {
        *access = substitute(access, map);
    }
    own.text = own.to_string();
    own
}

fn substitute(access: &Access, map: &BTreeMap<&str, IndexExpr>) -> Access {
    let index = |index: &IndexExpr| match index {
        IndexExpr::Name(n) => map.get(n.as_str()).unwrap_or(index).clone(),
        IndexExpr::Access(a) => IndexExpr::Access(substitute(a, map)),
        IndexExpr::Sum(_) => unreachable!("sums are index arrays here"),
    };
    Access { tensor: access.tensor.clone(), indices: access.indices.iter().map(index).collect() }
}
