//! Attention at the nonzeros of a mask, with masks that are data, over a cache, and encoder layers.

mod attention;
mod cached;
mod dynamic_attention;
mod encoder;
mod encoder_order;
mod encoder_stack;
mod structured;
