//! What a crate that depends on einsparse does. Also built as a cdylib, to see what such a library exports.

use einsparse::formats::{Csr, Dense, generate};
use einsparse::{Context, einsum};

/// One line on the driver: there is one with a GPU, or why not.
pub fn driver() -> String {
    match einsparse::driver::available() {
        Ok(()) => "driver: available".into(),
        Err(error) => format!("driver: {error}"),
    }
}

/// The version of the driver as another CUDA crate sees it, whose symbols are linked; 0 where the driver does not
/// answer.
pub fn version_by_another_crate() -> i32 {
    let mut version = 0;
    // SAFETY: `version` is a place for one int.
    let code = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) };
    if code == cudarc::driver::sys::CUresult::CUDA_SUCCESS { version } else { 0 }
}

/// How many friends member 33 of a karate club has, and the modules of kernels in this program.
pub fn friends() -> einsparse::Result<(f32, usize)> {
    let graph = generate::karate();
    let ones = vec![1.0f32; graph.columns().len()];
    let a = Csr::new(graph, ones)?;
    let b = Dense::from_fn(vec![34, 2], |i| [1.0, i[0] as f32][i[1]])?;
    let c = einsum!(Context::new(), "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?.to_dense()?;
    Ok((c.values()[2 * 33], einsparse::module::MODULES.len()))
}

/// 1 with a driver and a GPU, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn downstream_available() -> i32 {
    einsparse::driver::available().is_ok().into()
}
