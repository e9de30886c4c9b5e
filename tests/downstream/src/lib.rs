//! What a crate that depends on einsparse does. Also built as a cdylib, to see what such a library exports.

/// One line on the driver: there is one with a GPU, or why not.
pub fn driver() -> String {
    match einsparse::driver::available() {
        Ok(()) => "driver: available".into(),
        Err(error) => format!("driver: {error}"),
    }
}

/// 1 with a driver and a GPU, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn downstream_available() -> i32 {
    einsparse::driver::available().is_ok().into()
}
