//! A crate that depends on einsparse. It is also built as a cdylib, to check the symbols that such a library exports.

use einsparse::formats::{Csr, Dense, generate};
use einsparse::{Context, einsum};

/// One line about the driver: the driver and a GPU are available, or the reason why not.
pub fn driver() -> String {
    match einsparse::driver::available() {
        Ok(()) => "driver: available".into(),
        Err(error) => format!("driver: {error}"),
    }
}

/// Driver version as another CUDA crate with linked symbols returns it; 0 if the driver returns an error.
pub fn version_by_another_crate() -> i32 {
    let mut version = 0;
    // SAFETY: `version` has the size of one int.
    let code = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) };
    if code == cudarc::driver::sys::CUresult::CUDA_SUCCESS { version } else { 0 }
}

/// Number of friends of member 33 of a karate club, and number of kernel modules in this program.
pub fn friends() -> einsparse::Result<(f32, usize)> {
    let graph = generate::karate();
    let ones = vec![1.0f32; graph.columns().len()];
    let a = Csr::new(graph, ones)?;
    let b = Dense::from_fn(vec![34, 2], |i| [1.0, i[0] as f32][i[1]])?;
    let c = einsum!(Context::new(), "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?.to_dense()?;
    Ok((c.values()[2 * 33], einsparse::module::MODULES.len()))
}

/// Returns 1 with a driver and a GPU, otherwise 0.
#[unsafe(no_mangle)]
pub extern "C" fn downstream_available() -> i32 {
    einsparse::driver::available().is_ok().into()
}
