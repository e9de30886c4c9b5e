//! Bytes that grouped formats take in comparison with CSR, over the matrices of the Deep Learning Matrix Collection in
//! EINSPARSE_DATA: `cargo bench --bench cpu_bytes -- [--out FILE]`. Bytes of f32 values and u32 indices are counted in
//! the converted tensors.

mod smtx;

use std::io::Write;

use einsparse::formats::{AnySparse, Csr, Format, io};

/// Bytes of index arrays, values, and the table of classes.
fn bytes(tensor: &AnySparse<f32>) -> usize {
    let index: usize = tensor.arrays().iter().map(|a| a.data.len()).sum();
    let classes = match tensor {
        AnySparse::HybridGroupCoo(a) => a.pattern().classes().len() * 8,
        _ => 0,
    };
    4 * (index + tensor.slots()) + classes
}

fn geomean(ratios: impl Iterator<Item = f64>) -> (f64, usize) {
    let logs: Vec<f64> = ratios.map(f64::ln).collect();
    let mean = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
    (mean.exp(), logs.len())
}

fn main() {
    let root = smtx::data_folder().join("dlmc");
    let paths = smtx::files(&root);
    if paths.is_empty() {
        println!("no matrices in {}: nothing to count", root.display());
        return;
    }
    let mut lines = vec![
        "matrix,rows,cols,entries,empty rows,csr bytes,group,groupcoo bytes,classes,hybrid bytes"
            .to_owned(),
    ];
    let (mut grouped, mut hybrid) = (Vec::new(), Vec::new());
    for path in paths {
        let pattern = io::read_smtx(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let entries = pattern.columns().len();
        let empty = pattern.offsets().windows(2).filter(|w| w[0] == w[1]).count();
        let (rows, cols) = (pattern.rows(), pattern.cols());
        let csr =
            AnySparse::from(Csr::new(pattern, vec![1.0f32; entries]).expect("one value each"));
        let groups = csr.convert(Format::GroupCoo { axis: 0, group: None }).expect("fits");
        let mixed = csr.convert(Format::HybridGroupCoo).expect("fits");
        let (AnySparse::GroupCoo(one), AnySparse::HybridGroupCoo(many)) = (&groups, &mixed) else {
            unreachable!("converted to these");
        };
        let sizes = [&csr, &groups, &mixed].map(bytes);
        let classes: Vec<String> =
            many.pattern().classes().iter().map(|c| c.group.to_string()).collect();
        let name = path.strip_prefix(&root).unwrap_or(&path).display();
        lines.push(format!(
            "{name},{rows},{cols},{entries},{empty},{},{},{},{},{}",
            sizes[0],
            one.pattern().group(),
            sizes[1],
            classes.join(" "),
            sizes[2]
        ));
        // Without nonzeros, groups take 0 bytes, whose logarithm is undefined.
        if entries == 0 {
            continue;
        }
        let whole = empty == 0;
        grouped.push((sizes[1] as f64 / sizes[0] as f64, whole));
        hybrid.push((sizes[2] as f64 / sizes[0] as f64, whole));
    }
    if let Some(at) = std::env::args().position(|a| a == "--out") {
        let path = std::env::args().nth(at + 1).expect("--out FILE");
        let mut file = std::fs::File::create(&path).expect("a file to write");
        lines.iter().for_each(|l| writeln!(file, "{l}").expect("written"));
    }
    for (name, ratios) in [("groupcoo", &grouped), ("groupcoo:hybrid", &hybrid)] {
        let (all, count) = geomean(ratios.iter().map(|r| r.0));
        let (whole, of) = geomean(ratios.iter().filter(|r| r.1).map(|r| r.0));
        let worst = ratios.iter().map(|r| r.0).fold(0.0, f64::max);
        println!(
            "{name:16} {all:.3} of the bytes of CSR (geomean of {count}), {whole:.3} of the {of} without empty rows, \
             worst {worst:.3}"
        );
    }
}
