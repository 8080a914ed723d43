#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| http2_authority::fuzz::fuzz_connection(data));
