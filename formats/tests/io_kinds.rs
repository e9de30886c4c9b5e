//! Less common files of NumPy, SciPy and Fortran. The bytes of the archives are those of SciPy 1.17.

use einsparse_formats::io::{
    Field, read_matrix_market_from, read_npy_from, read_npz, read_npz_from, write_npz,
};
use einsparse_formats::{AnySparse, Coo, CooPattern, Dense, FormatError};
use zip::CompressionMethod;

mod files;

use files::{members, npy, scratch, sparse};

fn stored(all: &[(&str, Vec<u8>)]) -> Vec<u8> {
    members(all, CompressionMethod::Stored)
}

fn read(members: &[(&str, Vec<u8>)]) -> Result<AnySparse<f32>, String> {
    let read = read_npz_from::<f32>(&stored(members), "here");
    read.map_err(|error| error.to_string())
}

fn coo(read: AnySparse<f32>) -> Coo<f32> {
    let AnySparse::Coo(coo) = read else { panic!("{} instead of coo", read.format()) };
    coo
}

/// `mmwrite` of unsigned matrices, coordinate and array.
#[test]
fn unsigned_integers_of_matrix_market_are_read() {
    let text = "%%MatrixMarket matrix coordinate unsigned-integer general\n%\n2 2 2\n1 2 1\n2 1 \
                9223372036854775808\n";
    let read = read_matrix_market_from::<f64>(text.as_bytes(), "here").unwrap();
    assert_eq!(read.header.field, Field::UnsignedInteger);
    assert!(read.header.to_string().contains("unsigned-integer"));
    assert_eq!(sparse(read.matrix).values(), [1.0, 9_223_372_036_854_775_808.0]);
    let text = "%%MatrixMarket matrix array unsigned-integer symmetric\n%\n2 2\n1\n0\n2\n";
    let read = read_matrix_market_from::<f64>(text.as_bytes(), "here").unwrap();
    let dense = read.matrix.into_dense().unwrap();
    assert_eq!(dense.values(), [1.0, 0.0, 0.0, 2.0]);
    for (rest, reason) in [
        ("general\n1 1 1\n1 1 -1\n", "here:3: value is not an integer without a sign: `-1`"),
        ("skew-symmetric\n2 2 0\n", "unsigned integers cannot be skew-symmetric"),
    ] {
        let text = format!("%%MatrixMarket matrix coordinate unsigned-integer {rest}");
        let error = read_matrix_market_from::<f32>(text.as_bytes(), "here").unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

/// Reads the values of a file as f64.
fn values(field: &str, values: &[&str]) -> Result<Vec<f64>, FormatError> {
    let count = values.len();
    let mut text = format!("%%MatrixMarket matrix coordinate {field} general\n{count} 1 {count}\n");
    for (row, value) in values.iter().enumerate() {
        text += &format!("{} 1 {value}\n", row + 1);
    }
    let read = read_matrix_market_from::<f64>(text.as_bytes(), "here")?;
    Ok(sparse(read.matrix).values().to_vec())
}

#[test]
fn exponents_of_fortran_are_read() {
    let texts = ["1D+3", "-.5d0", "1.25D-02", "+2.Q1", "1.5-300", "1.5+300", "7e2", "1d3\r"];
    let wanted = [1e3, -0.5, 1.25e-2, 20.0, 1.5e-300, 1.5e300, 7e2, 1e3];
    assert_eq!(values("real", &texts).unwrap(), wanted);
    let array = "%%MatrixMarket matrix array real general\n2 1\n1D+3\n 2.5d-1 \n";
    let array = read_matrix_market_from::<f32>(array.as_bytes(), "here").unwrap();
    assert_eq!(array.matrix.into_dense().unwrap().values(), [1e3, 0.25]);
    for text in ["1D", "1D+", "D3", "1D3D3", "1x3", "1.5-", "1-2-3", "nan3"] {
        let error = values("real", &[text]).unwrap_err().to_string();
        assert!(error.contains("here:3: value is not a number"), "{error}");
    }
    let error = values("integer", &["1D+3"]).unwrap_err().to_string();
    assert!(error.contains("value is not an integer: `1D+3`"), "{error}");
    let error = values("real", &["1D+999"]).unwrap_err().to_string();
    assert!(error.contains("value `1D+999` is out of the range of f64"), "{error}");
}

/// NumPy accepts any byte except 0 as True.
#[test]
fn booleans_are_zero_or_one() {
    let bytes = npy("|b1", false, "(4,)", &[0_u8, 1, 2, 255]);
    let read = read_npy_from::<f32>(&bytes, "here").unwrap();
    assert_eq!(read.values(), [0.0, 1.0, 1.0, 1.0]);
}

fn three_axes(fortran: bool, coords: &[i64], data: &[f32]) -> Vec<(&'static str, Vec<u8>)> {
    let entries = data.len();
    vec![
        ("coords", npy("<i8", fortran, &format!("(3, {entries})"), coords)),
        ("format", npy("|S3", false, "()", b"coo")),
        ("shape", npy("<i8", false, "(3,)", &[2_i64, 4, 3])),
        ("data", npy("<f4", false, &format!("({entries},)"), data)),
        ("_is_array", npy("|b1", false, "()", &[1_u8])),
    ]
}

#[test]
fn arrays_of_any_order_are_read_and_written() {
    let wanted = [vec![0, 1, 1], vec![2, 0, 3], vec![1, 1, 0]];
    let members = three_axes(false, &[0, 1, 1, 2, 0, 3, 1, 1, 0], &[1.0, 2.0, 3.0]);
    let read_one = coo(read(&members).unwrap());
    assert_eq!(read_one.shape(), [2, 4, 3]);
    assert_eq!(read_one.pattern().coords(), wanted);
    assert_eq!(read_one.values(), [1.0, 2.0, 3.0]);
    // The other order in memory, and a duplicate position.
    let turned = [1, 3, 0, 0, 2, 1, 1, 0, 1, 1, 3, 0];
    let members = three_axes(true, &turned, &[3.0, 1.0, 2.0, 0.5]);
    let read_other = coo(read(&members).unwrap());
    assert_eq!(read_other.pattern().coords(), wanted);
    assert_eq!(read_other.values(), [1.0, 2.0, 3.5]);
    let path = scratch("order_three.npz");
    write_npz(&path, &read_one).unwrap();
    assert_eq!(coo(read_npz(&path).unwrap()), read_one);
    // Vectors: COO, and CSR with one row.
    let pattern = CooPattern::new(vec![5], vec![vec![1, 3]]).unwrap();
    let vector = Coo::new(pattern, vec![2.0_f32, 1.0]).unwrap();
    write_npz(&path, &vector).unwrap();
    assert_eq!(coo(read_npz(&path).unwrap()), vector);
    let members = [
        ("indices", npy("<i8", false, "(2,)", &[1_i64, 3])),
        ("indptr", npy("<i8", false, "(2,)", &[0_i64, 2])),
        ("format", npy("|S3", false, "()", b"csr")),
        ("shape", npy("<i8", false, "(1,)", &[5_i64])),
        ("data", npy("<f4", false, "(2,)", &[2.0_f32, 1.0])),
    ];
    assert_eq!(coo(read(&members).unwrap()), vector);
}

#[test]
fn wrong_coordinates_are_refused_by_axis() {
    let entries = &[1.0, 2.0, 3.0];
    for (at, index, reason) in [
        (4, 9, "here (coords[4]): index 9 of axis 1 is past 3"),
        (8, -1, "here (coords[8]): index of axis 2 is negative: -1"),
    ] {
        let mut coords = [0, 1, 1, 2, 0, 3, 1, 1, 0];
        coords[at] = index;
        let error = read(&three_axes(false, &coords, entries)).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let mut members = three_axes(false, &[0; 9], entries);
    members[2].1 = npy("<i8", false, "(2,)", &[2_i64, 4]);
    let error = read(&members).unwrap_err();
    assert!(error.contains("here (coords): coordinates of 3 axes, 2 expected"), "{error}");
    members[2].1 = npy("<i8", false, "(3,)", &[2_i64, 4, 1 << 40]);
    let error = read(&members).unwrap_err();
    assert!(error.contains("extent of axis 2 1099511627776 is over the index type"), "{error}");
    members[2].1 = npy("<i8", false, "(3,)", &[2_i64, 4, 3]);
    members[3].1 = npy("<f4", false, "(2,)", &[1.0_f32, 2.0]);
    let error = read(&members).unwrap_err();
    assert!(error.contains("here (data): shape [2], [3] expected"), "{error}");
}

fn diagonals(offsets: &[i32], data: &[f64]) -> Vec<(&'static str, Vec<u8>)> {
    let (count, width) = (offsets.len(), data.len() / offsets.len());
    vec![
        ("offsets", npy("<i4", false, &format!("({count},)"), offsets)),
        ("format", npy("|S3", false, "()", b"dia")),
        ("shape", npy("<i8", false, "(2,)", &[3_i64, 5])),
        ("data", npy("<f8", false, &format!("({count}, {width})"), data)),
    ]
}

/// The elements must equal those of `scipy.sparse.load_npz(..).toarray()`.
#[test]
fn diagonals_are_read() {
    let data = [1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 9.0, 10.0, 11.0];
    let dense = |members: &[_]| -> Dense<f32> { read(members).unwrap().to_dense().unwrap() };
    let found = dense(&diagonals(&[2, 0, -1], &data));
    let wanted = [5., 0., 3., 0., 0., 9., 6., 0., 0., 0., 0., 10., 7., 0., 0.];
    assert_eq!(found.values(), wanted);
    // Diagonals are padded with zeros; elements outside the matrix are dropped.
    let found = read(&diagonals(&[-2, 7], &[0.0, 1.0, f64::NAN, 4.0])).unwrap();
    assert_eq!(found.nnz(), 0);
    let error = read(&diagonals(&[1, 1], &[1.0, 2.0])).unwrap_err();
    assert!(error.contains("here (offsets): diagonal 1 is given twice"), "{error}");
    let mut members = diagonals(&[0, 1], &[1.0, 2.0]);
    members[0].1 = npy("<i4", false, "(1,)", &[0_i32]);
    let error = read(&members).unwrap_err();
    assert!(error.contains("here (data): 2 diagonals, 1 expected"), "{error}");
}

/// Methods of `zipfile` that NumPy does not use: 12 is bzip2, 14 LZMA, 93 Zstandard.
#[test]
fn other_compressions_are_refused_by_name() {
    let members = diagonals(&[0], &[1.0]);
    for (method, name) in [(12_u16, "bzip2"), (14, "LZMA"), (93, "Zstandard")] {
        let mut bytes = stored(&members);
        // Offset of the method in each local header, and in each entry of the central directory.
        for (mark, behind) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
            let found: Vec<usize> =
                bytes.windows(4).enumerate().filter(|(_, w)| w == mark).map(|(at, _)| at).collect();
            assert_eq!(found.len(), members.len());
            found.iter().for_each(|at| {
                bytes[at + behind..][..2].copy_from_slice(&method.to_le_bytes());
            });
        }
        let error = read_npz_from::<f32>(&bytes, "here").unwrap_err().to_string();
        assert!(error.contains(&format!("compressed by {name}, which is not read")), "{error}");
        assert!(error.contains("numpy.savez_compressed"), "{error}");
    }
}

#[test]
fn archives_of_plain_arrays_are_named() {
    let error = read(&[("weight", npy("<f4", false, "(1,)", &[1.0_f32]))]).unwrap_err();
    let wanted = "`scipy.sparse.save_npz` writes `format` and `shape`, this has `weight.npy`";
    assert!(error.contains(wanted), "{error}");
}
