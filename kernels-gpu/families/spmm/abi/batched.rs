//! The module `batched`: the products of the module `spmm` for a batch of B and C in one launch, and with A transposed.

use crate::abi::SpmmParams;

/// Parameters of every `batched` kernel: those of the first product, and the strides of the batch in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchedParams {
    /// First product.
    pub product: SpmmParams,
    /// Bytes from the values of A of one product to the next; 0 if all products share them.
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
    /// Returns the parameters of product `item` of the batch.
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
