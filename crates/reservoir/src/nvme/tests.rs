//! Tests of the whole tier.
