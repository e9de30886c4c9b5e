//! Predicts the time of a product on 1 to 1,024 GPUs, without a GPU. Rows of an R-MAT graph A, of B and of C are
//! distributed to ranks. The rows of B that each receives are counted in the pattern; times follow from bandwidths.
//!
//! `cargo run --release --example 19_scaling -- scale=22 network=90` prints a line for each number of ranks:
//!
//! - `gather`: 1-D, every rank receives all of B;
//! - `halo`: 1-D, every rank receives the rows of B that its columns name, as in `ShardedSpmm`;
//! - `c`: 1.5-D, as `halo`, but c ranks store the same rows of A, B and C. Each multiplies a share of the columns, then
//!   they sum their results (CAGNET, arXiv 2005.03300). The fastest c is shown.
//!
//! `record=FILE` also prints measured times of `cargo bench --bench gpu -- --op ranks`.

mod loads;
mod record;

use einsparse::formats::generate;

use loads::{Load, Rows};

/// Options and their defaults. Rates are GB/s of one GPU. `exchange` and `product` are within 0.5 % of
/// benches/record/h100/ranks.csv; `gather` and `reduce` are of two H200 of one host under NCCL 2.28 at 256 MB.
const GIVEN: [(&str, f64); 10] = [
    ("scale", 14.0),     // 2^scale nodes, 16 edges drawn for each
    ("shuffle", 0.0),    // 1: nodes in random order; 0: nodes with many edges first
    ("n", 128.0),        // columns of B, in f32
    ("host", 8.0),       // GPUs of a host
    ("exchange", 246.0), // rows between GPUs of a host
    ("gather", 237.0),   // all-gather within a host
    ("reduce", 278.0),   // all-reduce within a host, bytes of the buffer
    ("network", 40.0),   // between hosts: not measured, 400 Gb/s minus one fifth
    ("latency", 24.0),   // microseconds of each transfer
    ("product", 4720.0), // rows that a product reads and writes: 7.64 ms for R-MAT 22
];

fn text(name: &str) -> Option<String> {
    let value = |given: String| Some(given.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    std::env::args().find_map(value)
}

fn given(name: &str) -> f64 {
    let other = GIVEN.iter().find(|(of, _)| *of == name).unwrap().1;
    text(name).map_or(other, |value| value.parse().expect("a number"))
}

/// Milliseconds for `rows` rows at a rate.
fn ms(rows: f64, rate: &str) -> f64 {
    rows * given("n") * 4.0 / given(rate) / 1e6
}

/// Time of transfers within the host and across hosts, which overlap.
fn sending(rows: Rows, within: f64, across: f64) -> f64 {
    match rows {
        [0.0, 0.0] => 0.0,
        _ => given("latency") / 1e3 + within.max(across),
    }
}

/// Exchange of rows. Each rank has its own network link.
fn exchange(rows: Rows) -> f64 {
    sending(rows, ms(rows[0], "exchange"), ms(rows[1], "network"))
}

/// All-gather. The GPUs of a host receive one share each from the network and pass it on within the host.
fn gather(rows: Rows) -> f64 {
    let share = rows[1] / given("host");
    sending(rows, ms(rows[0] + rows[1], "gather"), ms(share, "network"))
}

/// Time of a product after its transfer, without overlap.
fn behind(load: &Load, sending: f64) -> f64 {
    ms(load.product, "product") + sending
}

fn halo(load: &Load) -> f64 {
    behind(load, exchange(load.named).max(exchange(load.sent)))
}

/// Maximum over ranks.
fn most(loads: &[Load], of: impl Fn(&Load) -> f64) -> f64 {
    loads.iter().map(of).fold(0.0, f64::max)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let known = |name: &str| name == "record" || GIVEN.iter().any(|(of, _)| *of == name);
    for given in std::env::args().skip(1) {
        let name = given.split('=').next().filter(|name| name.len() < given.len());
        assert!(name.is_none_or(known), "{given} is none of {GIVEN:?}, record=FILE");
    }
    let mut a = generate::rmat(given("scale") as u32, 16, 1)?;
    if given("shuffle") > 0.0 {
        a = loads::shuffled(&a)?;
    }
    let [nodes, entries] = [a.rows(), a.columns().len()];
    println!("{nodes} nodes, {entries} entries; milliseconds");
    println!(
        "ranks  product | gather MB     time |   halo MB     time speedup |  c     time speedup"
    );
    let (n, host) = (given("n"), given("host") as usize);
    let megabytes = |rows: Rows| (rows[0] + rows[1]) * n * 4.0 / 1e6;
    let graph = format!("rmat{}", given("scale"));
    let record = text("record").map_or(Ok(Vec::new()), |path| record::read(path, &graph, n))?;
    let mut alone = 0.0;
    for ranks in (0..=10).map(|power| 1 << power) {
        let one = loads::loads(&a, ranks, 1, n, host);
        let product = most(&one, |rank| ms(rank.product, "product"));
        let gathered = most(&one, |rank| behind(rank, gather(rank.all)));
        let named = most(&one, halo);
        let all_mb = most(&one, |rank| megabytes(rank.all));
        let named_mb = most(&one, |rank| megabytes(rank.named));
        print!("{ranks:>5} {product:>8.3} | {all_mb:>9.1} {gathered:>8.3} |");
        if ranks == 1 {
            alone = product;
            assert_eq!([all_mb, named_mb], [0.0; 2]);
            assert_eq!([gathered, named], [product; 2]);
        }
        print!(" {named_mb:>9.1} {named:>8.3} {:>7.1} |", alone / named);
        let fewer = |rank: &Load| (0..2).all(|way| rank.named[way] <= rank.all[way]);
        assert!(one.iter().all(fewer));
        let mut best = (0, f64::INFINITY);
        let sum = |loads: &[Load]| loads.iter().map(|rank| megabytes(rank.all)).sum::<f64>();
        let mut sent = sum(&one);
        for c in [2, 4, 8].into_iter().filter(|c| c * c <= ranks) {
            let shared = loads::loads(&a, ranks, c, n, host);
            assert!(sum(&shared) < sent, "{c} replicas save nothing");
            sent = sum(&shared);
            let adding = |rank: &Load| ms(rank.c, "reduce") + given("latency") / 1e3;
            let time = most(&shared, |rank| halo(rank) + adding(rank));
            best = if time < best.1 { (c, time) } else { best };
        }
        match best {
            (0, _) => println!(),
            (c, time) => println!(" {c:>2} {time:>8.3} {:>7.1}", alone / time),
        }
        for (name, predicted) in [("replicated", product), ("sharded", named)] {
            let same = |(variant, _): &&(String, f64)| *variant == format!("{name}+{ranks}");
            if let Some((_, measured)) = record.iter().find(same) {
                println!("      {name}: {predicted:.3} predicted, {measured:.3} measured");
            }
        }
    }
    Ok(())
}
