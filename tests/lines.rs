//! docs/lines.md: every line of its first table parses, plans and runs.

use std::collections::BTreeMap;
use std::path::Path;

use einsparse::einsum::{Access, Einsum, IndexExpr};
use einsparse::formats::{AnySparse, Coo, CooPattern, Dense};
use einsparse::{Context, Operand};

use crate::support::dense::wide;
use crate::support::runs::sampled_plan_of;
use crate::support::skipped;

/// Application, expression, and sparse operands with their formats.
fn rows(page: &str) -> Vec<(String, String, BTreeMap<String, String>)> {
    let table = page.lines().skip_while(|l| !l.starts_with("| application | the line"));
    let rows = table.skip(2).take_while(|l| l.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        assert_eq!(cells[3], "1", "{row}: one line each");
        let mut sparse = BTreeMap::new();
        if let Some((names, format)) = cells[2].split_once(": ").filter(|(n, _)| *n != "none") {
            for name in names.split(", ") {
                sparse.insert(name.to_owned(), format.to_owned());
            }
        }
        (cells[0].into(), cells[1].trim_matches('`').into(), sparse)
    })
    .collect()
}

const EXTENT: usize = 8;

/// Nonzeros at every third position of a tensor of this order.
fn sparse(order: usize, format: &str) -> AnySparse<f32> {
    let places = (0..EXTENT.pow(order as u32)).step_by(3);
    let axis = |axis: usize| -> Vec<u32> {
        let digit = |p: usize| (p / EXTENT.pow((order - 1 - axis) as u32) % EXTENT) as u32;
        places.clone().map(digit).collect()
    };
    let pattern = CooPattern::new(vec![EXTENT; order], (0..order).map(axis).collect()).unwrap();
    let values = vec![1.0f32; pattern.coords()[0].len()];
    let coo = AnySparse::Coo(Coo::new(pattern, values).unwrap());
    coo.convert(format.parse().unwrap()).unwrap()
}

fn run(line: &str, formats: &BTreeMap<String, String>) -> f64 {
    let e = Einsum::parse(line).unwrap();
    let (mut tensors, mut index) = (Vec::new(), Vec::new());
    let mut add = |access: &Access, nested: bool| match formats.get(&access.tensor) {
        _ if nested => index.push(access.tensor.clone()),
        Some(format) => tensors.push((
            access.tensor.clone(),
            Some(sparse(access.indices.len(), format)),
            access.indices.len(),
        )),
        None => tensors.push((access.tensor.clone(), None, access.indices.len())),
    };
    for access in e.factors.iter().chain([&e.out]) {
        for i in &access.indices {
            if let IndexExpr::Access(a) = i {
                add(a, true);
            }
        }
    }
    e.factors.iter().for_each(|a| add(a, false));
    let ctx = Context::cpu();
    let ones = |order: usize| Dense::from_fn(vec![EXTENT; order], |_| 1.0f32).unwrap();
    let dense: Vec<Dense<f32>> = tensors.iter().map(|t| ones(t.2)).collect();
    let slots: Vec<u32> = (0..EXTENT as u32).collect();
    let mut operands: Vec<(&str, Operand<'_, f32>)> = Vec::new();
    for ((name, sparse, _), dense) in tensors.iter().zip(&dense) {
        operands.push((name, sparse.as_ref().map_or_else(|| dense.into(), |a| a.into())));
    }
    for name in &index {
        operands.push((name, (&[EXTENT][..], &slots[..]).into()));
    }
    let stream = ctx.stream().unwrap();
    if let Some(format) = formats.get(&e.out.tensor) {
        let mut out = ctx.upload(sparse(e.out.indices.len(), format)).unwrap();
        let uploaded: Vec<_> = tensors
            .iter()
            .filter_map(|(n, a, _)| Some((n, ctx.upload(a.as_ref()?).unwrap())))
            .collect();
        operands.retain(|(n, _)| !uploaded.iter().any(|(own, _)| own == n));
        operands.extend(uploaded.iter().map(|(n, a)| (n.as_str(), a.into())));
        let plan = sampled_plan_of(&ctx, line, &operands, &out);
        operands.retain(|(_, operand)| !matches!(operand, Operand::Index(..)));
        plan.run(&operands, &mut out, &stream).unwrap();
        let values = out.to_host().unwrap();
        return values.values().iter().map(|&v| f64::from(v)).sum();
    }
    let shape = ctx.zeros::<f32>(&vec![EXTENT; e.out.indices.len()]).unwrap();
    if !index.is_empty() {
        operands.push((&e.out.tensor, (&shape).into()));
    }
    let plan = ctx.plan(line).operands(&operands).build().unwrap();
    let mut out = ctx.zeros(plan.out_shape()).unwrap();
    // Index arrays are part of the plan.
    operands.retain(|(_, operand)| !matches!(operand, Operand::Index(..)));
    plan.run(&operands, &mut out, &stream).unwrap();
    wide(&out).iter().sum()
}

#[test]
fn every_line_of_the_table_runs() {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", "docs/lines.md");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lines.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows = rows(&page);
    assert!(rows.len() > 10, "{}", rows.len());
    for (application, line, formats) in rows {
        // All operands are ones, so the sum is the number of terms.
        assert!(run(&line, &formats) > 0.0, "{application}: {line}");
    }
}
