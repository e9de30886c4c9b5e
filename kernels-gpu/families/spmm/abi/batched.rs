//! The module `batched`: the products of module `spmm` for a batch of B and C in one launch, and with A's transpose.

use crate::abi::SpmmParams;

/// Parameters of every `batched` kernel: those of one product, and the bytes from one of the batch to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchedParams {
    /// The first product.
    pub product: SpmmParams,
    /// Bytes from the values of A of one product to the next; 0 where all have the same.
    pub values: u64,
    /// Bytes from one B to the next.
    pub b: u64,
    /// Bytes from one C to the next.
    pub c: u64,
    /// Bytes of the partial sums of one product.
    pub partial: u64,
    /// Bytes of the counters of one product.
    pub counters: u64,
}

const _: () = assert!(size_of::<BatchedParams>() == size_of::<SpmmParams>() + 40);

impl BatchedParams {
    /// Product `item` of the batch.
    #[inline(always)]
    pub const fn item(&self, item: u32) -> SpmmParams {
        let item = item as u64;
        SpmmParams {
            values: self.product.values.wrapping_add(item.wrapping_mul(self.values)),
            b: self.product.b.wrapping_add(item.wrapping_mul(self.b)),
            c: self.product.c.wrapping_add(item.wrapping_mul(self.c)),
            partial: self.product.partial.wrapping_add(item.wrapping_mul(self.partial)),
            counters: self.product.counters.wrapping_add(item.wrapping_mul(self.counters)),
            ..self.product
        }
    }
}
