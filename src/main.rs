//! A stub.

fn main() {}
