//! mci-controller

fn main() {}
