//! Rows of the kernel table that belong to the family `spmm`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_spmm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            spmm {
                spmm "spmm" SpmmParams Product {
                    spmm_csr_f32_n32: Csr, F32, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f32_n64: Csr, F32, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    spmm_csr_f32_n128: Csr, F32, SubWarp<4, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f32_n256: Csr, F32, SubWarp<4, 2, SubWarpOf<32, 4, 1>>;
                    spmm_csr_f32_n32_s4: Csr, F32, SubWarp<4, 1, SubWarpOf<8, 8, 4>>;
                    spmm_csr_f32_n64_s4: Csr, F32, SubWarp<4, 1, SubWarpOf<16, 8, 4>>;
                    spmm_csr_f32_n128_s2: Csr, F32, SubWarp<4, 1, SubWarpOf<32, 8, 2>>;
                    spmm_csr_f32_n128_s4: Csr, F32, SubWarp<4, 1, SubWarpOf<32, 8, 4>>;
                    spmm_csr_f32_n256_s4: Csr, F32, SubWarp<4, 2, SubWarpOf<32, 4, 4>>;
                    spmm_csr_f32_n128_l8: Csr, F32, SubWarp<4, 4, SubWarpOf<8, 4, 1>>;
                    spmm_csr_f32_n128_l8_s4: Csr, F32, SubWarp<4, 4, SubWarpOf<8, 4, 4>>;
                    spmm_csr_f32_n128_l16: Csr, F32, SubWarp<4, 2, SubWarpOf<16, 4, 1>>;
                    spmm_csr_f32_n32_s8: Csr, F32, SubWarp<4, 1, SubWarpOf<8, 8, 8>>;
                    spmm_csr_f32_n32_s16: Csr, F32, SubWarp<4, 1, SubWarpOf<8, 8, 16>>;
                    spmm_csr_f32_n64_s8: Csr, F32, SubWarp<4, 1, SubWarpOf<16, 8, 8>>;
                    spmm_csr_f32_n128_t512_s2: Csr, F32, SubWarp<4, 4, SubWarpOf<8, 4, 2, 512>>;
                    spmm_csr_f32_n128_t512_s8: Csr, F32, SubWarp<4, 4, SubWarpOf<8, 4, 8, 512>>;
                    spmm_csr_f32_any8: Csr, F32, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f32_any32: Csr, F32, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f32_any128: Csr, F32, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f32_n32: GroupCoo, F32, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    spmm_group_coo_f32_n64: GroupCoo, F32, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    spmm_group_coo_f32_n128: GroupCoo, F32, SubWarp<4, 1, SubWarpOf<32, 8, 1>>;
                    spmm_group_coo_f32_n256: GroupCoo, F32, SubWarp<4, 2, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f32_any32: GroupCoo, F32, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;

                    spmm_csr_f64_n32: Csr, F64, SubWarp<2, 1, SubWarpOf<16, 4, 1>>;
                    spmm_csr_f64_n64: Csr, F64, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    spmm_csr_f64_n64_s4: Csr, F64, SubWarp<2, 1, SubWarpOf<32, 4, 4>>;
                    spmm_csr_f64_n128: Csr, F64, SubWarp<2, 2, SubWarpOf<32, 4, 1>>;
                    spmm_csr_f64_any8: Csr, F64, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f64_any32: Csr, F64, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f64_any128: Csr, F64, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f64_n64: GroupCoo, F64, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f64_n64_s4: GroupCoo, F64, SubWarp<2, 1, SubWarpOf<32, 4, 4>>;

                    spmm_csr_f16_n32: Csr, F16, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    spmm_csr_f16_n64: Csr, F16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f16_n128: Csr, F16, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    spmm_csr_f16_n256: Csr, F16, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f16_n64_s4: Csr, F16, SubWarp<8, 1, SubWarpOf<8, 8, 4>>;
                    spmm_csr_f16_n128_s4: Csr, F16, SubWarp<8, 1, SubWarpOf<16, 8, 4>>;
                    spmm_csr_f16_n256_s4: Csr, F16, SubWarp<8, 1, SubWarpOf<32, 8, 4>>;
                    spmm_csr_f16_n128_l8: Csr, F16, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    spmm_csr_f16_n128_l8_s4: Csr, F16, SubWarp<8, 2, SubWarpOf<8, 4, 4>>;
                    spmm_csr_f16_n256_l16: Csr, F16, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    spmm_csr_f16_n64_s8: Csr, F16, SubWarp<8, 1, SubWarpOf<8, 8, 8>>;
                    spmm_csr_f16_n64_s16: Csr, F16, SubWarp<8, 1, SubWarpOf<8, 8, 16>>;
                    spmm_csr_f16_any8: Csr, F16, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_f16_any32: Csr, F16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_f16_any128: Csr, F16, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_f16_n64: GroupCoo, F16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    spmm_group_coo_f16_n256: GroupCoo, F16, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_group_coo_f16_n256_s4: GroupCoo, F16, SubWarp<8, 1, SubWarpOf<32, 8, 4>>;
                    spmm_group_coo_f16_any32: GroupCoo, F16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;

                    spmm_csr_bf16_n32: Csr, Bf16, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    spmm_csr_bf16_n64: Csr, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_bf16_n128: Csr, Bf16, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    spmm_csr_bf16_n256: Csr, Bf16, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_bf16_n64_s4: Csr, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 4>>;
                    spmm_csr_bf16_n128_s4: Csr, Bf16, SubWarp<8, 1, SubWarpOf<16, 8, 4>>;
                    spmm_csr_bf16_n256_s4: Csr, Bf16, SubWarp<8, 1, SubWarpOf<32, 8, 4>>;
                    spmm_csr_bf16_n128_l8: Csr, Bf16, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    spmm_csr_bf16_n128_l8_s4: Csr, Bf16, SubWarp<8, 2, SubWarpOf<8, 4, 4>>;
                    spmm_csr_bf16_n256_l16: Csr, Bf16, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    spmm_csr_bf16_n64_s8: Csr, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 8>>;
                    spmm_csr_bf16_n64_s16: Csr, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 16>>;
                    spmm_csr_bf16_any8: Csr, Bf16, SubWarp<1, 1, SubWarpOf<8, 8, 1>>;
                    spmm_csr_bf16_any32: Csr, Bf16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    spmm_csr_bf16_any128: Csr, Bf16, SubWarp<1, 4, SubWarpOf<32, 4, 1>>;
                    spmm_group_coo_bf16_n64: GroupCoo, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    spmm_group_coo_bf16_n256: GroupCoo, Bf16, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    spmm_group_coo_bf16_n256_s4: GroupCoo, Bf16, SubWarp<8, 1, SubWarpOf<32, 8, 4>>;
                    spmm_group_coo_bf16_any32: GroupCoo, Bf16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                }
                sell "sell" SellParams Product {
                    sell_f32_n1: SlicedEll, F32, Sell<32, 1>;
                    sell_f16_n1: SlicedEll, F16, Sell<32, 1>;
                    sell_f16_n8: SlicedEll, F16, Sell<16, 8>;
                    sell_bf16_n1: SlicedEll, Bf16, Sell<32, 1>;
                    sell_bf16_n8: SlicedEll, Bf16, Sell<16, 8>;
                    sell_f32_n1_wide: SlicedEll, F32, Sell<32, 1, 163>;
                    sell_f32_n1_small: SlicedEll, F32, Sell<32, 1, 99>;
                    sell_f16_n1_wide: SlicedEll, F16, Sell<32, 1, 163>;
                    sell_f16_n1_small: SlicedEll, F16, Sell<32, 1, 99>;
                    sell_f16_n8_wide: SlicedEll, F16, Sell<16, 8, 163>;
                    sell_f16_n8_small: SlicedEll, F16, Sell<16, 8, 99>;
                    sell_bf16_n1_wide: SlicedEll, Bf16, Sell<32, 1, 163>;
                    sell_bf16_n1_small: SlicedEll, Bf16, Sell<32, 1, 99>;
                    sell_bf16_n8_wide: SlicedEll, Bf16, Sell<16, 8, 163>;
                    sell_bf16_n8_small: SlicedEll, Bf16, Sell<16, 8, 99>;
                }
                staged "staged" StagedParams Product {
                    staged_f32_w8_p8: SlicedEll, F32, Staged<8, 8>;
                    staged_f32_w16: SlicedEll, F32, Staged<16, 1>;
                    staged_f32_w16_p2: SlicedEll, F32, Staged<16, 2>;
                    staged_f32_w16_p4: SlicedEll, F32, Staged<16, 4>;
                    staged_f32_all: SlicedEll, F32, Resident<16>;
                }
                batched "batched" BatchedParams Product {
                    batched_csr_f32_n32: Csr, F32, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    batched_csr_f32_n64: Csr, F32, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    batched_csr_f32_n128: Csr, F32, SubWarp<4, 1, SubWarpOf<32, 8, 1>>;
                    batched_csr_f32_any32: Csr, F32, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_csr_f64_n64: Csr, F64, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    batched_csr_f64_any32: Csr, F64, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_csr_f16_n64: Csr, F16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    batched_csr_f16_n128: Csr, F16, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    batched_csr_f16_any32: Csr, F16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_csr_bf16_n64: Csr, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    batched_csr_bf16_n128: Csr, Bf16, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    batched_csr_bf16_any32: Csr, Bf16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_f32_n32: Permuted, F32, SubWarp<4, 1, SubWarpOf<8, 8, 1>>;
                    batched_permuted_f32_n32_s4: Permuted, F32, SubWarp<4, 1, SubWarpOf<8, 8, 4>>;
                    batched_permuted_f32_n64: Permuted, F32, SubWarp<4, 1, SubWarpOf<16, 8, 1>>;
                    batched_permuted_f32_n128: Permuted, F32, SubWarp<4, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_f32_n256: Permuted, F32, SubWarp<4, 2, SubWarpOf<32, 4, 1>>;
                    batched_permuted_f32_n128_l8_s4: Permuted, F32, SubWarp<4, 4, SubWarpOf<8, 4, 4>>;
                    batched_permuted_f32_n128_l16: Permuted, F32, SubWarp<4, 2, SubWarpOf<16, 4, 1>>;
                    batched_permuted_f32_any32: Permuted, F32, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_f64_n64: Permuted, F64, SubWarp<2, 1, SubWarpOf<32, 4, 1>>;
                    batched_permuted_f64_any32: Permuted, F64, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_f16_n32: Permuted, F16, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    batched_permuted_f16_n32_s4: Permuted, F16, SubWarp<8, 1, SubWarpOf<4, 8, 4>>;
                    batched_permuted_f16_n64: Permuted, F16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    batched_permuted_f16_n128: Permuted, F16, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    batched_permuted_f16_n256: Permuted, F16, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_f16_n128_l8: Permuted, F16, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    batched_permuted_f16_n256_l16: Permuted, F16, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    batched_permuted_f16_any32: Permuted, F16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_bf16_n32: Permuted, Bf16, SubWarp<8, 1, SubWarpOf<4, 8, 1>>;
                    batched_permuted_bf16_n32_s4: Permuted, Bf16, SubWarp<8, 1, SubWarpOf<4, 8, 4>>;
                    batched_permuted_bf16_n64: Permuted, Bf16, SubWarp<8, 1, SubWarpOf<8, 8, 1>>;
                    batched_permuted_bf16_n128: Permuted, Bf16, SubWarp<8, 1, SubWarpOf<16, 8, 1>>;
                    batched_permuted_bf16_n256: Permuted, Bf16, SubWarp<8, 1, SubWarpOf<32, 8, 1>>;
                    batched_permuted_bf16_n128_l8: Permuted, Bf16, SubWarp<8, 2, SubWarpOf<8, 4, 1>>;
                    batched_permuted_bf16_n256_l16: Permuted, Bf16, SubWarp<8, 2, SubWarpOf<16, 4, 1>>;
                    batched_permuted_bf16_any32: Permuted, Bf16, SubWarp<1, 1, SubWarpOf<32, 8, 1>>;
                }
                vectors "vectors" VectorsParams Product {
                    vectors_f16_n64: Vector, F16, Vectors<1, VectorsOf<4, 1>>;
                    vectors_f16_n64_s8: Vector, F16, Vectors<1, VectorsOf<1, 8>>;
                    vectors_f16_n128: Vector, F16, Vectors<2, VectorsOf<4, 1>>;
                    vectors_f16_n128_s4: Vector, F16, Vectors<2, VectorsOf<1, 4>>;
                    vectors_bf16_n64: Vector, Bf16, Vectors<1, VectorsOf<4, 1>>;
                    vectors_bf16_n64_s8: Vector, Bf16, Vectors<1, VectorsOf<1, 8>>;
                    vectors_bf16_n128: Vector, Bf16, Vectors<2, VectorsOf<4, 1>>;
                    vectors_bf16_n128_s4: Vector, Bf16, Vectors<2, VectorsOf<1, 4>>;
                    vectors_tf32_n64: Vector, Tf32, Vectors<2, VectorsOf<4, 1, 4>>;
                }
                vectors_narrow "vectors_narrow" VectorsParams Narrow {
                    vectors_int8_n128: WholeVector, Int8, NarrowVectors<4, 1, true>;
                    vectors_int8_n128_s4: WholeVector, Int8, NarrowVectors<1, 4, true>;
                    vectors_int8_n128_s8: WholeVector, Int8, NarrowVectors<1, 8, true>;
                    vectors_int8_any: WholeVector, Int8, NarrowVectors<4, 1, false>;
                }
                bitmap "bitmap" BitmapParams Product {
                    bitmap_f16_256x1_warps6: Bits, F16, WarpTile<1, 4, WarpOf<6>>;
                    bitmap_f16_256x1_halves3: Bits, F16, WarpTile<1, 2, WarpOf<3>>;
                    bitmap_f16_256x8_warps6: Bits, F16, WarpTile<8, 4, WarpOf<6>>;
                    bitmap_f16_256x8_halves3: Bits, F16, WarpTile<8, 2, WarpOf<3>>;
                    bitmap_f16_256x16_halves3: Bits, F16, WarpTile<16, 2, WarpOf<3>>;
                    bitmap_f16_128x16: Bits, F16, BitTile<2, 16, BitOf<true>>;
                    bitmap_f16_256x16: Bits, F16, BitTile<4, 16, BitOf<true>>;
                    bitmap_f16_256x32: Bits, F16, BitTile<4, 32, BitOf<true>>;
                    bitmap_f16_128x64: Bits, F16, BitTile<2, 64, BitOf<true>>;
                    bitmap_f16_256x64: Bits, F16, BitTile<4, 64, BitOf<true>>;
                    bitmap_f16_128x64_any: Bits, F16, BitTile<2, 64, BitOf<false>>;
                    bitmap_bf16_256x1_warps6: Bits, Bf16, WarpTile<1, 4, WarpOf<6>>;
                    bitmap_bf16_256x1_halves3: Bits, Bf16, WarpTile<1, 2, WarpOf<3>>;
                    bitmap_bf16_256x8_warps6: Bits, Bf16, WarpTile<8, 4, WarpOf<6>>;
                    bitmap_bf16_256x8_halves3: Bits, Bf16, WarpTile<8, 2, WarpOf<3>>;
                    bitmap_bf16_256x16_halves3: Bits, Bf16, WarpTile<16, 2, WarpOf<3>>;
                    bitmap_bf16_128x16: Bits, Bf16, BitTile<2, 16, BitOf<true>>;
                    bitmap_bf16_256x16: Bits, Bf16, BitTile<4, 16, BitOf<true>>;
                    bitmap_bf16_256x32: Bits, Bf16, BitTile<4, 32, BitOf<true>>;
                    bitmap_bf16_128x64: Bits, Bf16, BitTile<2, 64, BitOf<true>>;
                    bitmap_bf16_256x64: Bits, Bf16, BitTile<4, 64, BitOf<true>>;
                    bitmap_bf16_128x64_any: Bits, Bf16, BitTile<2, 64, BitOf<false>>;
                    bytemap_f16_128x16: Bytes, F16, ByteTile<2, 16, ByteOf>;
                    bytemap_f16_256x16: Bytes, F16, ByteTile<4, 16, ByteOf>;
                    bytemap_f16_128x32: Bytes, F16, ByteTile<2, 32, ByteOf>;
                    bytemap_f16_256x32: Bytes, F16, ByteTile<4, 32, ByteOf>;
                    bytemap_f16_256x64: Bytes, F16, ByteTile<4, 64, ByteOf>;
                    bytemap_bf16_128x16: Bytes, Bf16, ByteTile<2, 16, ByteOf>;
                    bytemap_bf16_256x16: Bytes, Bf16, ByteTile<4, 16, ByteOf>;
                    bytemap_bf16_128x32: Bytes, Bf16, ByteTile<2, 32, ByteOf>;
                    bytemap_bf16_256x32: Bytes, Bf16, ByteTile<4, 32, ByteOf>;
                    bytemap_bf16_256x64: Bytes, Bf16, ByteTile<4, 64, ByteOf>;
                }
                bitmap_mma "bitmap_mma" BitmapParams Product {
                    bitmap_mma_f16_256x1_warps4_wide: Bits, F16, WarpTile<1, 4, WarpOf<4, CpAsyncWide>>;
                    bitmap_mma_f16_256x1_warps4: Bits, F16, WarpTile<1, 4, WarpOf<4, CpAsync>>;
                    bitmap_mma_f16_256x8_warps4_wide: Bits, F16, WarpTile<8, 4, WarpOf<4, CpAsyncWide>>;
                    bitmap_mma_f16_256x8_warps4: Bits, F16, WarpTile<8, 4, WarpOf<4, CpAsync>>;
                    bitmap_mma_f16_256x16_halves2_wide: Bits, F16, WarpTile<16, 2, WarpOf<2, CpAsyncWide>>;
                    bitmap_mma_f16_128x16: Bits, F16, BitTile<2, 16, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_f16_128x32: Bits, F16, BitTile<2, 32, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_f16_128x64: Bits, F16, BitTile<2, 64, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_f16_128x64_any: Bits, F16, BitTile<2, 64, BitOf<false, MmaSync, CpAsync>>;
                    bitmap_mma_bf16_256x1_warps4_wide: Bits, Bf16, WarpTile<1, 4, WarpOf<4, CpAsyncWide>>;
                    bitmap_mma_bf16_256x1_warps4: Bits, Bf16, WarpTile<1, 4, WarpOf<4, CpAsync>>;
                    bitmap_mma_bf16_256x8_warps4_wide: Bits, Bf16, WarpTile<8, 4, WarpOf<4, CpAsyncWide>>;
                    bitmap_mma_bf16_256x8_warps4: Bits, Bf16, WarpTile<8, 4, WarpOf<4, CpAsync>>;
                    bitmap_mma_bf16_256x16_halves2_wide: Bits, Bf16, WarpTile<16, 2, WarpOf<2, CpAsyncWide>>;
                    bitmap_mma_bf16_128x16: Bits, Bf16, BitTile<2, 16, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_bf16_128x32: Bits, Bf16, BitTile<2, 32, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_bf16_128x64: Bits, Bf16, BitTile<2, 64, BitOf<true, MmaSync, CpAsync>>;
                    bitmap_mma_bf16_128x64_any: Bits, Bf16, BitTile<2, 64, BitOf<false, MmaSync, CpAsync>>;
                    bytemap_mma_f16_128x16: Bytes, F16, ByteTile<2, 16, ByteOf<MmaSync, CpAsync>>;
                    bytemap_mma_f16_128x32: Bytes, F16, ByteTile<2, 32, ByteOf<MmaSync, CpAsync>>;
                    bytemap_mma_f16_128x64: Bytes, F16, ByteTile<2, 64, ByteOf<MmaSync, CpAsync>>;
                    bytemap_mma_bf16_128x16: Bytes, Bf16, ByteTile<2, 16, ByteOf<MmaSync, CpAsync>>;
                    bytemap_mma_bf16_128x32: Bytes, Bf16, ByteTile<2, 32, ByteOf<MmaSync, CpAsync>>;
                    bytemap_mma_bf16_128x64: Bytes, Bf16, ByteTile<2, 64, ByteOf<MmaSync, CpAsync>>;
                }
            }
        }
    };
}
