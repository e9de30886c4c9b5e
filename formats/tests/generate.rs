//! Generated inputs: sizes, statistics, determinism, and the mathematical properties that they must have.

use einsparse_formats::generate::*;
use einsparse_formats::{CsrPattern, Element, Pattern, bf16, f16, io};

mod files;

use files::data;

/// FNV-1a, to check that generated indices have equal bits on every platform.
fn hash(indices: &[u32]) -> u64 {
    let bytes = indices.iter().flat_map(|index| index.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn lengths(pattern: &CsrPattern) -> Vec<usize> {
    pattern.offsets().windows(2).map(|ends| (ends[1] - ends[0]) as usize).collect()
}

/// Mean and standard deviation of row lengths, and number of empty rows.
fn statistics(pattern: &CsrPattern) -> (f64, f64, usize) {
    let lengths = lengths(pattern);
    let rows = lengths.len() as f64;
    let mean = lengths.iter().sum::<usize>() as f64 / rows;
    let square = lengths.iter().map(|length| (*length as f64 - mean).powi(2)).sum::<f64>() / rows;
    (mean, square.sqrt(), lengths.iter().filter(|length| **length == 0).count())
}

#[test]
fn seeds_give_the_same_bits_everywhere() {
    let pool =
        |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let made = || {
        [
            hash(rmat(10, 8, 1).unwrap().columns()),
            hash(uniform(3000, 500, 0.03, 2).unwrap().columns()),
            hash(uniform_rows(3000, 500, 16, 3).unwrap().columns()),
            hash(blocks(1000, 1000, (16, 32), 0.1, 4).unwrap().columns()),
            hash(pruned(512, 512, 0.05, 25.0, 0.1, 5).unwrap().columns()),
            hash(bytemuck::cast_slice(&random_values::<f64>(50_001, 6))),
            hash(bytemuck::cast_slice(&small_integers::<f32>(50_001, 7))),
        ]
    };
    let alone = pool(1).install(made);
    assert_eq!(alone, pool(4).install(made));
    assert_eq!(alone, EXPECTED, "{alone:#x?}");
    assert_ne!(rmat(10, 8, 1).unwrap(), rmat(10, 8, 2).unwrap());
}

const EXPECTED: [u64; 7] = [
    0x71ce97d6d7b43ef3,
    0xe4fb533e8b001a9,
    0x2d960291c88e0e8f,
    0x1adf81eb0c69391b,
    0x66a32b5e41499ed9,
    0x5aecb059c78c3a0,
    0x8384693cde49b58,
];

#[test]
fn uniform_patterns_have_their_density() {
    let pattern = uniform(4096, 4096, 0.1, 1).unwrap();
    let expected = 4096.0 * 4096.0 * 0.1;
    assert!((pattern.nnz() as f64 - expected).abs() < 5.0 * expected.sqrt());
    let mut counts = vec![0; 4096];
    pattern.columns().iter().for_each(|column| counts[*column as usize] += 1);
    assert!(counts.iter().all(|count| (250..590).contains(count)), "columns are uniform");
    assert_eq!(uniform(20, 30, 1.0, 1).unwrap().nnz(), 600);
    assert_eq!(uniform(20, 30, 0.0, 1).unwrap().nnz(), 0);
    assert_eq!(uniform(0, 0, 0.5, 1).unwrap().nnz(), 0);
    assert!(uniform(2, 2, 1.5, 1).is_err() && uniform(2, 2, f64::NAN, 1).is_err());
    for per_row in [0, 1, 16, 29, 30] {
        assert!(
            lengths(&uniform_rows(500, 30, per_row, 1).unwrap())
                .iter()
                .all(|length| *length == per_row)
        );
    }
    assert!(uniform_rows(1, 5, 6, 1).is_err());
}

#[test]
fn bands_and_blocks_have_their_counts() {
    assert_eq!(banded(1 << 12, 27).unwrap().nnz(), 27 * 4096 - 182);
    assert_eq!(banded(5, 3).unwrap().columns(), [0, 1, 0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4]);
    assert_eq!(banded(3, 99).unwrap().nnz(), 9);
    let pattern = blocks(4096, 4096, (64, 64), 0.1, 1).unwrap();
    assert_eq!(pattern.columns().len(), 410);
    assert_eq!(blocks(100, 90, (32, 32), 1.0, 1).unwrap().columns().len(), 12);
}

#[test]
fn rmat_graphs_are_skewed_and_sized_as_the_published_ones() {
    let pattern = rmat(17, 16, 1).unwrap();
    // The recorded graph of this scale has 1,942,840 nonzeros.
    assert!((1_930_000..1_955_000).contains(&pattern.nnz()), "{}", pattern.nnz());
    assert!(lengths(&pattern)[0] > 5000, "the first row is the heaviest");
    assert_eq!(rmat(0, 4, 1).unwrap().nnz(), 1);
    assert!(rmat(32, 1, 1).is_err());
}

#[test]
fn pruned_patterns_follow_the_list_of_real_ones() {
    let Some(list) = data("dlmc/CHOSEN.txt") else {
        return;
    };
    let list = std::fs::read_to_string(list).unwrap();
    for line in list.lines().filter(|line| line.contains(".smtx\t")) {
        let columns: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| columns[at].parse::<f64>().unwrap();
        let (rows, cols, nnz, empty) = (number(1), number(2), number(3), number(9));
        let (wanted_mean, wanted_std) = (nnz / rows, nnz / rows * number(8));
        let pattern =
            pruned(rows as usize, cols as usize, nnz / rows / cols, wanted_std, empty / rows, 1)
                .unwrap();
        let (mean, std, found_empty) = statistics(&pattern);
        assert_eq!((pattern.nnz() as f64, found_empty as f64), (nnz, empty), "{line}");
        assert!((mean - wanted_mean).abs() < 1e-9);
        // The list rounds the coefficient of variation to two digits.
        assert!(
            (std - wanted_std).abs() <= 0.03 * wanted_std + 0.006 * wanted_mean,
            "{std} for {wanted_std}: {line}"
        );
    }
}

#[test]
fn pruned_patterns_without_the_list() {
    for (rows, cols, density, std, empty) in [
        (2048, 512, 0.1, 25.6, 16.0 / 2048.0),
        (512, 512, 0.0625, 65.3, 273.0 / 512.0),
        (64, 64, 0.5, 0.0, 0.0),
    ] {
        let (mean, found, none) = statistics(&pruned(rows, cols, density, std, empty, 3).unwrap());
        assert!(
            (mean - density * cols as f64).abs() < 0.01 && (found - std).abs() < 0.02 * std + 0.1,
            "{found} {std}"
        );
        assert_eq!(none, (empty * rows as f64) as usize);
    }
    assert_eq!(pruned(7, 9, 1.0, 0.0, 0.0, 1).unwrap().nnz(), 63);
    assert_eq!(pruned(7, 9, 0.0, 0.0, 0.0, 1).unwrap().nnz(), 0);
    assert!(pruned(7, 9, 1.0, 0.0, 0.5, 1).is_err());
}

#[test]
fn karate_is_the_published_graph() {
    let pattern = karate();
    assert_eq!((pattern.rows(), pattern.nnz()), (34, 156));
    let degrees = lengths(&pattern);
    assert_eq!((degrees[0], degrees[33], degrees[11]), (16, 17, 1));
    let Some(path) = data("matrix-market/karate.mtx") else {
        return;
    };
    let read = io::read_matrix_market::<f32>(path).unwrap().matrix.to_csr().unwrap();
    assert_eq!(read.pattern().as_ref(), &pattern);
}

#[test]
fn random_values_are_normal_and_integers_exact() {
    let values = random_values::<f64>(200_000, 1);
    let mean = values.iter().sum::<f64>() / 2e5;
    let moment = |power: i32| values.iter().map(|value| value.powi(power)).sum::<f64>() / 2e5;
    assert!(mean.abs() < 0.01 && (moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.1);
    assert_eq!(
        random_values::<f16>(9, 1),
        values[..9].iter().map(|value| f16::from_f64(*value)).collect::<Vec<_>>()
    );
    let integers = small_integers::<bf16>(100_000, 1);
    for choice in [-2.0, -1.0, 1.0, 2.0] {
        let count = integers.iter().filter(|value| Element::to_f64(**value) == choice).count();
        assert!((24_000..26_000).contains(&count));
    }
}

#[test]
fn stencils_are_the_operators_they_discretise() {
    let matrix = poisson2d::<f64>(4, 5).unwrap();
    let (rows, dense) = (20, einsparse_formats::AnySparse::Csr(matrix).to_dense().unwrap());
    let sum = |row: usize| (0..rows).map(|col| dense.get(&[row, col]).unwrap()).sum::<f64>();
    assert_eq!((sum(0), sum(1), sum(6)), (2.0, 1.0, 0.0));
    assert_eq!(
        (dense.get(&[6, 1]), dense.get(&[6, 7]), dense.get(&[4, 5])),
        (Some(-1.0), Some(-1.0), Some(0.0))
    );
    let cube = poisson3d::<f32>(3, 3, 3).unwrap();
    assert_eq!(cube.nnz(), 27 + 2 * 54);
    assert_eq!(cube.pattern().columns()[cube.pattern().row(13)], [4, 10, 12, 13, 14, 16, 22]);
}

#[test]
fn elasticity_is_symmetric_and_ignores_rigid_motions() {
    let (nx, ny) = (3, 2);
    let matrix =
        einsparse_formats::AnySparse::Bsr(elasticity2d::<f64>(nx, ny).unwrap()).to_dense().unwrap();
    let size = 2 * (nx + 1) * (ny + 1);
    assert_eq!(matrix.shape(), [size, size]);
    let at = |row: usize, col: usize| matrix.get(&[row, col]).unwrap();
    let place = |node: usize| ((node / (ny + 1)) as f64, (node % (ny + 1)) as f64);
    for row in 0..size {
        assert!((0..size).all(|col| (at(row, col) - at(col, row)).abs() < 1e-14));
        assert!(at(row, row) > 0.1);
        let moves: [&dyn Fn(usize) -> f64; 3] =
            [&|freedom| (freedom % 2) as f64, &|freedom| 1.0 - (freedom % 2) as f64, &|freedom| {
                if freedom % 2 == 0 { -place(freedom / 2).1 } else { place(freedom / 2).0 }
            }];
        for motion in moves {
            let force: f64 = (0..size).map(|col| at(row, col) * motion(col)).sum();
            assert!(force.abs() < 1e-13, "row {row}: {force}");
        }
    }
}

#[test]
fn surfaces_are_sorted_thin_and_closed() {
    let ball = sphere_surface(10);
    assert!(ball.is_sorted() && ball.windows(2).all(|pair| pair[0] != pair[1]));
    let area = 4.0 * std::f64::consts::PI * 100.0;
    assert!((0.7 * area..1.3 * area).contains(&(ball.len() as f64)), "{}", ball.len());
    assert!(!ball.contains(&[10, 10, 10]) && ball.contains(&[0, 10, 10]));
    let ring = torus_surface(12, 4);
    assert!(ring.is_sorted() && !ring.contains(&[16, 16, 4]) && ring.contains(&[0, 16, 4]));
    assert_eq!(voxel_surface([3, 3, 3], |_| true).len(), 26);
    assert_eq!(sphere_surface(0), [[0, 0, 0]]);
}
