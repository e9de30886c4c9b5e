//! Sparse tensor formats on the host.
