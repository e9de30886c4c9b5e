//! Writers and readers together: round trips bit for bit, preserved formats, corner cases of Matrix Market, large
//! files.

use einsparse_formats::io::*;
use einsparse_formats::{
    AnySparse, Bsr, BsrPattern, Coo, Csr, Dense, Element, Format, Pattern, bf16, f16, generate,
};

mod files;

use files::{scratch, sparse};

fn random<T: Element>(rows: usize, cols: usize) -> Csr<T> {
    let pattern = generate::uniform(rows, cols, 0.2, 5).unwrap();
    let mut values = generate::random_values::<T>(pattern.nnz(), 6);
    let unusual =
        [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1e-7, -3e-42, 6e4, 1.0 / 3.0, 1e300];
    for (value, unusual) in values.iter_mut().zip(unusual) {
        *value = T::from_f64(unusual);
    }
    Csr::new(pattern, values).unwrap()
}

fn bits<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn round_trip<T: Element>() {
    let csr = random::<T>(37, 23);
    for extension in ["mtx", "npz"] {
        let path = scratch(&format!("csr-{}.{extension}", T::NAME));
        write_any(&path, &Loaded::Sparse(AnySparse::Csr(csr.clone()))).unwrap();
        let back = read_any::<T>(&path).unwrap().to_csr().unwrap();
        assert_eq!(back.pattern(), csr.pattern());
        assert_eq!(bits(back.values()), bits(csr.values()), "{} {extension}", T::NAME);
    }
    let dense = Dense::new(vec![9, 14], generate::random_values::<T>(126, 1)).unwrap();
    for extension in ["mtx", "npy"] {
        let path = scratch(&format!("dense-{}.{extension}", T::NAME));
        write_any(&path, &Loaded::Dense(dense.clone())).unwrap();
        assert_eq!(read_any::<T>(&path).unwrap(), Loaded::Dense(dense.clone()));
    }
}

#[test]
fn written_files_read_back_bit_for_bit() {
    round_trip::<f32>();
    round_trip::<f64>();
    round_trip::<f16>();
    round_trip::<bf16>();
    let pattern = random::<f32>(20, 30).pattern().clone();
    write_matrix_market_pattern(scratch("pattern.mtx"), &pattern).unwrap();
    let back = read_matrix_market::<f32>(scratch("pattern.mtx")).unwrap();
    assert_eq!(back.header.field, Field::Pattern);
    assert_eq!(back.matrix.to_csr().unwrap().pattern(), &pattern);
}

#[test]
fn scipy_archives_keep_their_format() {
    let any = AnySparse::Csr(random::<f32>(37, 23));
    let bsr_pattern = BsrPattern::new(5, 7, (2, 3), vec![0, 2, 2, 3], vec![0, 2, 1]).unwrap();
    let bsr = Bsr::new(bsr_pattern, (0..18).map(|value| value as f32).collect()).unwrap();
    let AnySparse::Coo(coo) = any.convert(Format::Coo).unwrap() else { panic!() };
    let AnySparse::Csc(csc) = any.convert(Format::Csc).unwrap() else { panic!() };
    let path = scratch("kept.npz");
    write_npz_compressed(&path, &coo).unwrap();
    assert_eq!(read_npz::<f32>(&path).unwrap(), AnySparse::Coo(coo));
    write_npz_compressed(&path, &csc).unwrap();
    assert_eq!(read_npz::<f32>(&path).unwrap(), AnySparse::Csc(csc));
    write_npz(&path, &bsr).unwrap();
    assert_eq!(read_npz::<f32>(&path).unwrap(), AnySparse::Bsr(bsr));
}

fn mtx(text: &str) -> Result<Coo<f32>, String> {
    let read = read_matrix_market_from::<f32>(text.as_bytes(), "here")
        .map_err(|error| error.to_string())?;
    let AnySparse::Coo(coo) = sparse(read.matrix) else { panic!("not COO") };
    Ok(coo)
}

/// Text after the banner, and a part of the error.
const FAULTS: &[(&str, &str)] = &[
    ("coordinate integer general\n2 2 1\n1 1 1.5\n", "here:3: value is not an integer: `1.5`"),
    (
        "coordinate real general\n2 2 1\n1 1 1e39\n",
        "here:3: value `1e39` is out of the range of f32",
    ),
    ("coordinate real general\n2 2 1\n-1 1 1\n", "here:3: row index -1 is below 1"),
    (
        "coordinate real general\n2 2 1\n1 99999999999999999999999 1\n",
        "column index 99999999999999999999999 is past 2",
    ),
    ("coordinate real general\n2 2 1\n1 1 1 1\n", "here:3: three numbers expected, four found"),
    ("coordinate real hermitian\n2 2 1\n", "here:1: symmetry hermitian is not supported"),
    ("array real symmetric\n2 2\n1\n2\n", "here:4: end of the file after 2 of 3 values"),
    ("array real general\n1 2\n1\n2\n\n3\n", "here:6: text after the last of 2 values"),
    ("array real general\n1 2\n1 2\n", "here:3: one value expected, 2 found"),
    (
        "coordinate real general\n4294967295 4294967295 4294967295\n1 1 1\n",
        "here:3: end of the file after 1 of",
    ),
];

#[test]
fn matrix_market_corners() {
    let sym = "%%MatrixMarket matrix coordinate integer symmetric\n3 3 3\n1 3 7\n2 1 -4\n2 2 5\n";
    let coo = mtx(sym).unwrap();
    assert_eq!(coo.pattern().coords(), [vec![0, 0, 1, 1, 2], vec![1, 2, 0, 1, 0]]);
    assert_eq!(coo.values(), [-4.0, 7.0, -4.0, 5.0, 7.0]);
    for (text, message) in FAULTS {
        let error = mtx(&format!("%%MatrixMarket matrix {text}")).unwrap_err();
        assert!(error.contains(message), "{error}\nlacks {message}");
    }
    // Declared sizes take no memory.
    let coo = mtx(
        "%%MatrixMarket matrix coordinate real general\n4294967295 4294967295 1\n4294967295 1 2\n",
    )
    .unwrap();
    assert_eq!(coo.pattern().coords(), [vec![u32::MAX - 1], vec![0]]);
    let skew = "%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3\n";
    let dense = read_matrix_market_from::<f32>(skew.as_bytes(), "here")
        .unwrap()
        .matrix
        .into_dense()
        .unwrap();
    assert_eq!(dense.values(), [0.0, -1.0, -2.0, 1.0, 0.0, -3.0, 2.0, 3.0, 0.0]);
}

/// Files of many chunks: shuffled order, exact values, and the line of a fault near the end.
#[test]
fn large_files_keep_order_lines_and_progress() {
    let csr = Csr::new(
        generate::uniform_rows(3000, 3000, 60, 1).unwrap(),
        generate::random_values::<f64>(180_000, 2),
    );
    let csr = csr.unwrap();
    let mut text = Vec::new();
    write_matrix_market_to(&mut text, "memory", &csr).unwrap();
    let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    lines[2..].reverse();
    lines.insert(500, b"% comment\n\n");
    let shuffled = lines.concat();
    let read = read_matrix_market_from::<f64>(&shuffled, "memory").unwrap();
    assert_eq!(read.matrix.to_csr().unwrap(), csr);
    lines[170_000] = b"1 3001 1\n";
    let error = read_matrix_market_from::<f64>(&lines.concat(), "memory").unwrap_err().to_string();
    assert_eq!(error, "memory:170002: column index 3001 is past 3000");
    let path = scratch("progress.mtx");
    std::fs::write(&path, &shuffled).unwrap();
    let mut told = Vec::new();
    read_matrix_market_with::<f64>(&path, &mut |done, total| told.push((done, total))).unwrap();
    assert!(told.is_sorted() && told.len() > 2);
    assert_eq!(told.last().unwrap(), &(2 * shuffled.len() as u64, 2 * shuffled.len() as u64));
}
