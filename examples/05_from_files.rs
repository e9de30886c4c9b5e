//! Reads a Matrix Market file, converts it, multiplies it and checks the result. The file is in the directory
//! `EINSPARSE_DATA`. If the variable is not set, the program writes a file itself.

use std::path::{Path, PathBuf};

use einsparse::formats::{Csr, Dense, generate, io, reference};
use einsparse::{Context, ops};

fn file() -> Result<PathBuf, Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::var_os("EINSPARSE_DATA") {
        let path = Path::new(&folder).join("matrix-market/west0067.mtx");
        if path.is_file() {
            return Ok(path);
        }
    }
    let path = std::env::temp_dir().join(format!("einsparse-poisson-{}.mtx", std::process::id()));
    io::write_matrix_market(&path, &generate::poisson2d::<f64>(12, 9)?)?;
    Ok(path)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = file()?;
    let csr: Csr<f64> = io::read_matrix_market(&path)?.matrix.to_csr()?;
    let columns = csr.shape()[1];
    let b = Dense::new(vec![columns, 16], generate::random_values::<f64>(columns * 16, 1))?;
    let c = ops::spmm(&Context::new(), &csr, &b)?.to_dense()?;

    let exact = reference::spmm(&csr.into(), &b)?;
    let largest = exact.values().iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let error =
        c.values().iter().zip(exact.values()).fold(0.0f64, |m, (c, e)| m.max((c - e).abs()));
    println!("largest element {largest:.3e}, largest error {error:.1e}");
    assert!(error <= 1e-12 * largest);

    // Errors of malformed files contain the line number.
    let broken = std::env::temp_dir().join(format!("einsparse-broken-{}.mtx", std::process::id()));
    std::fs::write(&broken, "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 4.0\n")?;
    let error = io::read_matrix_market::<f64>(&broken).expect_err("row 3 of 2");
    println!("{error}");
    assert!(error.to_string().contains(":3: "));
    std::fs::remove_file(broken)?;
    Ok(())
}
