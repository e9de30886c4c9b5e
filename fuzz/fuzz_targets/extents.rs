#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    einsparse_fuzz::extents(data);
});
