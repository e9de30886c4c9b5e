//! Attention at the entries of a mask, with masks that are data, and encoder layers.

mod attention;
mod encoder;
mod encoder_order;
mod masks;
mod structured;
