//! Times of the large conversions and checks: `cargo test --release -p einsparse-formats -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use einsparse_formats::{
    BlockGroupCooPattern, CooPattern, Csr, CsrPattern, GroupCooPattern, Pattern, convert,
};

const ROWS: usize = 32 * 1024;

/// About 10 million nonzeros in 32 x 32 blocks. One in `thin` elements of a block is a nonzero.
fn blocks(thin: u64) -> Csr<f32> {
    let per_row = 10 * thin as usize;
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for _ in 0..ROWS / 32 {
        let touched: std::collections::BTreeSet<u64> =
            (0..per_row).map(|_| next() % (ROWS as u64 / 32)).collect();
        for _ in 0..32 {
            for &block in &touched {
                let keep = |c: &u64| thin == 1 || (next() >> 8) % thin == 0 || c % 32 == 40;
                columns.extend((block * 32..block * 32 + 32).filter(keep).map(|c| c as u32));
            }
            offsets.push(columns.len() as u32);
        }
    }
    let values = (0..columns.len()).map(|i| (i % 7) as f32 + 1.0).collect();
    Csr::new(CsrPattern::new(ROWS, ROWS, offsets, columns).unwrap(), values).unwrap()
}

fn best<R>(name: &str, mut f: impl FnMut() -> R) -> Duration {
    let time = |_| {
        let start = Instant::now();
        let result = f();
        let time = start.elapsed();
        drop(result);
        time
    };
    let times: Vec<Duration> = (0..4).map(time).collect();
    let least = *times.iter().min().unwrap();
    println!("{name}: first {:?}, best {least:?}", times[0]);
    least
}

#[test]
#[ignore = "needs a release build and a quiet machine"]
fn ten_million_entries() {
    for (name, thin) in [("full", 1), ("half", 2)] {
        let a = blocks(thin);
        println!("{name}: {} entries, {} threads", a.nnz(), rayon::current_num_threads());
        let half_second = Duration::from_millis(500);
        for group in [None, Some(4)] {
            let what = format!("csr_to_block_group_coo {name} {group:?}");
            let time =
                best(&what, || convert::csr_to_block_group_coo(&a, (32, 32), group).unwrap());
            assert!(time <= half_second, "{what}: {time:?}");
        }
        let grouped = convert::csr_to_block_group_coo(&a, (32, 32), None).unwrap();
        println!("{name}: group {}, {} slots", grouped.pattern().group(), grouped.slots());
        best("block_group_coo_to_csr", || convert::block_group_coo_to_csr(&grouped).unwrap());
        best("csr_to_bsr", || convert::csr_to_bsr(&a, (32, 32)).unwrap());
        best("csr_to_group_coo", || convert::csr_to_group_coo(&a, None).unwrap());
        best("csr_to_coo", || convert::csr_to_coo(&a).unwrap());
        best("csr_to_csc", || convert::csr_to_csc(&a).unwrap());
        checks(&a);
    }
}

/// Times the constructors, over arrays cloned beforehand.
fn checks(a: &Csr<f32>) {
    let mut copies: Vec<_> =
        (0..4).map(|_| (a.pattern().offsets().to_vec(), a.pattern().columns().to_vec())).collect();
    best("CsrPattern::new", || {
        let (offsets, columns) = copies.pop().unwrap();
        CsrPattern::new(ROWS, ROWS, offsets, columns).unwrap()
    });
    let coo = convert::csr_to_coo(a).unwrap();
    let mut copies: Vec<_> = (0..4).map(|_| coo.pattern().coords().to_vec()).collect();
    best("CooPattern::new", || CooPattern::new(vec![ROWS; 2], copies.pop().unwrap()).unwrap());
    let g = convert::csr_to_group_coo(a, None).unwrap();
    let p = g.pattern();
    let mut copies: Vec<_> =
        (0..4).map(|_| (p.group_index().to_vec(), p.others().to_vec())).collect();
    best("GroupCooPattern::new", || {
        let (index, others) = copies.pop().unwrap();
        GroupCooPattern::new(p.shape().to_vec(), 0, p.group(), index, others).unwrap()
    });
    let g = convert::csr_to_block_group_coo(a, (32, 32), None).unwrap();
    let p = g.pattern();
    best("BlockGroupCooPattern::new", || {
        let (rows, cols) = (p.block_rows().to_vec(), p.block_cols().to_vec());
        BlockGroupCooPattern::new(ROWS, ROWS, (32, 32), p.group(), rows, cols).unwrap()
    });
}
