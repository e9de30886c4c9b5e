//! invariants.
