//! Rows of the kernel table that belong to the family `spmm`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_spmm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            spmm {
                "spmm" SpmmParams Product {
                    spmm_csr_f32_n32 F32: Csr, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f32_n64 F32: Csr, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    spmm_csr_f32_n128 F32: Csr, SubWarp<4, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f32_n256 F32: Csr, SubWarp<4, 2, SubWarpOf<32, 4, 1>>;
                    spmm_csr_f32_n32_s4 F32: Csr, SubWarp<4, 1, SubWarpOf<8, 8, 4>>;
                    spmm_csr_f32_n64_s4 F32: Csr, SubWarp<4, 1, SubWarpOf<16, 8, 4>>;
                    spmm_csr_f32_n128_s2 F32: Csr, SubWarp<4, 1, SubWarpOf<32, 8, 2>>;
                    spmm_csr_f32_n128_s4 F32: Csr, SubWarp<4, 1, SubWarpOf<32, 8, 4>>;
                    spmm_csr_f32_n256_s4 F32: Csr, SubWarp<4, 2, SubWarpOf<32, 4, 4>>;
                    spmm_csr_f32_n128_l8 F32: Csr, SubWarp<4, 4, SubWarpOf<8, 4, 1>>;
                    spmm_csr_f32_n128_l8_s4 F32: Csr, SubWarp<4, 4, SubWarpOf<8, 4, 4>>;
                    spmm_csr_f32_n128_l16 F32: Csr, SubWarp<4, 2, SubWarpOf<16, 4, 1>>;
                    spmm_csr_f32_n32_s8 F32: Csr, SubWarp<4, 1, SubWarpOf<8, 8, 8>>;
                    spmm_csr_f32_n32_s16 F32: Csr, SubWarp<4, 1, SubWarpOf<8, 8, 16>>;
                    spmm_csr_f32_n64_s8 F32: Csr, SubWarp<4, 1, SubWarpOf<16, 8, 8>>;
                    spmm_csr_f32_n128_t512_s2 F32: Csr, SubWarp<4, 4, SubWarpOf<8, 4, 2, 512>>;
                    spmm_csr_f32_n128_t512_s8 F32: Csr, SubWarp<4, 4, SubWarpOf<8, 4, 8, 512>>;
                    spmm_csr_f32_any8 F32: Csr, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f32_any32 F32: Csr, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f32_any128 F32: Csr, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f32_n32 F32: GroupCoo, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    spmm_group_coo_f32_n64 F32: GroupCoo, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    spmm_group_coo_f32_n256 F32: GroupCoo, SubWarp<4, 2, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f32_any32 F32: GroupCoo, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;

                    spmm_csr_f64_n32 F64: Csr, SubWarp<2, 1, SubWarpOf<16, 4, 1>>;
                    spmm_csr_f64_n64_s4 F64: Csr, SubWarp<2, 1, SubWarpOf<32, 4, 4>>;
                    spmm_csr_f64_n128 F64: Csr, SubWarp<2, 2, SubWarpOf<32, 4, 1>>;
                    spmm_csr_f64_any8 F64: Csr, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f64_any128 F64: Csr, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f64_n64 F64: GroupCoo, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f64_n64_s4 F64: GroupCoo, SubWarp<2, 1, SubWarpOf<32, 4, 4>>;

                    spmm_csr_f16_n32 F16: Csr, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    spmm_csr_f16_n64 F16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f16_n256 F16: Csr, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f16_n64_s4 F16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 4>>;
                    spmm_csr_f16_n256_s4 F16: Csr, SubWarp<8, 1, SubWarpOf<32, 8, 4>>;
                    spmm_csr_f16_n128_l8 F16: Csr, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    spmm_csr_f16_n128_l8_s4 F16: Csr, SubWarp<8, 2, SubWarpOf<8, 4, 4>>;
                    spmm_csr_f16_n256_l16 F16: Csr, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    spmm_csr_f16_n64_s8 F16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 8>>;
                    spmm_csr_f16_n64_s16 F16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 16>>;
                    spmm_csr_f16_any8 F16: Csr, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f16_any32 F16: Csr, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f16_any128 F16: Csr, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f16_n256 F16: GroupCoo, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_group_coo_f16_any32 F16: GroupCoo, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;

                    spmm_csr_bf16_n32 Bf16: Csr, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    spmm_csr_bf16_n64 Bf16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_bf16_n256 Bf16: Csr, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_bf16_n64_s4 Bf16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 4>>;
                    spmm_csr_bf16_n256_s4 Bf16: Csr, SubWarp<8, 1, SubWarpOf<32, 8, 4>>;
                    spmm_csr_bf16_n128_l8 Bf16: Csr, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    spmm_csr_bf16_n128_l8_s4 Bf16: Csr, SubWarp<8, 2, SubWarpOf<8, 4, 4>>;
                    spmm_csr_bf16_n256_l16 Bf16: Csr, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    spmm_csr_bf16_n64_s8 Bf16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 8>>;
                    spmm_csr_bf16_n64_s16 Bf16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 16>>;
                    spmm_csr_bf16_any8 Bf16: Csr, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_bf16_any32 Bf16: Csr, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_bf16_any128 Bf16: Csr, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_bf16_n256 Bf16: GroupCoo, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_group_coo_bf16_any32 Bf16: GroupCoo, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                }
                "sell" SellParams Product {
                    sell_f32_n1 F32, sell_f16_n1 F16, sell_bf16_n1 Bf16: SlicedEll, Sell<32, 1>;
                    sell_f16_n8 F16, sell_bf16_n8 Bf16: SlicedEll, Sell<16, 8>;
                    sell_f32_n1_wide F32, sell_f16_n1_wide F16, sell_bf16_n1_wide Bf16: SlicedEll, Sell<32, 1, 163>;
                    sell_f32_n1_small F32, sell_f16_n1_small F16, sell_bf16_n1_small Bf16: SlicedEll, Sell<32, 1, 99>;
                    sell_f16_n8_wide F16, sell_bf16_n8_wide Bf16: SlicedEll, Sell<16, 8, 163>;
                    sell_f16_n8_small F16, sell_bf16_n8_small Bf16: SlicedEll, Sell<16, 8, 99>;
                }
                "staged" StagedParams Product {
                    staged_f32_w8_p8 F32: SlicedEll, Staged<8, 8>;
                    staged_f32_w16 F32: SlicedEll, Staged<16, 1>;
                    staged_f32_w16_p2 F32: SlicedEll, Staged<16, 2>;
                    staged_f32_w16_p4 F32: SlicedEll, Staged<16, 4>;
                    staged_f32_all F32: SlicedEll, Resident<16>;
                }
                "batched" BatchedParams Product {
                    batched_csr_f32_n32 F32: Csr, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    batched_csr_f32_n64 F32: Csr, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    batched_csr_f32_n128 F32: Csr, SubWarp<4, 1, SubWarpOf<32, 8, 1>>;
                    batched_csr_f64_n64 F64: Csr, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    batched_csr_f16_n64 F16, batched_csr_bf16_n64 Bf16: Csr, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    batched_csr_f16_n128 F16, batched_csr_bf16_n128 Bf16: Csr, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    batched_csr_f32_any32 F32, batched_csr_f64_any32 F64, batched_csr_f16_any32 F16, batched_csr_bf16_any32 Bf16: Csr, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_f32_n32 F32: Permuted, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    batched_permuted_f32_n32_s4 F32: Permuted, SubWarp<4, 1, SubWarpOf<8, 8, 4>>;
                    batched_permuted_f32_n64 F32: Permuted, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    batched_permuted_f32_n256 F32: Permuted, SubWarp<4, 2, SubWarpOf<32, 4, 1>>;
                    batched_permuted_f32_n128_l8_s4 F32: Permuted, SubWarp<4, 4, SubWarpOf<8, 4, 4>>;
                    batched_permuted_f32_n128_l16 F32: Permuted, SubWarp<4, 2, SubWarpOf<16, 4, 1>>;
                    batched_permuted_f64_n64 F64: Permuted, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    batched_permuted_f16_n32 F16, batched_permuted_bf16_n32 Bf16: Permuted, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    batched_permuted_f16_n32_s4 F16, batched_permuted_bf16_n32_s4 Bf16: Permuted, SubWarp<8, 1, SubWarpOf<4, 8, 4>>;
                    batched_permuted_f16_n64 F16, batched_permuted_bf16_n64 Bf16: Permuted, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    batched_permuted_f16_n128 F16, batched_permuted_bf16_n128 Bf16: Permuted, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    batched_permuted_f16_n128_l8 F16, batched_permuted_bf16_n128_l8 Bf16: Permuted, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    batched_permuted_f16_n256_l16 F16, batched_permuted_bf16_n256_l16 Bf16: Permuted, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    batched_permuted_f32_any32 F32, batched_permuted_f64_any32 F64, batched_permuted_f16_any32 F16, batched_permuted_bf16_any32 Bf16: Permuted, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                }
                "vectors" VectorsParams Product {
                    vectors_f16_n64_s8 F16, vectors_bf16_n64_s8 Bf16: Vector, Vectors<1, 1, 8>;
                    vectors_f16_n128 F16, vectors_bf16_n128 Bf16: Vector, Vectors<2, 4, 1>;
                    vectors_f16_n128_s4 F16, vectors_bf16_n128_s4 Bf16: Vector, Vectors<2, 1, 4>;
                }
                "vectors" VectorsParams Narrow {
                    vectors_int8_n128 Int8: WholeVector, NarrowVectors<4, 1, true>;
                    vectors_int8_n128_s4 Int8: WholeVector, NarrowVectors<1, 4, true>;
                    vectors_int8_n128_s8 Int8: WholeVector, NarrowVectors<1, 8, true>;
                    vectors_int8_any Int8: WholeVector, NarrowVectors<4, 1, false>;
                }
                "bitmap" BitmapParams Product {
                    bitmap_f16_256x1_warps6 F16, bitmap_bf16_256x1_warps6 Bf16: Bits, WarpTile<1, 4, WarpOf<6>>;
                    bitmap_f16_256x1_halves3 F16, bitmap_bf16_256x1_halves3 Bf16: Bits, WarpTile<1, 2, WarpOf<3>>;
                    bitmap_f16_256x8_halves3 F16, bitmap_bf16_256x8_halves3 Bf16: Bits, WarpTile<8, 2, WarpOf<3>>;
                    bitmap_f16_256x16_halves3 F16, bitmap_bf16_256x16_halves3 Bf16: Bits, WarpTile<16, 2, WarpOf<3>>;
                    bitmap_f16_128x16 F16, bitmap_bf16_128x16 Bf16: Bits, BitTile<2, 16, BitOf<true>>;
                    bitmap_f16_256x16 F16, bitmap_bf16_256x16 Bf16: Bits, BitTile<4, 16, BitOf<true>>;
                    bitmap_f16_256x32 F16, bitmap_bf16_256x32 Bf16: Bits, BitTile<4, 32, BitOf<true>>;
                    bitmap_f16_256x64 F16, bitmap_bf16_256x64 Bf16: Bits, BitTile<4, 64, BitOf<true>>;
                    bitmap_f16_128x64_any F16, bitmap_bf16_128x64_any Bf16: Bits, BitTile<2, 64, BitOf<false>>;
                    bytemap_f16_128x16 F16, bytemap_bf16_128x16 Bf16: Bytes, ByteTile<2, 16, BitOf<true>>;
                    bytemap_f16_256x16 F16, bytemap_bf16_256x16 Bf16: Bytes, ByteTile<4, 16, BitOf<true>>;
                    bytemap_f16_128x32 F16, bytemap_bf16_128x32 Bf16: Bytes, ByteTile<2, 32, BitOf<true>>;
                    bytemap_f16_256x32 F16, bytemap_bf16_256x32 Bf16: Bytes, ByteTile<4, 32, BitOf<true>>;
                    bytemap_f16_256x64 F16, bytemap_bf16_256x64 Bf16: Bytes, ByteTile<4, 64, BitOf<true>>;
                    bitmap_mma_f16_256x1_warps4_wide F16, bitmap_mma_bf16_256x1_warps4_wide Bf16: Bits, WarpTile<1, 4, WarpOf<4, CpAsyncWide>>;
                    bitmap_mma_f16_256x1_warps4 F16, bitmap_mma_bf16_256x1_warps4 Bf16: Bits, WarpTile<1, 4, WarpOf<4, CpAsync>>;
                    bitmap_mma_f16_256x8_warps4_wide F16, bitmap_mma_bf16_256x8_warps4_wide Bf16: Bits, WarpTile<8, 4, WarpOf<4, CpAsyncWide>>;
                    bitmap_mma_f16_256x8_warps4 F16, bitmap_mma_bf16_256x8_warps4 Bf16: Bits, WarpTile<8, 4, WarpOf<4, CpAsync>>;
                    bitmap_mma_f16_256x16_halves2_wide F16, bitmap_mma_bf16_256x16_halves2_wide Bf16: Bits, WarpTile<16, 2, WarpOf<2, CpAsyncWide>>;
                    bitmap_mma_f16_128x16 F16, bitmap_mma_bf16_128x16 Bf16: Bits, BitTile<2, 16, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_f16_128x32 F16, bitmap_mma_bf16_128x32 Bf16: Bits, BitTile<2, 32, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_f16_128x64 F16, bitmap_mma_bf16_128x64 Bf16: Bits, BitTile<2, 64, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_f16_128x64_any F16, bitmap_mma_bf16_128x64_any Bf16: Bits, BitTile<2, 64, BitOf<false, MmaSync, CpAsync>>;
                    bytemap_mma_f16_128x16 F16, bytemap_mma_bf16_128x16 Bf16: Bytes, ByteTile<2, 16, BitOf<true, MmaSync, CpAsync>>;
                    bytemap_mma_f16_128x32 F16, bytemap_mma_bf16_128x32 Bf16: Bytes, ByteTile<2, 32, BitOf<true, MmaSync, CpAsync>>;
                    bytemap_mma_f16_128x64 F16, bytemap_mma_bf16_128x64 Bf16: Bytes, ByteTile<2, 64, BitOf<true, MmaSync, CpAsync>>;
                }
            }
        }
    };
}
