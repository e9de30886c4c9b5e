//! Readers and writers: the table of malformed files, real files against their published sizes, round trips.

use einsparse_formats::io::*;
use einsparse_formats::{AnySparse, Csr, CsrPattern, FormatError, Pattern, f16};
use std::{collections::BTreeSet, path::Path};

mod files;

use files::{data, scratch, sparse};

/// Expected result of a malformed file: the good matrix, a result that a separate test checks, or an error.
enum Want {
    Good,
    Own,
    Line(u64, &'static [&'static str]),
    Member(&'static str, &'static [&'static str]),
}
use Want::{Good, Line, Member, Own};

#[rustfmt::skip]
const TABLE: [(&str, Want); 58] = [
    ("good.mtx", Good),
    ("empty.mtx", Line(1, &["empty file", "banner expected"])),
    ("binary_garbage.mtx", Line(1, &["not a Matrix Market banner"])),
    ("no_banner.mtx", Line(1, &["not a Matrix Market banner"])),
    ("banner_only.mtx", Line(2, &["end of the file", "size line missing"])),
    ("size_line_short.mtx", Line(3, &["rows, columns and entry count expected"])),
    ("negative_count.mtx", Line(3, &["entry count is negative"])),
    ("count_past_area.mtx", Line(3, &["more entries than 4 x 5 can hold"])),
    ("rows_past_u32.mtx", Line(3, &["row count 4294967300", "over the index type"])),
    ("rows_past_i64.mtx", Line(3, &["row count out of range"])),
    ("index_zero.mtx", Line(6, &["row index 0 is below 1"])),
    ("row_past_end.mtx", Line(9, &["row index 5 is past 4"])),
    ("col_past_end.mtx", Line(8, &["column index 6 is past 5"])),
    ("index_wraps_u32.mtx", Line(6, &["row index 4294967298 is past 4"])),
    ("index_text.mtx", Line(7, &["column index is not a number", "two"])),
    ("index_fraction.mtx", Line(7, &["column index is not an integer", "2.5"])),
    ("value_text.mtx", Line(7, &["value is not a number", "4,0"])),
    ("value_missing.mtx", Line(7, &["row, column and value expected"])),
    ("pattern_with_values.mtx", Line(4, &["two numbers expected, three found"])),
    ("too_few_entries.mtx", Line(8, &["end of the file", "5 of 6 entries"])),
    ("too_many_entries.mtx", Line(10, &["text after the last of 6 entries"])),
    ("duplicate_entries.mtx", Own),
    ("symmetric_not_square.mtx", Line(3, &["a symmetric matrix must be square"])),
    ("symmetric_both_halves.mtx", Line(6, &["(1, 3) mirrors (3, 1) of line 5"])),
    ("skew_with_diagonal.mtx", Line(6, &["a skew-symmetric matrix has no diagonal entries"])),
    ("complex_field.mtx", Line(1, &["field complex is not supported"])),
    ("array_format.mtx", Own),
    ("byte_order_mark.mtx", Good),
    ("value_nan_inf.mtx", Own),
    ("crlf.mtx", Good),
    ("no_last_newline.mtx", Good),
    ("spacing.mtx", Good),
    ("late_comment.mtx", Good),
    ("area_past_u32.mtx", Own),
    ("no_entries.mtx", Own),
    ("good.smtx", Good),
    ("smtx_header_short.smtx", Line(1, &["rows, columns and nonzeros expected"])),
    ("smtx_negative_count.smtx", Line(1, &["nonzero count is negative"])),
    ("smtx_too_few_offsets.smtx", Line(2, &["4 of 5 row offsets"])),
    ("smtx_first_offset.smtx", Line(2, &["first row offset is not 0"])),
    ("smtx_offsets_decrease.smtx", Line(2, &["row offset 3 is below 4"])),
    ("smtx_offset_past_count.smtx", Line(2, &["row offset 7 is past 6"])),
    ("smtx_last_offset_low.smtx", Line(2, &["last row offset 5 is not 6"])),
    ("smtx_too_few_columns.smtx", Line(3, &["5 of 6 column indices"])),
    ("smtx_too_many_columns.smtx", Line(3, &["7 column indices, 6 expected"])),
    ("smtx_column_past_end.smtx", Line(3, &["column index 5 is past 4"])),
    ("smtx_column_negative.smtx", Line(3, &["column index is negative"])),
    ("smtx_column_twice.smtx", Line(3, &["column index 3 is twice in row 1"])),
    ("smtx_column_order.smtx", Good),
    ("smtx_crlf.smtx", Good),
    ("good.npz", Good),
    ("npz_no_indptr.npz", Member("indptr", &["member missing"])),
    ("npz_offsets_decrease.npz", Member("indptr[2]", &["row offset 3 is below 4"])),
    ("npz_column_past_end.npz", Member("indices[4]", &["column index 5 is past 4"])),
    ("npz_lengths_differ.npz", Member("data", &["5 values, 6 expected"])),
    ("npz_indices_float.npz", Member("indices", &["integer type expected, float64 found"])),
    ("npz_object_array.npz", Member("indices", &["object arrays are refused", "pickle"])),
    ("npz_cut_off.npz", Member("archive", &["no end of central directory"])),
];

fn good() -> Csr<f32> {
    let pattern = CsrPattern::new(4, 5, vec![0, 2, 3, 5, 6], vec![0, 3, 2, 1, 4, 0]).unwrap();
    Csr::new(pattern, vec![1.5, -2.0, 0.25, 4.0, -0.5, 8.0]).unwrap()
}

#[test]
fn malformed_files_do_what_their_table_says() {
    let Some(folder) = data("malformed") else {
        return;
    };
    for (file, want) in &TABLE {
        let path = folder.join(file);
        let found = read_any::<f32>(&path);
        match want {
            Own => {}
            Good => {
                let csr = found.unwrap_or_else(|error| panic!("{error}")).to_csr().unwrap();
                assert_eq!(csr.pattern(), good().pattern(), "{file}");
                let values =
                    if file.ends_with(".smtx") { vec![1.0; 6] } else { good().values().to_vec() };
                assert_eq!(csr.values(), values, "{file}");
            }
            Line(number, words) => refused(found.unwrap_err(), &path, Some(*number), None, words),
            Member(member, words) => refused(found.unwrap_err(), &path, None, Some(member), words),
        }
    }
    let listed: BTreeSet<String> = TABLE.iter().map(|(file, _)| file.to_string()).collect();
    let there = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = there.filter(|file| file != "README.md").collect();
    assert_eq!(listed, there, "the table names every file");
}

fn refused(
    error: FormatError,
    file: &Path,
    at_line: Option<u64>,
    in_member: Option<&str>,
    words: &[&str],
) {
    let FormatError::Io { path, line, member, reason, .. } = &error else {
        panic!("{file:?}: {error:?}")
    };
    assert_eq!(path, &file.display().to_string());
    assert_eq!((*line, member.as_deref()), (at_line, in_member), "{error}");
    for word in words {
        assert!(reason.contains(word), "{error}\nlacks {word}");
    }
    assert!(!error.to_string().contains('\n'), "one line: {error}");
}

#[test]
fn unusual_files_are_read_as_documented() {
    let Some(folder) = data("malformed") else {
        return;
    };
    let read = |file: &str| read_matrix_market::<f32>(folder.join(file)).unwrap();
    let coo = sparse(read("duplicate_entries.mtx").matrix);
    assert_eq!(coo.values(), [1.5, -2.0, 1.0, -0.5, 8.0]);
    let Loaded::Dense(dense) = read("array_format.mtx").matrix else { panic!("sparse") };
    assert_eq!(Loaded::Dense(dense).to_csr().unwrap(), good());
    let coo = sparse(read("value_nan_inf.mtx").matrix);
    assert!(coo.values()[0].is_nan());
    assert_eq!(coo.values()[1..], [f32::NEG_INFINITY, 0.25, 4.0, f32::INFINITY, 8.0]);
    let coo = sparse(read("area_past_u32.mtx").matrix);
    assert_eq!((coo.shape(), coo.values()), (&[65536, 65537][..], &[1.5, -2.0, 8.0][..]));
    let AnySparse::Coo(coo) = coo else { panic!("not COO") };
    assert_eq!(coo.pattern().coords(), [vec![0, 32768, 65535], vec![0, 1, 65536]]);
    let empty = sparse(read("no_entries.mtx").matrix);
    assert_eq!((empty.shape(), empty.nnz()), (&[4, 5][..], 0));
}

/// Rows, columns, entries in the file, entries after mirroring.
#[rustfmt::skip]
const SIZES: [(&str, [usize; 4]); 20] = [
    ("matrix-market/LFAT5.mtx", [14, 14, 30, 46]),
    ("matrix-market/LFAT5_hypersparse.mtx", [2000, 2000, 30, 46]),
    ("matrix-market/bcsstk13.mtx", [2003, 2003, 42943, 83883]),
    ("matrix-market/comments_west0067.mtx", [67, 67, 295, 295]),
    ("matrix-market/cryg2500.mtx", [2500, 2500, 12349, 12349]),
    ("matrix-market/jagmesh7.mtx", [1138, 1138, 4294, 7450]),
    ("matrix-market/karate.mtx", [34, 34, 78, 156]),
    ("matrix-market/lp_afiro.mtx", [27, 51, 102, 102]),
    ("matrix-market/lp_afiro_structure.mtx", [27, 51, 102, 102]),
    ("matrix-market/olm1000.mtx", [1000, 1000, 3996, 3996]),
    ("matrix-market/skew_fp32.mtx", [6, 6, 10, 20]),
    ("matrix-market/west0067.mtx", [67, 67, 294, 294]),
    ("matrix-market/west0067_jumbled.mtx", [67, 67, 294, 294]),
    ("matrix-market/zenios.mtx", [2873, 2873, 15032, 27191]),
    ("matrix-market/dnn/n1024-l1.mtx", [1024, 1024, 32768, 32768]),
    ("matrix-market/dnn/n1024-l2.mtx", [1024, 1024, 32768, 32768]),
    ("matrix-market/dnn/n1024-l3.mtx", [1024, 1024, 32768, 32768]),
    ("matrix-market/dnn/sparse-images-1024_subset.mtx", [1200, 1024, 122713, 122713]),
    ("graphs/ca-CondMat.mtx", [23133, 23133, 93497, 186936]),
    ("graphs/luxembourg_osm.mtx", [114599, 114599, 119666, 239332]),
];

#[test]
fn real_files_have_their_published_sizes() {
    let Some(root) =
        data("matrix-market").and_then(|folder| folder.parent().map(Path::to_path_buf))
    else {
        return;
    };
    for (file, [rows, cols, entries, nnz]) in SIZES {
        let read = read_matrix_market::<f64>(root.join(file)).unwrap();
        assert_eq!(
            [read.header.rows, read.header.cols, read.header.entries],
            [rows, cols, entries],
            "{file}"
        );
        let coo = sparse(read.matrix);
        assert_eq!((coo.shape(), coo.nnz()), (&[rows, cols][..], nnz), "{file}");
    }
    let west = |file: &str| {
        sparse(read_matrix_market::<f64>(root.join("matrix-market").join(file)).unwrap().matrix)
    };
    assert_eq!(west("west0067.mtx"), west("west0067_jumbled.mtx"));
    let AnySparse::Coo(zenios) = west("zenios.mtx") else { panic!("not COO") };
    let [rows, cols] = zenios.pattern().coords() else { panic!("not a matrix") };
    let lower = rows.iter().zip(cols).zip(zenios.values()).filter(|((row, col), _)| row >= col);
    assert_eq!(lower.filter(|(_, value)| **value == 0.0).count(), 14_375, "explicit zeros stay");
    let skew = west("skew_fp32.mtx").to_dense().unwrap();
    for (row, col) in (0..6).flat_map(|row| (0..6).map(move |col| (row, col))) {
        assert_eq!(skew.get(&[row, col]).unwrap(), -skew.get(&[col, row]).unwrap());
    }
    let too_large = read_matrix_market::<f16>(root.join("matrix-market/bcsstk13.mtx")).unwrap_err();
    assert!(too_large.to_string().contains("out of the range of f16"), "{too_large}");
}

#[test]
fn dlmc_files_have_the_sizes_of_their_list() {
    let Some(folder) = data("dlmc") else { return };
    let list = std::fs::read_to_string(folder.join("CHOSEN.txt")).unwrap();
    let lines = list.lines().filter(|line| line.contains(".smtx\t"));
    let mut nnz = 0;
    let mut files = 0;
    for line in lines {
        let columns: Vec<&str> = line.split('\t').collect();
        let pattern = read_smtx(folder.join(columns[0])).unwrap();
        let found = [pattern.rows(), pattern.cols(), pattern.nnz()].map(|size| size.to_string());
        assert_eq!(found, columns[1..4], "{}", columns[0]);
        let text = std::fs::read(folder.join(columns[0])).unwrap();
        let copy = scratch("copy.smtx");
        write_smtx(&copy, &pattern).unwrap();
        assert_eq!(read_smtx(&copy).unwrap(), pattern);
        assert!(
            text.starts_with(format!("{}, {}, {}", columns[1], columns[2], columns[3]).as_bytes())
        );
        (nnz, files) = (nnz + pattern.nnz(), files + 1);
    }
    assert_eq!((files, nnz), (50, 2_697_867));
}
