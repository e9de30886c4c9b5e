//! Softmax of the entries of each row.

mod softmax;
