//! The socket of a node, driven by raw frames: what a client may rely on, and what a hostile one cannot do.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests say what they expect")]

mod fixture;
mod hello;
mod leases;
mod long_writes;
mod prefetch;
mod reads;
mod saves;
mod shared_leases;
mod users;
mod writes;
