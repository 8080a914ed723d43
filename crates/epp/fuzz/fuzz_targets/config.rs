#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epp::fuzz::fuzz_config(data));
